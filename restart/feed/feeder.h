// Reads the memory that a restart needs before the program runs, checks it, unpacks it, and puts it in place
// or hands it to the restorer. Each byte is read once.
//
//   images ── threads of ckpt-restart ── ring of slots ── restorer ── its place
//             read a batch, compare      (a memfd)        copies
//             checksums, unpack ── UFFDIO_COPY ── its place
//
// Ordinary pages the Feeder puts in place itself, through a userfaultfd that the new process has sent it: by
// all of its threads at once, and no page is cleared first. The other pages the restorer copies; without a
// userfaultfd it copies all. Two pipes go with the ring: FillOrders to the restorer, and numbers of free
// slots back to whichever thread takes one. The last order says that all memory was as its checksums say;
// without it the restorer does not go on.
//
// Owner:     restart. Callers: ckpt-restart's main thread; of a job, start() and join() are called by the
//            thread that feeds all processes (restart_job.cc). The new process: process_fds(),
//            give_up_our_ends().
// Memory:    bounded: the ring, and one buffer for each thread, from which it unpacks.
// Why a ring, not process_vm_writev, and a userfaultfd that the new process opens itself: neither needs a
// right over that process, in any namespace.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "restart/feed/stored_bytes.h"
#include "restart/plan/memory/fill_plan.h"

namespace ckpt {

// The new process's side.
struct FeedFds {
  int ring = -1, orders = -1, emptied = -1;
  int socket = -1;  // for introduce_to_feeder(); -1: the restorer copies all
  uint64_t slot_bytes = 0;
};

// Called in the new process: sends its userfaultfd to the Feeder; -1: there is none.
Result<void> introduce_to_feeder(int socket, int uffd);

class Feeder {
 public:
  Feeder(const ImageChain& image, const FillPlan& plan) : image_(image), plan_(plan) {}
  ~Feeder();
  Feeder(const Feeder&) = delete;
  Feeder& operator=(const Feeder&) = delete;

  // False: there is nothing to feed; then call neither prepare() nor start().
  bool wanted() const { return plan_.any() || plan_.all; }
  // Before the new process is made.
  Result<void> prepare();
  FeedFds process_fds() const;
  // Called in the new process: closes ckpt-restart's ends of pipes and socket. While the new process had them
  // open, it would never learn that ckpt-restart is gone.
  void give_up_our_ends();
  // When the new process exists: starts the threads, which have all signals blocked. `progress` is called on
  // one of them at a time, with bytes of the files.
  Result<void> start(VerifyProgress progress);
  // Waits for the threads, when the new process has all memory or has ended. Returns the error that stopped
  // the Feeder, if any.
  Result<void> join();

 private:
  static constexpr unsigned kMostThreads = 8;
  static constexpr unsigned kSlots = 2 * kMostThreads;
  class PageBuffer;
  class Worker;

  static void* run(void* self);
  void feed();
  void failed(const Error& error);
  void one_is_done();
  bool meet_process();

  const ImageChain& image_;
  const FillPlan& plan_;
  std::optional<StoredBytes> stored_;
  VerifyProgress progress_;

  std::byte* ring_ = nullptr;
  uint64_t slot_bytes_ = 0;
  ScopedFd ring_fd_, orders_read_, orders_write_, emptied_read_, emptied_write_;
  ScopedFd socket_, process_socket_;

  // Set by the first thread that puts pages in place: it waits until the restorer has mapped its memory.
  // After that these are only read.
  std::once_flag met_;
  bool process_gone_ = false;
  ScopedFd uffd_;  // not valid: the restorer copies all

  std::vector<pthread_t> threads_;
  // All relaxed: nothing else is published by them; plan and ring were there before the threads.
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};  // after an error, or when the new process is gone
  std::atomic<bool> sections_taken_{false};
  std::mutex lock_;  // guards the members below
  unsigned at_work_ = 0;
  uint64_t done_ = 0, total_ = 0;  // bytes of the files
  std::optional<Error> error_;
};

}  // namespace ckpt
