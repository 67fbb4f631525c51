#include "libckpt_rt/capture/memory/page_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <string_view>

#include "base/machine/pagemap_scan.h"
#include "base/memory/own_place.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/process/own_files.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// Bits of an entry of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
constexpr uint64_t kEntryPresent = 1ull << 63, kEntrySwapped = 1ull << 62, kEntryFile = 1ull << 61;

constexpr uint64_t kTable = 2 << 20;  // bytes that one page table maps
constexpr size_t kBuffer = 64 << 10;
constexpr size_t kFewRegions = 32;

bool swap_is_empty() {
  struct sysinfo memory {};
  return sys::call(__NR_sysinfo, &memory) == 0 && memory.freeswap == memory.totalswap;
}

// The fast question (missing_are_written).
PagemapScanArg ask_for_written() {
  PagemapScanArg arg{};
  arg.category_mask = arg.return_mask = kPageIsWritten;
  return arg;
}

// Pages that exist and were not written since they were protected: the kernel's mark for a hole counts as
// swapped. No category of a page is returned, so that pages and holes make one run.
PagemapScanArg ask_for_protected() {
  PagemapScanArg arg{};
  arg.category_anyof_mask = kPageIsPresent | kPageIsSwapped;
  arg.category_mask = arg.category_inverted = arg.return_mask = kPageIsWritten;
  return arg;
}

Error no_memory() { return make_error(ExitCode::kInternal, ENOMEM, "no memory for the list of pages"); }

// The first run of pages that are as `arg` says: 1; 0 without one; -errno.
long first_run(int pagemap, AddrRange range, PagemapScanArg arg, PageRegion* region) {
  arg.size = sizeof(arg);
  arg.start = range.start.value;
  arg.end = range.end.value;
  arg.vec = reinterpret_cast<uint64_t>(region);
  arg.vec_len = 1;
  return sys::call(__NR_ioctl, pagemap, kPagemapScan, &arg);
}

// All of [range) in one run of pages that are as `arg` says?
long is_one_run(int pagemap, AddrRange range, PagemapScanArg arg) {
  PageRegion region{};
  const long n = first_run(pagemap, range, arg, &region);
  if (n < 0) return n;
  return n == 1 && region.start == range.start.value && region.end == range.end.value;
}

// Guard pages are never protected, nor written to. Before Linux 6.15 one cannot be told from a page that was
// written to and is swapped (EINVAL).
PagemapScanArg ask_for_guards() {
  PagemapScanArg arg{};
  arg.category_mask = arg.return_mask = kPageIsGuard;
  return arg;
}

// Does a page table, or a huge page, hold the memory at the start of each block that one maps?
bool has_page_tables(int pagemap, AddrRange range) {
  PagemapScanArg there{};
  there.category_anyof_mask = kPageIsPresent | kPageIsSwapped;
  there.return_mask = kPageIsPresent;
  for (Addr at = range.start; at < range.end; at = Addr{(at.value & ~(kTable - 1)) + kTable}) {
    if (is_one_run(pagemap, {at, at + kPageSize}, there) != 1) return false;
  }
  return true;
}

Error cannot_tell(long error) {
  return make_error(ExitCode::kUnavailable, static_cast<int>(error),
                    "PAGEMAP_SCAN cannot tell what is protected ({})", errno_name(static_cast<int>(error)));
}

}  // namespace

long first_protected(int pagemap, AddrRange range, AddrRange* run) {
  PageRegion region{};
  const long n = first_run(pagemap, range, ask_for_protected(), &region);
  if (n == 1) *run = {Addr{region.start}, Addr{region.end}};
  return n;
}

long first_guard(int pagemap, AddrRange range, AddrRange* run) {
  PageRegion region{};
  const long n = first_run(pagemap, range, ask_for_guards(), &region);
  if (n == 1) *run = {Addr{region.start}, Addr{region.end}};
  return n;
}

Result<void> PageScan::add(AddrRange run, ArenaVector<AddrRange>& runs) {
  pages_added_ += run.size() / kPageSize;
  if (runs.size() > first_ && runs.back().end == run.start) {
    runs.back().end = run.end;
    return {};
  }
  return runs.push_back(run) ? Result<void>() : no_memory();
}

