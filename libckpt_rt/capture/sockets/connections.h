// TCP connections: which socket is whose other end, and what is in flight between them.
//
// Owner:     SocketCapture. Callers: the agent, in the stop, when all sockets were looked at.
// Never:     reads a byte: what the sender's end still holds is made to arrive (socket_tcp.cc).
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"
#include "libckpt_rt/capture/descriptors/table/partners.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/capture/sockets/waiting/waiting_messages.h"

namespace ckpt {

class Connections {
 public:
  Connections(OpenFiles& files, DescriptorAccess& access, DescriptorNotes& notes, WaitingMessages& messages,
              const Partners& partners)
      : files_(files), access_(access), notes_(notes), messages_(messages), partners_(partners) {}
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  Result<void> look(SocketLook& look);

 private:
  struct Ends {
    Endpoint local, remote;
    uint32_t socket;  // index in SocketLook::sockets
  };
  static bool is_less(const Ends& a, const Ends& b);
  Result<void> list_ends(const SocketLook& look, ArenaVector<Ends>& ends) const;
  Result<void> look_at(SocketLook& look, SocketState& s, std::span<const Ends> ends);
  Result<void> look_at_far_end(SocketLook& look, SocketState& s);

  OpenFiles& files_;
  DescriptorAccess& access_;
  DescriptorNotes& notes_;
  WaitingMessages& messages_;
  const Partners& partners_;
};

}  // namespace ckpt
