// SPDX-License-Identifier: Apache-2.0
// The objects behind the public structures.  Each begins with (or, for the context, surrounds) the
// structure that the application sees, so that a pointer to one is a pointer to the other;
// applications' inline functions read the public part directly (see api.hpp for what is fixed).
//
// Always true: an object stands in `live` from its creation until its destroy call has succeeded,
// so that a second destroy call is an error and not a crash; it holds one reference on its context
// and one on every object it was made from.
#pragma once

#include <pthread.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/engine.hpp"
#include "nic/device.hpp"
#include "verbs/api.hpp"
#include "verbs/claim.hpp"
#include "verbs/live_objects.hpp"
#include "verbs/shared_objects.hpp"

namespace adverb::verbs {

inline constexpr std::uint16_t max_moderation_count = 0xffff, max_moderation_us = 4095;

// Counted up in every forked child: what was opened before is dead there (design D3).
extern std::atomic<unsigned> fork_generation;

// A device in the list.  Never freed, so that the application may keep the pointer as long as it
// likes.  Other libraries (libmlx5, libefa) look for their operations right behind ibv_device and
// must find a null pointer there.
struct DeviceObject {
  ibv_device dev{};
  void* ops = nullptr;
  std::byte verbs_device[712 - 672]{};
  nic::DeviceInfo info;
  Use use;
};
static_assert(offsetof(DeviceObject, ops) == 664 && offsetof(DeviceObject, info) >= 712);
inline DeviceObject* of(ibv_device* d) { return reinterpret_cast<DeviceObject*>(d); }

// A pipe of records of the kernel's form.  The writer never blocks: what finds no room waits in a
// list and moves up when the application reads.  Every record that was written and not purged has
// been or will be read.
class EventPipe {
 public:
  explicit EventPipe(std::size_t record_size) : record_size_(record_size) {}
  ~EventPipe();
  int open();  // errno
  int fd() const { return read_fd_; }
  void write(const void* record, std::uint64_t element);
  // The application has read a record: there is room for one more.
  void refill();
  // Takes out all records whose first eight bytes are `element`; returns how many.
  unsigned purge(std::uint64_t element);

 private:
  struct Record {
    std::uint64_t words[2];
  };
  bool put(const Record&);
  std::mutex mutex_;
  std::size_t record_size_;
  int read_fd_ = -1, write_fd_ = -1, purge_fd_ = -1;
  std::deque<Record> waiting_;
};

// What the application's inline functions look at, in front of and around the ibv_context, and
// whose it is.
struct Context;
struct ContextBlock {
  VerbsContext abi;
  Context* owner;
};

struct Context final : nic::EventSink {
  ContextBlock block{};
  std::shared_ptr<nic::Device> device;
  DeviceObject* object = nullptr;
  decltype(nic::DeviceInfo::guid) guid{};
  unsigned generation = 0;
  std::atomic<bool> failed{false};              // the device raised DEVICE_FATAL
  std::atomic<std::uint32_t> references{1};     // the application's, and one per object
  std::atomic<std::uint64_t> device_memory{0};  // bytes that alloc_dm gave out
  std::shared_ptr<SharedObjects> shared;        // what can be imported; null: nothing
  EventPipe async{16};