// Nothing is swapped here, so a page that is not present though its entry holds something is one of two
// things. Either the page exists, and the kernel moves it to another place of the machine's memory at this
// instant (compaction). Or the entry is a mark, which is no page. mincore(2) tells them apart.
Result<void> PageScan::add_moving(AddrRange range, ArenaVector<AddrRange>& runs) {
  constexpr size_t kAtOnce = 512;
  uint8_t there[kAtOnce];
  for (Addr at = range.start; at < range.end;) {
    const uint64_t pages = std::min<uint64_t>((range.end - at) / kPageSize, kAtOnce);
    const long r = sys::call(__NR_mincore, at.value, pages * kPageSize, there);
    if (r == -ENOMEM) return {};  // it has gone since
    if (r != 0) return add({at, range.end}, runs);
    for (uint64_t i = 0; i < pages; ++i) {
      const Addr page = at + i * kPageSize;
      if ((there[i] & 1) != 0) CKPT_TRY(add({page, page + kPageSize}, runs));
    }
    at = at + pages * kPageSize;
  }
  return {};
}

Result<void> PageScan::open(Arena& scratch, int pagemap) {
  buffer_ = static_cast<std::byte*>(scratch.allocate(kBuffer));
  if (buffer_ == nullptr) return no_memory();
  struct sysinfo memory {};
  swapping_ = sys::call(__NR_sysinfo, &memory) != 0 || memory.totalswap != 0;
  pagemap_ = pagemap;
  if (pagemap_ >= 0) return {};
  const long fd = own_files::open(own_files::OwnFile::kPagemap);
  if (sys::failed(fd)) {
    return cannot_open("/proc/self/pagemap", static_cast<int>(fd));
  }
  own_pagemap_.reset(static_cast<int>(fd));
  pagemap_ = own_pagemap_.get();
  missing_are_written_ = missing_are_written(pagemap_);
  return {};
}

Result<void> PageScan::scan(const Mapping& m, ArenaVector<AddrRange>& runs) {
  first_ = runs.size();
  saw_protected_ = true;
  if (m.shared && m.whole) return scan_shared(m, runs);
  if (!m.shared && m.whole && (m.map_flags & kMapFileDeleted) != 0) {
    return add(m.range, runs);
  }
  const bool anonymous_only = !m.shared && !m.whole;
  if (have_ioctl_) return scan_by_ioctl(m.range, anonymous_only, runs);
  return scan_by_read(m.range, anonymous_only, runs);
}

namespace {

bool is_part_of_file(const Mapping& m) { return m.handling == Handling::kEager && !m.shared && !m.whole; }

}  // namespace

// The mappings of a library are neighbours: one question to the kernel for all of them.
Result<void> PageScan::scan_eager(std::span<const Mapping> map, ArenaVector<AddrRange>& runs) {
  for (size_t i = 0, end; i < map.size(); i = end) {
    end = i + 1;
    if (map[i].handling != Handling::kEager) continue;
    while (have_ioctl_ && is_part_of_file(map[i]) && end < map.size() && is_part_of_file(map[end]) &&
           map[end].range.start == map[end - 1].range.end) {
      ++end;
    }
    if (end == i + 1)
      CKPT_TRY(scan(map[i], runs));
    else
      CKPT_TRY(scan_neighbours(map.subspan(i, end - i), runs));
  }
  return {};
}

// Each run is of one mapping.
Result<void> PageScan::scan_neighbours(std::span<const Mapping> map, ArenaVector<AddrRange>& runs) {
  size_t at = first_ = runs.size();
  CKPT_TRY(scan_by_ioctl({map.front().range.start, map.back().range.end}, true, runs));
  for (const Mapping& m : map) {
    while (at < runs.size() && runs[at].end <= m.range.end) ++at;
    if (at == runs.size() || runs[at].start >= m.range.end) continue;
    const AddrRange parts[] = {{runs[at].start, m.range.end}, {m.range.end, runs[at].end}};
    if (!runs.replace(at, at + 1, parts, 2)) return no_memory();
    ++at;
  }
  return {};
}

