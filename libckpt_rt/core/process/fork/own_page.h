// Memory that a child of this process gets empty: the stacks of our threads, and a page that tells a process
// from its child.
//
// fork(2) copies the list of mappings and the tables of pages, and each page that is written to afterwards.
// So all of it is one mapping, of which nothing is copied (MADV_WIPEONFORK), and a child writes nothing: it
// is new as long as its page says nothing. What it has of the parent's state is put right when it is first
// used (child.h). A child of vfork(2) shares the page, so it is not new; a child of a bare clone(2) is.
//
// Owner:     libckpt_rt. In no image: made again at a restart.
// Callers:   reserve(): the preload constructor, the leader at restart. The rest: any thread.
// Never:     allocates. Linux before 4.14 cannot empty memory for a child: then the child is told by fork()
//            itself.
#pragma once

#include "base/locks/futex.h"
#include "base/units.h"

namespace ckpt {

struct OwnPage {
  std::atomic<int> pid{0};  // of the process; 0: a child that is new
  FutexLock<LockRank::kPuttingRight> putting_right;
  // The thread of a new child that executes another program; 0: none.
  std::atomic<int> in_exec{0};
  // fork_hold.h: the threads in fork(2) by their ids, and how many there are beside them; a word that changes
  // when one of them is through; whether they have to wait before it.
  static constexpr size_t kForkPlaces = 32;
  std::atomic<int> forking[kForkPlaces] = {};
  std::atomic<uint32_t> more_forking{0};
  FutexWord forks_ended{0}, forks_held{0};
};

namespace own_page {

extern OwnPage* page;  // never null

// Makes it, with blocks for the library's threads. False: no address space left.
// kNearLibraries: at the program's start, when there are no holes yet. There a fork(2) needs no page tables
// for it alone.
// kWhereItWas: at a restart; a thread may be about to use it. Elsewhere if something else is there.
enum class Where { kNearLibraries, kWhereItWas };
[[nodiscard]] bool reserve(bool with_engine, Where where);
// All of it.
AddrRange range();
// Is a child told by the kernel? Else fork()'s handler has to.
bool is_wiped_on_fork();

// Around a clone(2) of ours whose child goes on with this stack: the block of the agent stays as it is.
class ScopedUnwipedBlock {
 public:
  explicit ScopedUnwipedBlock(AddrRange block);
  ~ScopedUnwipedBlock();
  ScopedUnwipedBlock(const ScopedUnwipedBlock&) = delete;
  ScopedUnwipedBlock& operator=(const ScopedUnwipedBlock&) = delete;

 private:
  AddrRange block_;
};

// Where the page is: kept when other memory of the library is put back (present_state.h).
struct Place {
  OwnPage* page;
  AddrRange range;
  bool wiped;
};
Place place();
void set_place(const Place& place);

}  // namespace own_page

}  // namespace ckpt