  Context() { block.owner = this; }
  ibv_context* context() { return &block.abi.v44.context; }
  // Not a forked child's copy: what was made may be destroyed.
  bool alive() const { return generation == fork_generation.load(std::memory_order_relaxed); }
  // Nor the context of a device that failed: everything but destroy calls may go on.
  bool works() const { return alive() && !failed.load(std::memory_order_relaxed); }
  nic::DeviceInfo info() const { return device->info(); }
  Use& use() const { return object->use; }
  void release();
  void on_event(const engine::EventRecord&) override;
  void on_port_event(engine::AsyncEvent) override;
  void raise(std::uint64_t element, engine::AsyncEvent);
};
inline Context* of(ibv_context* c) {
  auto* block = reinterpret_cast<char*>(c) - offsetof(ContextBlock, abi.v44.context);
  return reinterpret_cast<ContextBlock*>(block)->owner;
}

struct Td {
  ibv_td td{};
  Context* context = nullptr;
  std::atomic<std::uint32_t> references{0};
};
inline Td* of(ibv_td* t) { return reinterpret_cast<Td*>(t); }

// Where a parent domain's objects get memory; without functions, from the C library.
struct Allocators {
  decltype(ibv_parent_domain_init_attr::alloc) alloc = nullptr;
  decltype(ibv_parent_domain_init_attr::free) free = nullptr;
  void* context = nullptr;
};

struct Pd {
  ibv_pd pd{};
  Context* context = nullptr;
  engine::PdId id = 0;
  std::atomic<std::uint32_t> references{0};
  Claim claim;
  bool imported = false;                // the handle is another object's
  std::atomic<bool> unimported{false};  // goes with its last reference
  // Of a parent domain: the domain that it stands for (null: this is a protection domain), and what
  // it adds.
  Pd* domain = nullptr;
  Td* td = nullptr;
  Allocators allocators;
  void release();  // one reference less
};
inline Pd* of(ibv_pd* p) { return reinterpret_cast<Pd*>(p); }

struct Dm {
  ibv_dm dm{};
  Context* context = nullptr;
  std::byte* memory = nullptr;
  std::size_t length = 0;
  std::atomic<std::uint32_t> references{0};
  bool imported = false;
  std::atomic<bool> unimported{false};
  std::shared_ptr<const engine::IndirectMemory> through;  // another process's; null: ours
  void release();
};
inline Dm* of(ibv_dm* d) { return reinterpret_cast<Dm*>(d); }

// Pages of a file that go with their object.
class FileMapping {
 public:
  FileMapping() = default;
  FileMapping(void* p, std::size_t length) : address_(p), length_(length) {}
  FileMapping(FileMapping&& o) noexcept
      : address_(std::exchange(o.address_, nullptr)), length_(o.length_) {}
  FileMapping& operator=(FileMapping&& o) noexcept {
    std::swap(address_, o.address_);
    std::swap(length_, o.length_);
    return *this;
  }
  ~FileMapping();
  explicit operator bool() const { return address_ != nullptr; }

