// Bytes that our ends of connections still hold, and that other members of the job are to get: of this host,
// which look at the same time, and of others.
//
// Owner:     SocketCapture. Callers: the agent, in the stop.
// Never:     leaves a socket with another option than it had: hold_back_again() is called before threads run.
#pragma once

#include "base/memory/arena.h"
#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"
#include "libckpt_rt/capture/descriptors/table/partners.h"
#include "libckpt_rt/capture/sockets/socket_look.h"

namespace ckpt {

class UnsentBytes {
 public:
  UnsentBytes(OpenFiles& files, DescriptorAccess& access) : files_(files), access_(access) {}
  UnsentBytes(const UnsentBytes&) = delete;
  UnsentBytes& operator=(const UnsentBytes&) = delete;

  void begin(Arena& arena) { senders_ = ArenaVector<Sender>(arena); }
  Result<void> drain_to_other_hosts(SocketLook& look, Partners::Drained drained);
  // Other members of the job wait for the bytes that our ends of connections hold back.
  Result<void> let_senders_send(SocketLook& look);
  bool has_senders() const { return senders_.size() != 0; }
  void hold_back_senders();

 private:
  struct Sender {
    uint32_t entry;  // in OpenFiles::entries()
    int cork, no_delay;
  };

  OpenFiles& files_;
  DescriptorAccess& access_;
  ArenaVector<Sender> senders_;  // sockets that were told to send at once
};

// The address is one of this host alone, 127.0.0.1 for example.
bool is_loopback(const sockaddr_storage& address);

}  // namespace ckpt
