// SPDX-License-Identifier: Apache-2.0
// A process's side of adverbd (design D4, D5): takes a slot, gets the slot's receive sockets, keeps
// the pool alive across a daemon's death and hands it to the next one.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string>

#include "base/types.hpp"
#include "daemon/xrc_memory.hpp"
#include "engine/credit.hpp"

namespace adverb::daemon {

struct ClientError {
  int error;            // errno for the application
  std::string message;  // one line for a person, says what to do
};

// One per process.  Thread-safe.  Control path only.  Destroy it after the slot's sockets are
// closed: the slot is free from then on.  In a forked child the destructor only closes descriptors.
class Client {
 public:
  // Connects to this user's adverbd of this network namespace, starting one when there is none.
  // Takes a slot.  May block up to some seconds while a daemon starts or takes over.
  static std::expected<std::unique_ptr<Client>, ClientError> connect();
  ~Client();

  unsigned slot() const;
  // This slot's receive socket for a local address; creates the address's pool on first use.  The
  // caller owns the descriptor (a duplicate).
  std::expected<int, ClientError> receive_socket(const Gid&, unsigned ifindex);
  // False once the kernel refused steering for an address: its frames arrive through the relay
  // socket.
  bool steered() const;
  // The memory of the XRC domain that belongs to an inode; the caller owns the descriptor.  EAGAIN:
  // there is none, and `create` is false; EINVAL: there is one, and `exclusive` is true.
  std::expected<int, ClientError> open_xrcd(const XrcKey&, bool create, bool exclusive);
  void close_xrcd(const XrcKey&);  // nothing of this process is in it any more
  // A unix datagram socket, bound to relay_name_prefix() + slot; the caller owns it (a duplicate).
  int take_relay_socket();
  std::string relay_name_prefix() const;
  // Shared by every slot of this user in this namespace, one line per slot.
  std::span<engine::CreditLine> credit_lines() const;

  // Readable when the daemon died (always the same descriptor); the owner (background thread) then
  // calls recover(), which finds or starts the next daemon and hands the pool over.  Does not block
  // longer than some milliseconds per call; poll again later if it returns false.  True also when
  // the slot cannot be handed over any more: traffic goes on, new addresses fail.
  int watch_descriptor() const;
  bool recover();

 private:
  Client();
  struct State;
  std::unique_ptr<State> state_;
};

// What this user's adverbd of this namespace serves, as one JSON text; never starts one
// (ECONNREFUSED: none runs).
std::expected<std::string, ClientError> daemon_status();

}  // namespace adverb::daemon