 private:
  void* address_ = nullptr;
  std::size_t length_ = 0;
};

struct Mr {
  ibv_mr mr{};
  Pd* pd = nullptr;
  Dm* dm = nullptr;  // null: host memory
  Claim claim, pinned;
  engine::MemoryRegion* region = nullptr;
  bool imported = false;
  std::shared_ptr<const engine::IndirectMemory> through;  // another process's memory
  FileMapping mapping;                                    // of a dma-buf
};
inline Mr* of(ibv_mr* m) { return reinterpret_cast<Mr*>(m); }

struct Mw {
  ibv_mw mw{};
  Pd* pd = nullptr;
  Claim claim;
  engine::MemoryRegion* window = nullptr;
};
inline Mw* of(ibv_mw* m) { return reinterpret_cast<Mw*>(m); }

struct Channel {
  ibv_comp_channel channel{};
  Context* context = nullptr;
  EventPipe events{8};
};
inline Channel* of(ibv_comp_channel* c) { return reinterpret_cast<Channel*>(c); }

struct Cq {
  union {
    ibv_cq cq;
    ibv_cq_ex ex{};
  };
  Context* context = nullptr;
  Channel* channel = nullptr;
  Pd* domain = nullptr;  // the parent domain that it was made in, or null
  Claim claim;
  engine::CompletionQueue* queue = nullptr;
  // What was written for the application to read, less what was purged.
  std::atomic<std::uint32_t> comp_events{0}, async_events{0};
  // Extended polling: the entry that the read functions look at.
  SpinLock poll_lock;
  bool single_threaded = false, has_wallclock = false;
  engine::Cqe current{};
  std::uint64_t wallclock_at_zero = 0;  // ns; of this start_poll
};
inline Cq* of(ibv_cq* c) { return reinterpret_cast<Cq*>(c); }
inline Cq* of(ibv_cq_ex* c) { return reinterpret_cast<Cq*>(c); }

struct Xrcd {
  ibv_xrcd xrcd{};
  Context* context = nullptr;
  nic::XrcDomain* domain = nullptr;
  std::atomic<std::uint32_t> references{0};
};
inline Xrcd* of(ibv_xrcd* x) { return reinterpret_cast<Xrcd*>(x); }

struct Srq {
  ibv_srq srq{};
  Context* context = nullptr;
  Pd* pd = nullptr;
  Xrcd* xrcd = nullptr;  // of an XRC SRQ
  engine::SharedReceiveQueue* queue = nullptr;
  Claim claim;
  std::uint32_t number = 0;
  std::atomic<std::uint32_t> async_events{0};
};
inline Srq* of(ibv_srq* s) { return reinterpret_cast<Srq*>(s); }

struct Wq {
  ibv_wq wq{};
  Context* context = nullptr;
  Pd* pd = nullptr;
  engine::ReceiveWorkQueue* queue = nullptr;
  Claim claim;
  std::atomic<std::uint32_t> async_events{0};
};
inline Wq* of(ibv_wq* w) { return reinterpret_cast<Wq*>(w); }

struct RwqIndTable {
  ibv_rwq_ind_table table{};
  Context* context = nullptr;
  engine::IndirectionTable* entries = nullptr;
  Claim claim;
};
inline RwqIndTable* of(ibv_rwq_ind_table* t) { return reinterpret_cast<RwqIndTable*>(t); }

struct Batch;  // work requests between wr_start and wr_complete

struct Qp {
  union {
    ibv_qp qp;
    QpExtended ext{};
  };
  Context* context = nullptr;
  Pd* pd = nullptr;      // null: an XRC target
  Xrcd* xrcd = nullptr;  // of an XRC target
  Cq *send_cq = nullptr, *recv_cq = nullptr;
  Srq* srq = nullptr;
  engine::QueuePair* pair = nullptr;
  // An XRC target may be open more than once (ibv_open_qp(3)): pair->user is the first of its
  // handles.
  Qp* next_handle = nullptr;
  Claim claim, responder_resources;
  ibv_qp_cap cap{};
  bool sq_sig_all = false;
  std::atomic<std::uint32_t> async_events{0};
  std::unique_ptr<Batch> batch;
  Qp();
  ~Qp();
};
inline Qp* of(ibv_qp* q) { return reinterpret_cast<Qp*>(q); }
inline Qp* of(ibv_qp_ex* q) { return reinterpret_cast<Qp*>(q); }

struct Ah {
  ibv_ah ah{};
  Pd* pd = nullptr;
  Claim claim;
  engine::AddressVector av{};
};
inline Ah* of(ibv_ah* a) { return reinterpret_cast<Ah*>(a); }

struct Flow {
  ibv_flow flow{};
  Context* context = nullptr;
  engine::FlowRule* rule = nullptr;
};
inline Flow* of(ibv_flow* f) { return reinterpret_cast<Flow*>(f); }

// --- what the files share
void fill_slots(Context&);
// Makes it importable by the new handle, if anything of this context is.
std::uint32_t share(Context&, const SharedObject&);
void unshare(Context&, std::uint32_t handle);
int query_device_ex(ibv_context*, const ibv_query_device_ex_input*, ibv_device_attr_ex*,
                    std::size_t);
int query_port(ibv_context*, std::uint8_t port, ibv_port_attr*, std::size_t length);
int compat_query_device(ibv_context*, ibv_device_attr*);
int compat_query_port(ibv_context*, std::uint8_t port, _compat_ibv_port_attr*);
int query_rt_values(ibv_context*, ibv_values_ex*);
ibv_td* alloc_td(ibv_context*, ibv_td_init_attr*);
int dealloc_td(ibv_td*);
ibv_pd* alloc_parent_domain(ibv_context*, ibv_parent_domain_init_attr*);
int advise_mr(ibv_pd*, ibv_advise_mr_advice, std::uint32_t flags, ibv_sge*, std::uint32_t num_sge);
ibv_dm* alloc_dm(ibv_context*, ibv_alloc_dm_attr*);
int free_dm(ibv_dm*);
ibv_mr* reg_dm_mr(ibv_pd*, ibv_dm*, std::uint64_t offset, std::size_t length, unsigned access);
ibv_mw* alloc_mw(ibv_pd*, ibv_mw_type);
int dealloc_mw(ibv_mw*);
int bind_mw(ibv_qp*, ibv_mw*, ibv_mw_bind*);
ibv_mr* alloc_null_mr(ibv_pd*);
ibv_cq_ex* create_cq_ex(ibv_context*, ibv_cq_init_attr_ex*);
ibv_qp* create_qp_ex(ibv_context*, ibv_qp_init_attr_ex*);
ibv_qp* open_qp(ibv_context*, ibv_qp_open_attr*);
ibv_xrcd* open_xrcd(ibv_context*, ibv_xrcd_init_attr*);
int close_xrcd(ibv_xrcd*);
ibv_srq* create_srq_ex(ibv_context*, ibv_srq_init_attr_ex*);
ibv_wq* create_wq(ibv_context*, ibv_wq_init_attr*);
int modify_wq(ibv_wq*, ibv_wq_attr*);
int destroy_wq(ibv_wq*);
ibv_rwq_ind_table* create_rwq_ind_table(ibv_context*, ibv_rwq_ind_table_init_attr*);
int destroy_rwq_ind_table(ibv_rwq_ind_table*);
ibv_flow* create_flow(ibv_qp*, ibv_flow_attr*);
int destroy_flow(ibv_flow*);
int get_srq_num(ibv_srq*, std::uint32_t*);
int poll_cq(ibv_cq*, int, ibv_wc*);
int req_notify_cq(ibv_cq*, int);
int modify_cq(ibv_cq*, ibv_modify_cq_attr*);
int post_send(ibv_qp*, ibv_send_wr*, ibv_send_wr**);
int post_recv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**);
int post_srq_recv(ibv_srq*, ibv_recv_wr*, ibv_recv_wr**);
int post_wq_recv(ibv_wq*, ibv_recv_wr*, ibv_recv_wr**);

