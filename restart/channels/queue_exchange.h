// What waited in a connection between hosts comes into it again: each end gives the other its own queue, and
// the other sends it back, so it waits there again.
//
// Owner: restart. Callers: far.cc, with new connections; `ckpt back`, with those of a program that stands and
// goes back in place. One thread.
// Both ends do it at the same time, and nothing else uses the connections meanwhile. A connection keeps the
// room that its queue took: the caller puts back what the program had set (SO_RCVBUF, SO_RCVLOWAT).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "image/read/image_meta.h"

namespace ckpt {

// Never waits, so that no two hosts wait for each other. An end has what it is to have when its own queue is
// in the kernel again, not when its last byte is sent: until then it has to keep the room.
class QueueExchange {
 public:
  // fd is the caller's, and empty. queue: what waited in it. name: for an error.
  QueueExchange(int fd, const std::vector<Blob>& queue, std::string name);
  // False: the connection is broken.
  bool go_on();
  bool done() const { return answered_ && !sends() && returned_ >= own_; }
  int fd() const { return fd_; }
  short events() const;                         // for poll(2); 0: it tells nothing
  int64_t last_ns() const { return last_ns_; }  // when bytes came or went
  const std::string& name() const { return name_; }
  std::string how_far() const;

 private:
  uint64_t wanted() const;  // of in_, as far as it is known
  bool reads() const { return in_.size() < wanted(); }
  bool sends() const { return sent_ < out_.size(); }
  void make_room() const;
  void answer();

  int fd_;
  std::string name_;
  uint64_t own_ = 0;  // bytes of our queue
  std::string out_;   // length and bytes of our queue; then the other's queue, sent back
  size_t sent_ = 0;   // of out_
  std::string in_;    // the other's, with its length
  bool answered_ = false;
  uint64_t returned_ = 0;  // bytes of our queue that are in the kernel again
  uint64_t mark_ = 1;      // as many tell poll(2) that there is something to read
  int64_t last_ns_;
};

// Until all are done. An error names one that is broken, or of which for 30 s no byte went or came. gives_up:
// looked at now and then; true: nobody needs it any more (kUnavailable).
Result<void> exchange_all(std::span<QueueExchange> all, const std::function<bool()>& gives_up);

}  // namespace ckpt