long PageScan::scan_next(PagemapScanArg& arg, uint64_t& at, uint64_t end, bool first) {
  arg.size = sizeof(arg);
  arg.start = at;
  arg.end = end;
  arg.vec = reinterpret_cast<uint64_t>(buffer_);
  // The kernel allocates as many, up to 512: that is a third of the price of a call with a short answer, as
  // most have.
  arg.vec_len = first ? kFewRegions : kBuffer / sizeof(PageRegion);
  const long n = sys::call(__NR_ioctl, pagemap_, kPagemapScan, &arg);
  if (n < 0) return n;
  // The kernel collects 512 regions at a time. In walk_end it says where it began with the last of them, also
  // when it went on from there to the end: what it has returned tells how far it came.
  const bool all = static_cast<uint64_t>(n) < arg.vec_len;
  at = all ? end : std::max<uint64_t>(arg.walk_end, reinterpret_cast<const PageRegion*>(buffer_)[n - 1].end);
  return n;
}

Result<void> PageScan::scan_protected(AddrRange range, ArenaVector<AddrRange>& runs) {
  first_ = runs.size();
  auto* regions = reinterpret_cast<const PageRegion*>(buffer_);
  for (uint64_t at = range.start.value; at < range.end.value;) {
    PagemapScanArg arg = ask_for_protected();
    const long n = scan_next(arg, at, range.end.value, at == range.start.value);
    if (n < 0) return cannot_tell(n);
    for (long i = 0; i < n; ++i) CKPT_TRY(add({Addr{regions[i].start}, Addr{regions[i].end}}, runs));
  }
  return {};
}

Result<void> PageScan::scan_unprotected(AddrRange range, bool announced, ArenaVector<AddrRange>& runs) {
  first_ = runs.size();
  if (announced && missing_are_written_ && has_page_tables(pagemap_, range)) {
    auto* regions = reinterpret_cast<const PageRegion*>(buffer_);
    for (uint64_t at = range.start.value; at < range.end.value;) {
      PagemapScanArg arg = ask_for_written();
      const long n = scan_next(arg, at, range.end.value, at == range.start.value);
      if (n < 0) return cannot_tell(n);
      for (long i = 0; i < n; ++i) CKPT_TRY(add({Addr{regions[i].start}, Addr{regions[i].end}}, runs));
    }
    return {};
  }
  const size_t first = runs.size();
  CKPT_TRY(scan_protected(range, runs));
  // The gaps between those runs, in the place of the runs.
  size_t gaps = first;
  Addr from = range.start;
  for (size_t i = first; i < runs.size(); ++i) {
    const AddrRange gap{from, runs[i].start};
    from = runs[i].end;
    if (gap.start < gap.end) runs[gaps++] = gap;
  }
  runs.truncate(gaps);
  return from >= range.end || runs.push_back({from, range.end}) ? Result<void>() : no_memory();
}

long is_protected(int pagemap, AddrRange range) {
  const PagemapScanArg arg = ask_for_protected();
  const long all = is_one_run(pagemap, range, arg);
  if (all != 0) return all;
  // Page by page: no condition of the call says "protected or a guard".
  for (AddrRange page{range.start, range.start + kPageSize}; page.start < range.end;
       page = {page.end, page.end + kPageSize}) {
    if (is_one_run(pagemap, page, arg) != 1 && is_one_run(pagemap, page, ask_for_guards()) != 1) return 0;
  }
  return 1;
}

