// Which pages of a mapping exist, without touching them.
//
// Owner:     libckpt_rt. Callers: the agent, also while threads stand still.
// Source:    PAGEMAP_SCAN (Linux 6.7), else /proc/PID/pagemap. Pages of shared memory may exist without being
//            in this process's page tables: mincore(2) tells those that are in memory. Others are in swap or,
//            of a file, on its disk: lseek(2) tells, to root; else every page counts as one that exists (of
//            memory, only while anything is in swap).
#pragma once

#include "base/memory/arena.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "libckpt_rt/capture/memory/memory_map.h"

namespace ckpt {

class PageScan {
 public:
  // scratch: 64 KiB of it, used by every scan.
  // pagemap: /proc/self/pagemap, of another PageScan that outlives this one; -1: it is opened.
  Result<void> open(Arena& scratch, int pagemap = -1);
  // /proc/self/pagemap; -1: not open.
  int descriptor() const { return pagemap_; }
  // Parts of shared memory are looked up in this list; nullptr: in none. The list must stay until another is
  // named.
  void look_up_in(const MemoryMap* map) { map_ = map; }
  // Appends the runs of pages of m that must be in the image, in address order, page-aligned.
  Result<void> scan(const Mapping& m, ArenaVector<AddrRange>& runs);
  // The same of all mappings of Handling::kEager; each run is of one of them.
  Result<void> scan_eager(std::span<const Mapping> map, ArenaVector<AddrRange>& runs);
  // Appends the runs of [range) that userfaultfd protects, holes included, in address order. kUnavailable:
  // this kernel cannot tell (PAGEMAP_SCAN is missing).
  Result<void> scan_protected(AddrRange range, ArenaVector<AddrRange>& runs);
  // The same of what it does not protect. announced: what is not mapped any more need not be listed, being
  // known.
  Result<void> scan_unprotected(AddrRange range, bool announced, ArenaVector<AddrRange>& runs);
  // Was any page of the last scan write-protected by userfaultfd, as far as one can tell?
  bool saw_protected() const { return saw_protected_; }

 private:
  Result<void> scan_neighbours(std::span<const Mapping> map, ArenaVector<AddrRange>& runs);
  Result<void> scan_by_ioctl(AddrRange range, bool anonymous_only, ArenaVector<AddrRange>& runs);
  // One call, from `at` on: how many of the regions in buffer_ it filled, or -errno; `at` is where it ended.
  long scan_next(struct PagemapScanArg& arg, uint64_t& at, uint64_t end, bool first);
  Result<void> scan_by_read(AddrRange range, bool anonymous_only, ArenaVector<AddrRange>& runs);
  Result<void> scan_shared(const Mapping& m, ArenaVector<AddrRange>& runs);
  Result<void> scan_resident(AddrRange range, ArenaVector<AddrRange>& runs);
  // *known: the object behind m, whose part is asked for, can be opened and asked.
  Result<void> scan_data(const Mapping& m, AddrRange part, ArenaVector<AddrRange>& runs, bool* known);
  Result<void> add(AddrRange run, ArenaVector<AddrRange>& runs);
  Result<void> add_moving(AddrRange range, ArenaVector<AddrRange>& runs);

  ScopedFd own_pagemap_;
  int pagemap_ = -1;
  const MemoryMap* map_ = nullptr;
  std::byte* buffer_ = nullptr;
  size_t pages_added_ = 0;
  size_t first_ = 0;  // runs before this belong to other mappings
  bool saw_protected_ = true;
  bool have_ioctl_ = true;
  bool knows_guards_ = true;  // the kernel tells guard pages from swapped ones
  bool missing_are_written_ = false;
  bool swapping_ = true;  // this machine has swap: memory may go there at any time
};

// Does userfaultfd protect all of [range) but for guard pages, holes included? 1 yes, 0 no; -errno: this
// kernel cannot tell (PAGEMAP_SCAN is missing). pagemap: a descriptor of /proc/self/pagemap. Any thread;
// needs no memory but its stack.
long is_protected(int pagemap, AddrRange range);

// The first run of pages of [range) that userfaultfd protects, the kernel's marks in place of pages included:
// 1, or 0 without one; -errno as above.
long first_protected(int pagemap, AddrRange range, AddrRange* run);

// The first run of guard pages (MADV_GUARD_INSTALL) of [range): 1, or 0 without one; -errno: this kernel
// cannot tell (Linux 6.15). Any thread; needs no memory but its stack.
long first_guard(int pagemap, AddrRange range, AddrRange* run);

// The kernel answers one question several times faster than others: which pages were written to, and nothing
// else. Its answer then has, of a page table, the pages that are not there as well, which no protection holds
// either; but nothing of memory without a page table, or that is not mapped. Is it so here? The function maps
// memory for a moment, to try.
bool missing_are_written(int pagemap);
// As is_protected(), where that is so, of memory whose unmapping is announced (UFFD_EVENT_UNMAP). Much faster
// where it is.
long is_protected_if_mapped(int pagemap, AddrRange range);

}  // namespace ckpt
