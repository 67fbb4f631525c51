// How the agent, whose descriptor table is its own, gets at the program's descriptors at this moment.
//
// Owner:     DescriptorCapture. Callers: the agent.
// Never:     holds a duplicate of a descriptor: who borrows one closes it, in the stop.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "libckpt_rt/capture/descriptors/table/descriptor.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"

namespace ckpt {

class DescriptorAccess {
 public:
  // tid: any live thread of the program.
  Result<void> begin(Arena& arena, int tid);
  // All threads stand; `tid` is one of them, whose descriptors may be borrowed.
  void begin_sampling(int tid) {
    tid_ = tid;
    may_borrow_ = true;
  }
  // In the stop no directory is searched. Until the program runs again.
  void stand(bool stands) { stands_ = stands; }
  bool stands() const { return stands_; }
  bool may_borrow() const { return may_borrow_; }

  int tid() const { return tid_; }
  // The thread that has the descriptor: we have those that wait in sockets.
  int tid_of(const CapturedDescriptor& d) const { return d.in_flight ? sys::gettid() : tid_; }
  // A duplicate in our table, for the caller to close; or -errno.
  int borrow(const CapturedDescriptor& d) { return borrow(d, d.fd); }
  int borrow(const CapturedDescriptor& d, int fd);
  // What was kept to borrow them by.
  void give_up();

  // fdinfo, in text(), by the file that is held open where there is one. As read_fdinfo().
  long read_info(const CapturedDescriptor& d, FdInfo& info) const;
  // Scratch for fdinfo and links.
  std::span<char> text() const { return text_; }

 private:
  Arena* arena_ = nullptr;
  int tid_ = 0;
  std::span<char> text_;
  bool stands_ = false;
  bool may_borrow_ = false;  // a stopped thread shows the descriptors
  int pidfd_ = -1;           // of that thread, from the first that is borrowed on
};

}  // namespace ckpt
