// What was found out about sockets, as details of their records.
//
// Owner:     SocketCapture. Callers: the agent, in the stop, when open files have their numbers.
#pragma once

#include "base/memory/bytes.h"
#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/contents.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"
#include "libckpt_rt/capture/descriptors/table/partners.h"
#include "libckpt_rt/capture/sockets/socket_look.h"

namespace ckpt {

class SocketRecords {
 public:
  SocketRecords(OpenFiles& files, DescriptorNotes& notes, DescriptorContents& contents,
                const Partners& partners)
      : files_(files), notes_(notes), contents_(contents), partners_(partners) {}
  SocketRecords(const SocketRecords&) = delete;
  SocketRecords& operator=(const SocketRecords&) = delete;

  Result<void> describe(SocketLook& look);
  // A number of the program's that leads to this TCP socket; -1: none. By what describe() has written.
  int tcp_socket(uint64_t inode) const;

 private:
  Result<void> put_messages(const SocketLook& look, const SocketState& s, ByteWriter& out);
  Result<void> decide_outside(SocketState& s);

  OpenFiles& files_;
  DescriptorNotes& notes_;
  DescriptorContents& contents_;
  const Partners& partners_;
};

}  // namespace ckpt
