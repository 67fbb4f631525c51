// Reads what goes into memory before the program runs, checks it, unpacks it, and hands it to the restorer:
// each byte is read once.
//
//   images ── threads of ckpt-restart ── ring of slots ── restorer ── its place
//             read a batch, compare      (a memfd)        copies
//             checksums, unpack ── UFFDIO_COPY ── its place
//
// What goes to memory of ordinary pages the Feeder puts there itself, through a userfaultfd that the new
// process has sent it: on as many threads as there are, and without clearing each page first. Where there is
// none the restorer copies all. Two pipes go with the ring: FillOrders to the restorer, and numbers of free
// slots back to whichever thread takes one. The last order says that everything was as its checksums say;
// without it the restorer does not go on.
//
// Owner:     restart. Callers: ckpt-restart's main thread. Bounded: the ring, and for each thread what it
// unpacks from. A ring and not process_vm_writev, and a userfaultfd of the new process's own: neither needs a
// right over it, in any namespace.
#pragma once

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "restart/feed/stored_bytes.h"
#include "restart/plan/fill_plan.h"

namespace ckpt {

// The new process's side.
struct FeedFds {
  int ring = -1, orders = -1, emptied = -1;
  int socket = -1;  // -1: nothing is put there by the Feeder
  uint64_t slot_bytes = 0;
};

// Sends the new process's userfaultfd to the Feeder; -1: there is none. In the new process.
Result<void> introduce_to_feeder(int socket, int uffd);

class Feeder {
 public:
  Feeder(const ImageChain& image, const FillPlan& plan) : image_(image), plan_(plan) {}
  ~Feeder();
  Feeder(const Feeder&) = delete;
  Feeder& operator=(const Feeder&) = delete;

  // Nothing to do: not prepared, not started.
  bool wanted() const { return plan_.any() || plan_.all; }
  // Before the new process is there.
  Result<void> prepare();
  FeedFds process_fds() const;
  // In the new process: as long as it had them, it would never learn that we are gone.
  void give_up_our_ends();
  // When it is there: on threads of their own, all signals blocked. Progress: bytes of the files, on one of
  // them.
  Result<void> start(VerifyProgress progress);
  // When the new process has come to its end or has all of it. The error that stopped the feeder, if any.
  Result<void> join();

 private:
  static constexpr unsigned kMostThreads = 8;
  static constexpr unsigned kSlots = 2 * kMostThreads;
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

  // From the first to come, who waits until the restorer has mapped its memory; then only read.
  std::once_flag met_;
  bool process_gone_ = false;
  ScopedFd uffd_;  // not valid: the restorer copies all

  std::vector<pthread_t> threads_;
  // All relaxed: only the numbers are shared; plan and ring were there before the threads.
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};  // after an error, or when the new process is gone
  std::atomic<bool> sections_taken_{false};
  std::mutex lock_;  // over what follows
  unsigned at_work_ = 0;
  uint64_t done_ = 0, total_ = 0;  // bytes of the files
  std::optional<Error> error_;
};

}  // namespace ckpt
