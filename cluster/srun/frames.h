// What ckpt-srun and its other half on each node say to each other, over the standard input and output that
// ckpt-on carries.
//
//   1 byte  what it is          4 bytes  task, or -1: all of the node          4 bytes  length          bytes
//
// Owner:     cluster/srun. Both ends, one thread each.
// Callers:   the launcher and the nodes.
// Never:     takes a frame that is longer than kMostFrame.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::cluster::srun {

enum class Say : char {
  // to the node
  kStart = 'S',     // NodeOrder (step.h), once
  kInput = 'i',     // bytes for the standard input of a task, or of all
  kInputEnd = 'I',  // no more of it
  kSignal = 'k',    // decimal
  kPmi = 'p',       // bytes for, and of, the PMI socket of a task
  kPmiEnd = 'P',    // the socket is closed
  kPmix = 'X',      // a message of, or for, the PMIx server of a node (pmix/message.h)
  kTaken = 'w',     // so many bytes were passed on (cluster/on/window.h): both ways
  kAllSaid = 'q',   // the node may end
  // from the node
  kOutput = 'o',
  kError = 'e',
  kOutputEnd = 'O',
  kErrorEnd = 'E',
  kNotStarted = 'n',  // why: a task, or with -1 all of the node
  kEnded = 'x',       // wait(2)'s status, decimal
  kDone = 'd',        // of all tasks nothing is left here
};

inline constexpr size_t kMostFrame = 64 << 20;  // kStart has the environment

struct Frame {
  Say say;
  int task;
  std::string bytes;
};

std::string write_frame(Say say, int task, std::string_view bytes = {});

class FrameReader {
 public:
  // False: these are no frames.
  bool feed(std::string_view bytes, std::vector<Frame>& frames);

 private:
  std::string left_;
};

// A list of strings as one, and back. False: it is none.
std::string pack(const std::vector<std::string>& strings);
bool unpack(std::string_view bytes, std::vector<std::string>& strings);

}  // namespace ckpt::cluster::srun
