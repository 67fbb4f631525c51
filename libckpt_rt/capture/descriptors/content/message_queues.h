// POSIX message queues. Nobody can look at a message without taking it. So in the stop one process after the
// other takes all messages out and sends them again: the kernel puts them into the same order. Threads of the
// job that wait for the queue have left it to stand; a thread of another program may not have.
//
// Owner:     FileContents. Callers: the agent, in the stop; send_the_rest: when threads run again.
// Never:     drops a message that it has taken.
#pragma once

#include "base/memory/arena.h"
#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/contents.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/descriptors/table/open_files.h"

namespace ckpt {

class MessageQueues {
 public:
  MessageQueues(OpenFiles& files, DescriptorAccess& access, DescriptorNotes& notes)
      : files_(files), access_(access), notes_(notes) {}
  MessageQueues(const MessageQueues&) = delete;
  MessageQueues& operator=(const MessageQueues&) = delete;

  void begin(Arena& arena) { unsent_ = ArenaVector<Unsent>(arena); }
  Result<void> copy(size_t first_in_order, DescriptorContents& to);
  void send_the_rest();

 private:
  // Messages that were taken out of a queue, and found no place in it again.
  struct Unsent {
    int queue;  // ours
    const std::byte* at;
    const std::byte* end;
  };

  OpenFiles& files_;
  DescriptorAccess& access_;
  DescriptorNotes& notes_;
  ArenaVector<Unsent> unsent_;
};

}  // namespace ckpt
