// Gives the restarted program its memory while it runs: answers faults, and loads the rest meanwhile.
//
// Each address space (the program's; those of children that it forks meanwhile) is a Space: a userfaultfd
// and the pages that still wait. One lock is over all of them, and everything that the kernel tells or is
// told goes through it: reading events, and putting pages there. So between the moment at which an event
// (a page given back, moved, copied to a child) is taken from the kernel, which lets the program go on,
// and the change of PendingPages that follows from it, no page can be put where it must not be. Reading
// the images, checking and unpacking are done without the lock.
//
//   server   the thread that calls run(): polls, takes events, loads what a thread of the program waits for
//   loaders  three threads: load everything in the order of the files
//
// Owner:     restart. Callers: the loader process.
// Never:     puts a page there whose checksum is wrong, or where the program has been before.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/raii_fd.h"
#include "restart/feed/pending_pages.h"
#include "restart/feed/stored_bytes.h"
#include "restart/plan/lazy_plan.h"

namespace ckpt {

struct LoadingCost {
  uint64_t bytes = 0;        // put into memory
  uint64_t faults = 0;       // for which a thread waited
  uint64_t zero_faults = 0;  // of these for pages that were in no image
};

class LazyMemory {
 public:
  LazyMemory(const ImageChain& image, const LazyPlan& plan);
  ~LazyMemory();

  // gate: a page that is filled when all others are.
  Result<void> start(ScopedFd uffd, Addr gate);
  // What must be there before the program runs.
  Result<void> load_first();
  // Until all memory is there, or everybody is gone who could ask for it. After an error threads may still
  // read: the process must end, and this object with it. With the environment variable CKPT_RESTART_HOLD,
  // which names a FIFO, only what is touched is loaded until somebody opens it for writing: so a test decides
  // what happens first.
  Result<void> run();
  LoadingCost cost() const;

 private:
  struct Space {
    ScopedFd uffd;
    PendingPages pending;
  };
  struct Job {  // one extent
    uint32_t image, extent;
    uint32_t first, last;  // of by_file_
  };
  struct Fault {
    Space* space;
    Addr page;
  };
  class Buffers;

  // With the lock held.
  void take_events(Space& space);
  void take_all_events();
  Result<void> put(Space& space, Addr to, const std::byte* from, uint64_t length);
  Result<void> put_job(Space& space, const Job& job, const std::byte* memory);
  Result<void> put_zero(Space& space, Addr page);
  void space_gone(Space& space);
  bool wanted(const Space& space, const Job& job) const;
  Space* current_locked();
  void wake(Space& space, Addr page);
  void ring();

  // Without it.
  Result<void> load(Space& space, const Job* jobs, size_t count, Buffers& buffers);
  Result<void> serve(const Fault& fault, Buffers& buffers);
  void load_everything();
  static void hold();
  std::once_flag held_;
  size_t job_of(Addr saved) const;

  const ImageChain& image_;
  const LazyPlan& plan_;
  StoredBytes stored_;
  const std::vector<MemoryPiece> pieces_;
  std::vector<uint32_t> by_file_;  // pieces, in the order of image and file
  std::vector<uint32_t> job_of_piece_;
  std::vector<Job> jobs_;
  PendingPages all_;  // until start()

  mutable std::mutex lock_;
  std::condition_variable idle_;
  std::deque<Space> spaces_;  // the program's first; never shrinks, so that pointers stay
  std::vector<Fault> faults_;
  std::optional<Error> error_;
  Space* current_ = nullptr;  // the loaders work on this one
  size_t next_job_ = 0;
  unsigned loading_ = 0;  // loaders with a batch in hand
  bool done_ = false;
  Addr gate_{};
  LoadingCost cost_;
  ScopedFd bell_;  // the server looks again
};

}  // namespace ckpt