// Guards the lists of handles of XRC targets.
std::mutex& handles_mutex();

void init_sync(pthread_mutex_t&, pthread_cond_t&);
// Waits until `completed` (guarded by the mutex) has caught up with `delivered`.
void wait_for_acks(pthread_mutex_t&, pthread_cond_t&, const std::uint32_t& completed,
                   std::uint32_t delivered);

// The address vector of `attr`, or an errno and a line in the log that begins with `who`.
int make_address(const Context&, const ibv_ah_attr&, const char* who, engine::AddressVector&);
// Looks for the way to a unicast GID, which may take a second: when everything else is known to be
// right, and with no lock held.  0, or as the kernel's RDMA core has it for every NIC ENETUNREACH
// (no route) or ETIMEDOUT (no answer from the next hop), and a line in the log.
int find_way(const Context&, const char* who, engine::AddressVector&);
void fill_ah_attr(const engine::AddressVector&, ibv_ah_attr&);

int init_batch(Qp&, engine::QpType, std::uint64_t ops);  // extended posting (wr_start ...)

// What makes raw packets go in and out, for who creates their queues: 0, or EPERM without
// CAP_NET_RAW, or another errno.
int need_raw_packets(const Context&, const char* who);
// ibv_create_qp_ex(3) with an indirection table: a queue pair of receive side scaling.
ibv_qp* create_scaling_qp(ibv_context*, const ibv_qp_init_attr_ex&);
// A queue pair that the engine has made becomes the application's.
ibv_qp* enter(std::unique_ptr<Qp>, ibv_context*, const ibv_qp_init_attr_ex&);

}  // namespace adverb::verbs
