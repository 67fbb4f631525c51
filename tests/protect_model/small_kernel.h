// A kernel for the library's own sources, at the system calls that they make: userfaultfd, mprotect,
// PAGEMAP_SCAN, msync and the copies of another process's memory answer for a few pages that exist here
// alone. All other calls go to the real kernel. What it does is what docs/kernel_notes.md says of the real
// one, each line of which has a test against that (tests/kernel).
//
// Owner:     tests/protect_model. One at a time, single-threaded: calls are made on fibers, and what would
//            sleep suspends its fiber.
// Callers:   sys::call (own_calls/base/sys.h) of WriteProtection, GuardedMemory, PageScan, Copier;
//            SmallProgram.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "libckpt_rt/capture/memory/memory_map.h"

namespace ckpt::test {

class SmallKernel {
 public:
  enum class Version {
    kNew,
    kNoScan,   // before Linux 6.7: nobody can tell what is protected
    kNoHoles,  // before Linux 6.4: holes are not protected, and what is unmapped is not told
  };
  // More segments of two pages than the passes ahead of a stop leave to it (64).
  static constexpr size_t kPages = 136;
  static constexpr uint64_t kBase = 1ull << 32;

  explicit SmallKernel(Version version);
  ~SmallKernel();
  SmallKernel(const SmallKernel&) = delete;
  SmallKernel& operator=(const SmallKernel&) = delete;

  struct Page {
    int mapping = 0;  // 0: nothing is mapped here
    bool exists = false;
    bool registered = false;  // for write protection
    bool marked = false;      // protected where it is registered, also in place of a page
    bool writable = true;     // PROT_WRITE
    uint64_t content = 0;     // another after each write; never 0 of a page that exists
    bool is_protected() const { return mapping != 0 && ((registered && marked) || !writable); }
  };
  static AddrRange range_of(size_t first, size_t count) {
    return {Addr{kBase + first * kPageSize}, Addr{kBase + (first + count) * kPageSize}};
  }
  static size_t index(Addr a) { return (a.value - kBase) / kPageSize; }
  static bool is_here(Addr a) { return a.value >= kBase && a.value < kBase + kPages * kPageSize; }
  Page& page(size_t i) { return pages_[i]; }
  const std::vector<Page>& pages() const { return pages_; }
  // As /proc/self/maps has it.
  std::vector<Mapping> map() const;
  void map_new(size_t first, size_t count);
  void store(size_t i);

  // A fault or an event, from when it is queued to when its thread may go on.
  struct Message {
    bool is_fault;
    AddrRange range;
    bool removes = false;  // UFFD_EVENT_REMOVE; else UFFD_EVENT_UNMAP
    bool read = false, woken = false;
  };
  // Both suspend the fiber. The fault: until somebody wakes the page's threads.
  void wait_in_fault(size_t i);
  // Until the event has been read. A range that is not registered, or of whose events nobody asked, has none.
  void tell(size_t first, size_t count, bool removes);

  // Called before each call that others could get in between.
  std::function<void()> before_call = [] {};
  // What must never happen and did.
  std::vector<std::string> wrong;

  long call(long nr, const long* args);

 private:
  bool is_userfaultfd(long fd) const { return faults_.count(static_cast<int>(fd)) != 0; }
  long copy(const long* args, bool to_remote);
  bool read_page(Addr from, std::byte* to) const;
  long control_faults(unsigned long request, long argument);
  long write_protect(AddrRange range, bool on);
  void wake(AddrRange range);
  long read_messages(long to, long bytes);
  long poll(long fds);
  long scan(long argument) const;
  uint64_t categories(Addr page, bool only_written) const;
  long read_pagemap(long to, long bytes, long offset) const;
  long change_protection(AddrRange range, bool writable);
  void end_userfaultfd();

  const Version version_;
  std::vector<Page> pages_{kPages};
  std::set<int> faults_;  // descriptors of the userfaultfd
  int memory_ = -1, pagemap_ = -1;
  uint64_t features_ = 0;
  int changing_ = 0;  // events that are on their way: nothing is protected meanwhile
  std::vector<Message*> messages_, sleeping_;
  int mappings_ = 0;
  uint64_t contents_ = 0;
};

}  // namespace ckpt::test
