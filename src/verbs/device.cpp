// SPDX-License-Identifier: Apache-2.0
// The device list, opening and closing (ibv_get_device_list(3), ibv_open_device(3)).  A
// DeviceObject is made once for each device that was ever seen and kept, so that its address is
// stable over calls.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "base/anew.hpp"
#include "verbs/fault.hpp"
#include "verbs/guard.hpp"
#include "verbs/objects.hpp"
#include "verbs/sysfs.hpp"

namespace adverb::verbs {

std::atomic<unsigned> fork_generation{0};

namespace {

struct DeviceList {
  std::mutex mutex;
  std::vector<std::unique_ptr<DeviceObject>> devices;
};

// Both live for ever: destructors of other libraries may still call in at exit.
DeviceList& device_list() {
  static auto* list = new DeviceList;
  return *list;
}

void describe(DeviceObject& d, const nic::DeviceInfo& info, std::size_t index) {
  d.info = info;
  d.dev.node_type = IBV_NODE_CA;
  d.dev.transport_type = IBV_TRANSPORT_IB;
  std::snprintf(d.dev.name, sizeof d.dev.name, "%s", info.name.c_str());
  std::snprintf(d.dev.dev_name, sizeof d.dev.dev_name, "uverbs%zu", index);
  std::snprintf(d.dev.dev_path, sizeof d.dev.dev_path, "/sys/class/infiniband_verbs/uverbs%zu",
                index);
  std::snprintf(d.dev.ibdev_path, sizeof d.dev.ibdev_path, "/sys/class/infiniband/%s",
                info.name.c_str());
}

DeviceObject* object_for(DeviceList& list, const nic::DeviceInfo& info) {
  for (auto& d : list.devices) {
    if (d->info.name == info.name && d->info.guid == info.guid) {
      d->info = info;
      return d.get();
    }
  }
  list.devices.push_back(std::make_unique<DeviceObject>());
  DeviceObject* d = list.devices.back().get();
  describe(*d, info, list.devices.size() - 1);
  return d;
}

// A copy, since each listing renews it.
nic::DeviceInfo info_of(const DeviceObject& object) {
  std::lock_guard lock(device_list().mutex);
  return object.info;
}

ibv_device** get_device_list(int* number) {
  if (const auto settings = nic::read_settings(); !settings)
    return fail(EINVAL, "{}", settings.error());
  if (const int error = load_fault_rules()) return errno = error, nullptr;
  if (const int error = fault(Call::get_device_list)) return errno = error, nullptr;
  DeviceList& list = device_list();
  const std::vector<nic::DeviceInfo> found = nic::enumerate();
  std::lock_guard lock(list.mutex);
  auto** out = static_cast<ibv_device**>(std::calloc(found.size() + 1, sizeof(ibv_device*)));
  if (!out) throw std::bad_alloc();
  for (std::size_t i = 0; i < found.size(); ++i) out[i] = &object_for(list, found[i])->dev;
  if (number) *number = static_cast<int>(found.size());
  return out;
}

void watch_forks() {
  static const int once = pthread_atfork(nullptr, nullptr, [] {
    fork_generation.fetch_add(1, std::memory_order_relaxed);
    make_anew(device_list().mutex);
    for (auto& d : device_list().devices) d->use.clear();
    make_anew(live());  // what it held is the parent's
    SharedObjects::forget_all();
  });
  (void)once;
}

// One for each processor, as NICs have them.  Here they differ in nothing: whoever makes the
// progress writes the event.
int completion_vectors() {
  return static_cast<int>(std::clamp(sysconf(_SC_NPROCESSORS_ONLN), 1l, 64l));
}

// A context without its command descriptor and what belongs to it.
std::unique_ptr<Context> make_context(ibv_device* device) {
  watch_forks();
  DeviceObject* object = of(device);
  const nic::DeviceInfo info = info_of(*object);
  auto opened = nic::Device::open(info);
  if (!opened)
    return fail(opened.error().error, "open_device {}: {}", device->name, opened.error().message);
  if ((*opened)->failed())
    return fail(EIO, "open_device {}: the device has failed; close it everywhere first",
                device->name);
  auto context = std::make_unique<Context>();
  if (const int error = context->async.open())
    return fail(error, "open_device {}: no pipe for events: {}", device->name,
                std::strerror(error));
  context->device = *opened;
  context->object = object;
  context->guid = info.guid;
  context->generation = fork_generation.load(std::memory_order_relaxed);
  ibv_context& c = *context->context();
  c.device = device;
  c.async_fd = context->async.fd();
  c.num_comp_vectors = completion_vectors();
  pthread_mutex_init(&c.mutex, nullptr);
  c.abi_compat = __VERBS_ABI_IS_EXTENDED;
  fill_slots(*context);
  return context;
}

ibv_context* enter(std::unique_ptr<Context> context) {
  context->device->attach(context.get());
  live().add(context->context(), Kind::context);
  return context.release()->context();
}

ibv_context* open_device(ibv_device* device) {
  if (const int error = fault(Call::open_device)) return errno = error, nullptr;
  auto context = make_context(device);
  if (!context) return nullptr;
  // A descriptor that programs may dup, watch and pass on.
  context->shared = SharedObjects::create(device->name, context->guid, context->context()->cmd_fd);
  return enter(std::move(context));
}

//= ibv_import_device(3): the descriptor is the context's, and closed with it
ibv_context* import_device(int fd) {
  if (const int error = load_fault_rules()) return errno = error, nullptr;
  if (const int error = fault(Call::import_device)) return errno = error, nullptr;
  auto shared = SharedObjects::open(fd);
  if (!shared)
    return fail(EINVAL, "import_device: descriptor {} is no command descriptor of a context", fd);
  ibv_device* device = nullptr;
  DeviceList& list = device_list();
  for (const nic::DeviceInfo& info : nic::enumerate()) {
    if (info.name != shared->device() || info.guid != shared->guid()) continue;
    std::lock_guard lock(list.mutex);
    device = &object_for(list, info)->dev;
  }
  if (!device) return fail(ENODEV, "import_device: there is no {} here", shared->device());
  auto context = make_context(device);
  if (!context) return nullptr;
  context->context()->cmd_fd = fd;
  context->shared = std::move(shared);
  return enter(std::move(context));
}

int close_device(ibv_context* c) {
  if (const int error = fault(Call::close_device)) return error;
  if (!live().remove(c, Kind::context)) return EINVAL;
  Context* context = of(c);
  context->device->detach(context);
  if (c->cmd_fd >= 0) close(c->cmd_fd);
  c->cmd_fd = -1;
  context->release();
  return 0;
}

}  // namespace

std::vector<ListedDevice> list_devices() {
  watch_forks();
  std::vector<ListedDevice> listed;
  std::vector<nic::DeviceInfo> found = nic::enumerate();
  for (auto& device : nic::Device::opened()) {
    const nic::DeviceInfo info = device->info();
    // Names count from 0, so when an interface goes down another one may get its name.
    std::erase_if(found, [&](const nic::DeviceInfo& d) { return d.name == info.name; });
    found.push_back(info);
    listed.push_back({.opened = std::move(device)});
  }
  listed.insert(listed.begin(), found.size() - listed.size(), {});
  DeviceList& list = device_list();
  std::lock_guard lock(list.mutex);
  for (std::size_t i = 0; i < found.size(); ++i) {
    listed[i].info = found[i];
    listed[i].dev_name = object_for(list, found[i])->dev.dev_name;
  }
  return listed;
}

// In a forked child the tables of the contexts that it inherited are the parent's.
std::uint32_t share(Context& context, const SharedObject& object) {
  return context.shared && context.alive() ? context.shared->add(object)
                                           : SharedObjects::private_handle();
}

void unshare(Context& context, std::uint32_t handle) {
  if (context.shared && context.alive()) context.shared->remove(handle);
}

// The device stays open while objects exist, although the application has closed the context above
// them.
void Context::release() {
  if (references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  NotCancelled guard;
  delete this;
}

}  // namespace adverb::verbs

using namespace adverb::verbs;

ADVERB_API ibv_device** ibv_get_device_list(int* number) {
  if (number) *number = 0;
  return guarded([&] { return get_device_list(number); });
}

ADVERB_API void ibv_free_device_list(ibv_device** list) { std::free(list); }

ADVERB_API const char* ibv_get_device_name(ibv_device* device) { return device->name; }

ADVERB_API __be64 ibv_get_device_guid(ibv_device* device) {
  __be64 guid;
  std::memcpy(&guid, info_of(*of(device)).guid.data(), sizeof guid);
  return guid;
}

// -1: no index of the kernel's; callers then compare the node GUID.
ADVERB_API int ibv_get_device_index(ibv_device*) { return -1; }

ADVERB_API ibv_context* ibv_open_device(ibv_device* device) {
  return guarded([&] { return open_device(device); });
}

ADVERB_API ibv_context* ibv_import_device(int fd) {
  return guarded([&] { return import_device(fd); });
}

ADVERB_API int ibv_close_device(ibv_context* context) {
  return guarded([&] { return close_device(context); });
}

// Memory is the application's own and is read and written by the CPU: fork() needs no precautions.
ADVERB_API int ibv_fork_init() { return 0; }
ADVERB_API ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }
ADVERB_API int ibv_dontfork_range(void*, std::size_t) { return 0; }
ADVERB_API int ibv_dofork_range(void*, std::size_t) { return 0; }

ADVERB_API const char* ibv_get_sysfs_path() {
  static const char* path = [] {
    const char* env = std::getenv("SYSFS_PATH");
    return env && *env ? strdup(env) : "/sys";
  }();
  return path;
}

ADVERB_API int ibv_read_sysfs_file(const char* dir, const char* file, char* buffer,
                                   std::size_t size) {
  return static_cast<int>(guarded([&]() -> ssize_t {
    const std::string path = std::string(dir) + "/" + file;
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = read(fd, buffer, size);
    close(fd);
    if (n > 0) {
      if (buffer[n - 1] == '\n') {
        buffer[--n] = '\0';
      } else if (static_cast<std::size_t>(n) < size) {
        buffer[n] = '\0';
      } else {
        return -1;
      }
    }
    return n;
  }));
}
