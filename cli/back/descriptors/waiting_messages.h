// What waits to be received in a socket, as an image tells it, with the descriptors that were sent: is it the
// same in two images?
//
// Owner: cli. Ordinary code, one thread. Callers: ChannelPlan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "image/read/image_meta.h"

namespace ckpt::cli {

// An open file that waits in a socket. Such a file is no descriptor of the program, so nobody puts back what
// is in the file.
struct WaitingFile {
  OpenFileKind kind;
  uint32_t open_flags;
  uint64_t device, inode;
  uint64_t process;   // of a pidfd; before Linux 6.9 all pidfds have one inode
  uint64_t position;  // where no descriptor of the program leads there
  bool has_descriptor;
  std::vector<std::byte> content;
  bool operator==(const WaitingFile&) const = default;
};

struct WaitingMessage {
  SocketMessageDetail detail;
  std::vector<std::byte> sender;  // its address
  std::vector<std::byte> bytes;
  std::vector<WaitingFile> files;
  // The sender's process is not compared: a process of the job has another number outside of its namespace.
  bool operator==(const WaitingMessage& o) const {
    return detail.flags == o.detail.flags && detail.length == o.detail.length && sender == o.sender &&
           bytes == o.bytes && files == o.files;
  }
};

// May they be left where they are, though other descriptors go back? A pidfd has no state but its process.
// The other end of a pipe or socket is made anew where the program has closed this one since; and objects
// without an inode of their own (eventfd, …) are not told from each other.
inline bool may_be_left(const std::vector<WaitingMessage>& messages, auto... kinds) {
  return std::all_of(messages.begin(), messages.end(), [&](const WaitingMessage& m) {
    return std::all_of(m.files.begin(), m.files.end(),
                       [&](const WaitingFile& f) { return ((f.kind == kinds) || ...); });
  });
}

std::vector<WaitingMessage> waiting_messages(const ImageMeta& meta, const ParsedOpenFile& socket);

}  // namespace ckpt::cli
