// The program's sockets: what they are, which is whose other end, what waits in them.
//
// Owner:     DescriptorCapture. Callers: the agent, in the stop only, on duplicates that do not outlive it.
//            Order: look; describe, when open files have their numbers; then what ends the looks.
// Parts:     each has one job; SocketCapture looks at one socket after the other, and calls them.
//   WaitingMessages   messages and bytes that nobody has received
//     SentFiles         descriptors that came with them
//   UnsentBytes       what our ends still hold of what other members of the job are to get
//   Connections       TCP: other ends, and what is in flight
//   SocketRecords     all of it as details of the image's records
// Never:     takes a byte, a message or an error out of a socket: see docs/channels.md.
#pragma once

#include "base/result.h"
#include "libckpt_rt/capture/descriptors/kinds/classifier.h"
#include "libckpt_rt/capture/sockets/connections.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/capture/sockets/socket_records.h"
#include "libckpt_rt/capture/sockets/waiting/sent_files.h"
#include "libckpt_rt/capture/sockets/waiting/unsent_bytes.h"
#include "libckpt_rt/capture/sockets/waiting/waiting_messages.h"

namespace ckpt {

class SocketCapture {
 public:
  SocketCapture(OpenFiles& files, DescriptorAccess& access, DescriptorNotes& notes,
                DescriptorContents& contents, Classifier& classifier, const Partners& partners)
      : files_(files),
        access_(access),
        notes_(notes),
        partners_(partners),
        sent_(files, access, classifier),
        messages_(files, notes, sent_),
        unsent_(files, access),
        connections_(files, access, notes, messages_, partners),
        records_(files, notes, contents, partners) {}
  SocketCapture(const SocketCapture&) = delete;
  SocketCapture& operator=(const SocketCapture&) = delete;

  void begin(Arena& arena) { unsent_.begin(arena); }
  Result<void> look(SocketLook& look);
  Result<void> describe(SocketLook& look) { return records_.describe(look); }

  // Open files that wait in sockets, which we have open to look at them.
  void close_in_flight() { sent_.close_all(); }
  // Sockets that were told to send at once, until they hold bytes back again as they did.
  bool has_senders() const { return unsent_.has_senders(); }
  void hold_back_senders() { unsent_.hold_back_senders(); }
  int tcp_socket(uint64_t inode) const { return records_.tcp_socket(inode); }

 private:
  Result<void> look_at_socket(SocketLook& look, SocketState& s, int socket);
  // One for each family: what it is. It stays kOther where it cannot be saved.
  Result<void> look_at_unix(SocketLook& look, SocketState& s, int socket);
  Result<void> look_at_tcp(SocketLook& look, SocketState& s, int socket);
  Result<void> look_at_datagrams(SocketLook& look, SocketState& s, int socket);
  Result<void> look_at_other(SocketState& s, int socket);
  void take_unix_facts(const SocketLook& look, SocketState& s, int socket);
  Result<void> look_at_unaccepted(SocketLook& look, SocketState& s, int socket);
  // Of all families.
  Result<void> read_state(SocketLook& look, SocketState& s, int socket);
  Result<void> put_options(SocketLook& look, SocketState& s, int socket);
  Result<void> name_waiting(const SocketState& s);

  OpenFiles& files_;
  DescriptorAccess& access_;
  DescriptorNotes& notes_;
  const Partners& partners_;
  SentFiles sent_;
  WaitingMessages messages_;
  UnsentBytes unsent_;
  Connections connections_;
  SocketRecords records_;
};

}  // namespace ckpt