bool missing_are_written(int pagemap) {
  constexpr uint64_t kPages = 3;  // two of them are of one page table
  const long memory = map_own(kPages * kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  if (sys::failed(memory)) return false;
  sys::call(__NR_madvise, memory, kPages * kPageSize, MADV_NOHUGEPAGE);
  Addr there{static_cast<uint64_t>(memory)};
  if ((there.value + kPageSize) % kTable == 0) there = there + kPageSize;
  *there.as<volatile char>() = 1;
  const Addr missing = there + kPageSize;
  // Not if it is there after all (mlockall).
  const bool so = !has_page_tables(pagemap, {missing, missing + kPageSize}) &&
                  is_one_run(pagemap, {missing, missing + kPageSize}, ask_for_written()) == 1;
  sys::call(__NR_munmap, memory, kPages * kPageSize);
  return so;
}

long is_protected_if_mapped(int pagemap, AddrRange range) {
  // The tables first: what went before is missing from them then, and what goes after they were looked at
  // went after.
  if (range.size() < kTable || !has_page_tables(pagemap, range)) return is_protected(pagemap, range);
  for (PageRegion region{}; range.start < range.end; range.start = Addr{region.end}) {
    const long n = first_run(pagemap, range, ask_for_written(), &region);
    if (n < 0) return n;
    if (n == 0) break;
    if (is_one_run(pagemap, {Addr{region.start}, Addr{region.end}}, ask_for_guards()) != 1) return 0;
  }
  return 1;
}

Result<void> PageScan::scan_by_ioctl(AddrRange range, bool anonymous_only, ArenaVector<AddrRange>& runs) {
  saw_protected_ = false;
  auto* regions = reinterpret_cast<const PageRegion*>(buffer_);
  for (uint64_t at = range.start.value; at < range.end.value;) {
    PagemapScanArg arg{};
    // Present or swapped, and not the shared page of zeros, and (changed pages of a file) not the file's.
    // Marks of the kernel in place of a page, for a guard or for the protection of a hole, count as swapped.
    // So does a page that the kernel moves (add_moving()).
    arg.category_anyof_mask = kPageIsPresent | kPageIsSwapped;
    arg.category_mask = kPageIsZero | (anonymous_only ? kPageIsFile : 0) | (knows_guards_ ? kPageIsGuard : 0);
    arg.category_inverted = arg.category_mask;
    arg.return_mask = kPageIsPresent | kPageIsWritten;
    const uint64_t from = at;
    const long n = scan_next(arg, at, range.end.value, at == range.start.value);
    if (n == -EINVAL && knows_guards_) {
      knows_guards_ = false;
      continue;
    }
    if (n == -ENOTTY || n == -EINVAL) {
      have_ioctl_ = false;
      saw_protected_ = true;
      return scan_by_read({Addr{from}, range.end}, anonymous_only, runs);
    }
    if (n < 0) {
      return make_error(ExitCode::kSystem, static_cast<int>(n), "PAGEMAP_SCAN of {:#x}-{:#x} failed ({})",
                        range.start.value, range.end.value, errno_name(static_cast<int>(n)));
    }
    for (long i = 0; i < n; ++i) {
      const AddrRange run{Addr{regions[i].start}, Addr{regions[i].end}};
      const size_t known = pages_added_;
      CKPT_TRY((regions[i].categories & kPageIsPresent) != 0 || swapping_ ? add(run, runs)
                                                                          : add_moving(run, runs));
      if ((regions[i].categories & kPageIsWritten) == 0 && pages_added_ != known) saw_protected_ = true;
    }
  }
  return {};
}

Result<void> PageScan::scan_by_read(AddrRange range, bool anonymous_only, ArenaVector<AddrRange>& runs) {
  constexpr size_t kEntries = kBuffer / sizeof(uint64_t);
  auto* entries = reinterpret_cast<uint64_t*>(buffer_);
  for (Addr at = range.start; at < range.end;) {
    uint64_t pages = (range.end - at) / kPageSize;
    if (pages > kEntries) pages = kEntries;
    long n = sys::call(__NR_pread64, pagemap_, entries, pages * 8, at.value / kPageSize * 8);
    if (n <= 0) {
      return make_error(ExitCode::kSystem, static_cast<int>(n),
                        "cannot read /proc/self/pagemap at {:#x} ({})", at.value,
                        errno_name(static_cast<int>(n)));
    }
    for (uint64_t i = 0; i < static_cast<uint64_t>(n) / 8; ++i) {
      if ((entries[i] & (kEntryPresent | kEntrySwapped)) == 0) continue;
      if (anonymous_only && (entries[i] & kEntryFile) != 0) continue;
      const AddrRange page{at + i * kPageSize, at + (i + 1) * kPageSize};
      CKPT_TRY((entries[i] & kEntryPresent) != 0 || swapping_ ? add(page, runs) : add_moving(page, runs));
    }
    at = at + static_cast<uint64_t>(n) / 8 * kPageSize;
  }
  return {};
}

Result<void> PageScan::scan_shared(const Mapping& m, ArenaVector<AddrRange>& runs) {
  // To read a page of these that does not exist takes one of the machine's.
  const std::string_view path(m.path, m.path_len);
  const bool huge = m.page_size > kPageSize || path.starts_with("/anon_hugepage");
  const bool on_disk = m.kind == MappingKind::kFileShared && !path.starts_with("/dev/shm/");
  // Of memory that may have few pages its object is asked sooner: mincore(2) looks at each page, half a
  // second for 64 GiB.
  constexpr uint64_t kMuch = 256ull << 20;
  const bool never_swapped = !on_disk && !swapping_;
  if (huge || (never_swapped && m.range.size() <= kMuch)) return scan_resident(m.range, runs);
  const Mapping* whole = m.inode != 0 ? &m : map_ != nullptr ? map_->find(m.range.start) : nullptr;
  bool known = false;
  if (whole != nullptr && whole->shared && m.range.end <= whole->range.end)
    CKPT_TRY(scan_data(*whole, m.range, runs, &known));
  if (known) return {};
  if (never_swapped) return scan_resident(m.range, runs);
  // Asked again, since pages may go there meanwhile.
  const size_t before = runs.size();
  if (!on_disk && swap_is_empty()) {
    CKPT_TRY(scan_resident(m.range, runs));
    if (swap_is_empty()) return {};
    runs.truncate(before);
  }
  return add(m.range, runs);
}

Result<void> PageScan::scan_data(const Mapping& m, AddrRange part, ArenaVector<AddrRange>& runs,
                                 bool* known) {
  const size_t before = runs.size();
  char name[64];
  *fmt::format_to_n(name, sizeof(name) - 1, "/proc/self/map_files/{:x}-{:x}", m.range.start.value,
                    m.range.end.value)
       .out = '\0';
  ScopedFd file(static_cast<int>(
      sys::call(__NR_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0)));
  if (!file.valid()) {
    file.release();
    return {};
  }
  struct stat st {};
  if (sys::call(__NR_fstat, file.get(), &st) != 0 || st.st_ino != m.inode || st.st_dev != m.device) return {};
  const auto first = static_cast<long>(m.file_offset + (part.start - m.range.start)),
             end = first + static_cast<long>(part.size());
  for (long at = first; at < end;) {
    const long data = sys::call(__NR_lseek, file.get(), at, SEEK_DATA);
    if (data == -ENXIO) break;  // no more until its end
    const long hole = data >= at ? sys::call(__NR_lseek, file.get(), data, SEEK_HOLE) : -EINVAL;
    if (hole <= data) {
      runs.truncate(before);
      return {};
    }
    const uint64_t from = static_cast<uint64_t>(std::min(data, end) - first),
                   to = static_cast<uint64_t>(std::min(hole, end) - first);
    const AddrRange run{(part.start + from).page_down(), (part.start + to).page_up()};
    if (!run.empty()) CKPT_TRY(add(run, runs));
    at = hole;
  }
  *known = true;
  return {};
}

Result<void> PageScan::scan_resident(AddrRange range, ArenaVector<AddrRange>& runs) {
  constexpr size_t kPages = kBuffer;
  auto* resident = reinterpret_cast<uint8_t*>(buffer_);
  for (Addr at = range.start; at < range.end;) {
    uint64_t pages = (range.end - at) / kPageSize;
    if (pages > kPages) pages = kPages;
    long r = sys::call(__NR_mincore, at.value, pages * kPageSize, resident);
    if (r != 0) {
      return make_error(ExitCode::kSystem, static_cast<int>(r), "mincore of {:#x}-{:#x} failed ({})",
                        at.value, range.end.value, errno_name(static_cast<int>(r)));
    }
    for (uint64_t i = 0; i < pages; ++i) {
      Addr page = at + i * kPageSize;
      if ((resident[i] & 1) != 0) CKPT_TRY(add({page, page + kPageSize}, runs));
    }
    at = at + pages * kPageSize;
  }
  return {};
}

}  // namespace ckpt
