// Gives the restarted program its memory while it runs: answers faults, and loads the rest meanwhile.
//
// Each address space (the program's; those of children that it forks meanwhile) is a Space: a userfaultfd
// and the pages that still wait. One lock guards all Spaces: threads hold it to read events and to put pages
// in place. Why: reading an event (pages given back, moved, or copied to a child) lets the program go on, and
// no page may be put in place before PendingPages has changed accordingly. Images are read, checked and
// unpacked without the lock.
//
//   server   the thread that calls run(): polls, takes events, loads pages for which a thread waits
//   loaders  three threads, fewer if no more can be had: load everything in the order of the files
//
// Owner:     restart. Callers: the loader process.
// Never:     puts a page in place whose checksum is wrong, or where the program has changed the page already.
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
#include "restart/plan/memory/lazy_plan.h"

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

  // gate: a page whose fault is not answered before all memory is there.
  Result<void> start(ScopedFd uffd, Addr gate);
  // Loads what must be in place before the program runs (LazyPlan::first).
  Result<void> load_first();
  // Returns when all memory is in place, when no process is left that could ask for it, or after an error.
  // After an error the loaders may still be reading: the process must end without destroying this object.
  // For tests: if the environment variable CKPT_RESTART_HOLD names a FIFO, the loaders wait until the test
  // opens it for writing. Before that only pages that are touched are loaded.
  Result<void> run();
  LoadingCost cost() const;

 private:
  struct Space {
    ScopedFd uffd;
    PendingPages pending;
  };
  struct Job {  // to load one extent
    uint32_t image, extent;
    uint32_t first, last;  // its pieces: [first, last) of by_file_
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
  void space_gone(Space& space);
  bool wanted(const Space& space, const Job& job) const;
  Space* current_locked();
  void wake(Space& space, Addr page);
  void ring();

  // Without the lock.
  Result<void> load(Space& space, const Job* jobs, size_t count, Buffers& buffers);
  Result<void> serve(const Fault& fault, Buffers& buffers);
  void load_everything();
  static void hold();
  size_t job_of(Addr saved) const;

  const ImageChain& image_;
  const LazyPlan& plan_;
  StoredBytes stored_;
  const std::vector<MemoryPiece> pieces_;
  std::vector<uint32_t> by_file_;  // pieces, in the order of image and file
  std::vector<uint32_t> job_of_piece_;
  std::vector<Job> jobs_;
  PendingPages all_;  // moves to the program's Space in start()

  mutable std::mutex lock_;
  std::condition_variable idle_;
  std::deque<Space> spaces_;  // the program's first; never shrinks, so that pointers stay
  std::vector<Fault> faults_;
  std::optional<Error> error_;
  Space* current_ = nullptr;  // the Space that the loaders fill
  size_t next_job_ = 0;
  unsigned loading_ = 0;  // loaders that are loading a batch
  bool done_ = false;
  Addr gate_{};
  LoadingCost cost_;
  ScopedFd bell_;  // an eventfd; ring() makes the server look again
  std::once_flag held_;
};

}  // namespace ckpt
