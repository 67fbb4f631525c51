#include "libckpt_rt/capture/memory/memory_map.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>

#include <algorithm>

#include "base/raii_fd.h"
#include "libckpt_rt/capture/memory/lost_mappings.h"
#include "libckpt_rt/capture/memory/other_name.h"
#include "libckpt_rt/capture/memory/text_change.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

Error no_memory() { return make_error(ExitCode::kInternal, ENOMEM, "no memory for the list of mappings"); }

// Calls fn(line) for each whole line; fn returns a Result<void>. *whole: how much of the text they were.
template <typename Fn>
Result<void> for_each_line(std::string_view text, size_t* whole, Fn fn) {
  *whole = 0;
  for (size_t end; (end = text.find('\n', *whole)) != std::string_view::npos; *whole = end + 1) {
    CKPT_TRY(fn(text.substr(*whole, end - *whole)));
  }
  return {};
}

Result<ScopedFd> open_file(const char* path) {
  ScopedFd fd(static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0)));
  if (fd.valid()) return fd;
  return cannot_open(path, fd.release());
}

// The same for each line of a /proc file.
template <typename Fn>
Result<void> for_each_line_of(const char* path, Arena& arena, Fn fn) {
  constexpr size_t kBuffer = 64 << 10;
  auto* buffer = static_cast<char*>(arena.allocate(kBuffer));
  if (buffer == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory to read {}", path);
  auto fd = open_file(path);
  if (!fd.ok()) return fd.error();
  size_t have = 0, whole;
  for (;;) {
    long n = sys::call(__NR_read, fd->get(), buffer + have, kBuffer - have);
    if (n < 0) return make_error(ExitCode::kSystem, static_cast<int>(n), "cannot read {}", path);
    have += static_cast<size_t>(n);
    CKPT_TRY(for_each_line({buffer, have}, &whole, fn));
    have -= whole;
    std::memmove(buffer, buffer + whole, have);
    if (n == 0) return {};
  }
}

uint64_t take_decimal(std::string_view& s) {
  uint64_t v = 0;
  size_t i = 0;
  for (; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i) v = v * 10 + static_cast<uint64_t>(s[i] - '0');
  s.remove_prefix(i);
  return v;
}

constexpr std::string_view kNewline = "\\012";  // as the kernel writes it; a backslash it writes as it is

// Puts the name that the text stands for into `path`, which has room for the text. The file tells which of
// its \012 are newlines; all are where it is gone.
size_t take_name(std::string_view text, uint64_t inode, char* path) {
  if (text.find(kNewline) == text.npos) {
    std::memcpy(path, text.data(), text.size());
    path[text.size()] = '\0';
    return text.size();
  }
  auto put = [&](uint32_t* as_they_are) {  // a bit for each; those that were not asked for are left in it
    size_t out = 0;
    for (size_t in = 0; in < text.size(); ++out) {
      const bool escape = text.substr(in).starts_with(kNewline);
      const bool newline = escape && (*as_they_are & 1) == 0;
      if (escape) *as_they_are >>= 1;
      path[out] = newline ? '\n' : text[in];
      in += newline ? kNewline.size() : 1;
    }
    path[out] = '\0';
    return out;
  };
  constexpr uint32_t kTries = 64;
  uint32_t none = 0;
  const size_t length = put(&none);
  if (leads_to_inode(path, inode)) return length;
  for (uint32_t i = 1; i < kTries; ++i) {
    uint32_t bits = i;
    const size_t n = put(&bits);
    if (bits != 0) break;
    if (leads_to_inode(path, inode)) return n;
  }
  return put(&none);
}

}  // namespace

Result<void> MemoryMap::add_line(std::string_view line, std::span<const AddrRange> own) {
  // 7ffb5c763000-7ffb5c789000 r--p 00000000 fe:00 326269      /usr/lib/libc.so.6
  std::string_view s = line;
  Mapping m;
  m.range.start = Addr{take_hex(s)};
  if (s.size() < 2) return {};
  s.remove_prefix(1);
  m.range.end = Addr{take_hex(s)};
  if (s.size() < 6)
    return make_error(ExitCode::kInternal, 0, "cannot read this line of /proc/self/maps: {}", line);
  s.remove_prefix(1);
  m.prot = (s[0] == 'r' ? PROT_READ : 0u) | (s[1] == 'w' ? PROT_WRITE : 0u) | (s[2] == 'x' ? PROT_EXEC : 0u);
  m.shared = s[3] == 's';
  s.remove_prefix(5);
  m.file_offset = take_hex(s);
  s.remove_prefix(1);
  uint64_t major = take_hex(s);
  s.remove_prefix(1);
  uint64_t minor = take_hex(s);
  m.device = makedev(static_cast<unsigned>(major), static_cast<unsigned>(minor));  // as stat(2) has it
  s.remove_prefix(1);
  m.inode = take_decimal(s);
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);

  if (s == "[vsyscall]") return {};
  // Of the kernel, which makes them where the program meets a probe.
  if (s == "[uprobes]" || s == "[uprobes-trampoline]") {
    has_probe_area = true;
    return {};
  }
  if (!s.empty()) {
    auto* path = static_cast<char*>(arena_->allocate(s.size() + 1, 1));
    if (path == nullptr) return no_memory();
    m.path_len = static_cast<uint32_t>(take_name(s, m.inode, path));
    m.path = path;
  }
  if (m.path == std::string_view("[vdso]")) vdso = m.range;
  if (s.starts_with("[vvar")) {
    if (vvar.empty()) vvar = m.range;
    vvar.end = m.range.end;
  }
  return add_without(m, own);
}

// The kernel merges mappings of ours with each other and with neighbours of the program's: every range
// of ours is cut out.
Result<void> MemoryMap::add_without(const Mapping& m, std::span<const AddrRange> own) {
  for (size_t i = 0; i < own.size(); ++i) {
    const AddrRange& r = own[i];
    if (!r.overlaps(m.range)) continue;
    Mapping left = m, right = m;
    left.range.end = r.start;
    right.range.start = r.end;
    right.file_offset += right.range.start - m.range.start;
    if (!left.range.empty()) CKPT_TRY(add_without(left, own.subspan(i + 1)));
    if (!right.range.empty()) CKPT_TRY(add_without(right, own.subspan(i + 1)));
    return {};
  }
  Mapping added = m;
  classify(added);
  return mappings_.push_back(added) ? Result<void>() : no_memory();
}

Result<void> MemoryMap::find_shared_twice() {
  // A page mapped at two places can be written through either: protecting one does not protect the
  // other. Such objects are copied in the pause.
  ArenaVector<uint64_t> objects(*arena_);
  for (const Mapping& m : mappings_) {
    if (m.object != 0 && !objects.push_back(m.object)) return no_memory();
  }
  std::sort(objects.begin(), objects.end());
  for (Mapping& m : mappings_) {
    if (m.object == 0 || m.handling != Handling::kTracked) continue;
    const uint64_t* first = std::lower_bound(objects.begin(), objects.end(), m.object);
    if (first + 1 != objects.end() && first[1] == m.object) m.handling = Handling::kEager;
  }
  return {};
}

Result<void> MemoryMap::read(std::span<const AddrRange> own) {
  mappings_.clear();
  vdso = vvar = {};
  has_probe_area = false;
  CKPT_TRY(for_each_line_of("/proc/thread-self/maps", *arena_,
                            [&](std::string_view line) { return add_line(line, own); }));
  return find_shared_twice();
}

Result<void> MemoryMap::take_text(std::string_view text, std::span<const AddrRange> own) {
  mappings_.clear();
  vdso = vvar = {};
  has_probe_area = false;
  expect(static_cast<size_t>(std::count(text.begin(), text.end(), '\n')));
  size_t whole;
  CKPT_TRY(for_each_line(text, &whole, [&](std::string_view line) { return add_line(line, own); }));
  return find_shared_twice();
}

Result<void> MemoryMap::read_ahead(std::span<const AddrRange> own) {
  had_forked_ = hooks::has_forked.load(std::memory_order_relaxed);
  CKPT_TRY(text_.read_ahead(*arena_));
  own_count_ = own.size();
  return take_text(text_.ahead(), own);
}

Result<void> MemoryMap::read_again(std::span<const AddrRange> own, const OtherThreads& others) {
  bool fits = false;
  standing_ = true;
  entries_left_ = kMostEntriesStopped;
  auto text = text_.read_again(others, &fits);
  if (!text.ok()) return text.error();
  // The mapping that a line is made into depends on these as well.
  const bool comparable =
      own.size() == own_count_ && had_forked_ == hooks::has_forked.load(std::memory_order_relaxed);
  if (fits && comparable) return take_changes(*text, own);
  CKPT_TRY(fits ? take_text(*text, own) : read(own));
  if (flags_of_ != nullptr) copy_flags_from(*flags_of_);
  return {};
}

Result<void> MemoryMap::take_changes(std::string_view text, std::span<const AddrRange> own) {
  const std::string_view earlier = text_.ahead();
  const TextChange change = find_change(earlier, text);
  if (change.none(earlier, text)) return {};
  std::string_view gone = earlier.substr(change.start, change.before_end - change.start);
  std::string_view added = text.substr(change.start, change.after_end - change.start);
  // [vdso] and [vvar] stand for more than a mapping.
  if (gone.find("[v") != gone.npos || added.find("[v") != added.npos) {
    CKPT_TRY(take_text(text, own));
    if (flags_of_ != nullptr) copy_flags_from(*flags_of_);
    return {};
  }

  // The mapping made of a line lies where the line says, and both are in address order.
  auto index_of_line = [&](size_t at) {
    std::string_view rest = earlier.substr(at);
    if (rest.empty()) return mappings_.size();
    const Addr start{take_hex(rest)};
    return static_cast<size_t>(std::lower_bound(mappings_.begin(), mappings_.end(), start,
                                                [](const Mapping& m, Addr a) { return m.range.start < a; }) -
                               mappings_.begin());
  };
  const size_t first = index_of_line(change.start), last = index_of_line(change.before_end);
  // add_line() appends to mappings_: for these lines that is a list of their own.
  ArenaVector<Mapping> all = mappings_;
  mappings_ = ArenaVector<Mapping>(*arena_);
  size_t whole;
  CKPT_TRY(for_each_line(added, &whole, [&](std::string_view line) { return add_line(line, own); }));
  if (flags_of_ != nullptr) copy_flags_from(*flags_of_);
  if (!all.replace(first, last, mappings_.data(), mappings_.size())) return no_memory();
  mappings_ = all;
  // An object that is mapped once now and was mapped twice stays as it was: to copy it in the pause is never
  // wrong.
  return find_shared_twice();
}

Result<void> MemoryMap::read_flags() {
  // One mapping of the kernel's may be several of ours: what we map beside memory of the program, with the
  // same flags, the kernel joins with it.
  std::span<Mapping> current;
  size_t next = 0;
  uint64_t page_kib = 4;
  return for_each_line_of("/proc/thread-self/smaps", *arena_, [&](std::string_view line) -> Result<void> {
    constexpr std::string_view kPageSizeKey = "KernelPageSize:";  // before the flags
    if (line.starts_with(kPageSizeKey)) {
      numbers(line.substr(kPageSizeKey.size()), 10, &page_kib, 1);
      return {};
    }
    if (line.starts_with("VmFlags:")) {
      struct Name {
        const char* name;
        uint32_t flag;
      };
      static constexpr Name kNames[] = {
          {" gd", kMapGrowsDown},  {" ht", kMapHugeTlb},     {" nr", kMapNoReserve},  {" lo", kMapLocked},
          {" dc", kMapDontFork},   {" dd", kMapDontDump},    {" wf", kMapWipeOnFork}, {" hg", kMapHugePage},
          {" nh", kMapNoHugePage}, {" mg", kMapMergeable},   {" sr", kMapSequential}, {" rr", kMapRandom},
          {" mw", kMapMayWrite},   {" lf", kMapLockOnFault}, {" sl", kMapSealed},     {" dp", kMapDroppable},
          {" gu", kMapGuarded}};
      uint32_t flags = 0;
      for (const Name& n : kNames) {
        if (line.find(n.name) != std::string_view::npos) flags |= n.flag;
      }
      for (Mapping& m : current) {
        m.map_flags |= flags;
        if ((m.map_flags & kMapHugeTlb) != 0) m.page_size = static_cast<uint32_t>(page_kib << 10);
      }
      return {};
    }
    // A header line begins with an address in lower-case hex; every other line with a capital letter.
    if (line.empty() || (line[0] >= 'A' && line[0] <= 'Z')) return {};
    std::string_view s = line;
    const Addr start{take_hex(s)};
    if (!s.empty()) s.remove_prefix(1);
    const Addr end{take_hex(s)};
    while (next < mappings_.size() && mappings_[next].range.start < start) ++next;
    const size_t first = next;
    while (next < mappings_.size() && mappings_[next].range.end <= end) ++next;
    current = {mappings_.data() + first, next - first};
    return {};
  });
}

void MemoryMap::copy_special_pages_eagerly() {
  for (Mapping& m : mappings_) {
    if (m.handling == Handling::kTracked && (m.map_flags & (kMapHugeTlb | kMapMergeable)) != 0)
      m.handling = Handling::kEager;
  }
}

bool MemoryMap::has_pinned_pages() const {
  for (const Mapping& m : mappings_) {
    const std::string_view path(m.path, m.path_len);
    for (std::string_view holder :
         {"anon_inode:[io_uring]", "/[aio]", "/dev/infiniband/", "/dev/vfio/", "/dev/nvidia"}) {
      if (path.substr(0, holder.size()) == holder) return true;
    }
  }
  return false;
}

void MemoryMap::copy_flags_from(const MemoryMap& earlier) {
  if (mappings_.empty()) return;
  size_t j = mapping_at(earlier.mappings(), mappings_[0].range.start);
  for (Mapping& m : mappings_) {
    while (j < earlier.mappings_.size() && earlier.mappings_[j].range.end <= m.range.start) ++j;
    if (j == earlier.mappings_.size()) return;
    const Mapping& e = earlier.mappings_[j];
    if (e.range.overlaps(m.range) && e.inode == m.inode && e.shared == m.shared) {
      m.map_flags |= e.map_flags;
      m.page_size = e.page_size;
    }
  }
}

void MemoryMap::remember_flags_of(const MemoryMap& earlier) {
  flags_of_ = &earlier;
  copy_flags_from(earlier);
}

size_t mapping_at(std::span<const Mapping> map, Addr a) {
  auto ends_before = [](const Mapping& m, Addr at) { return m.range.end <= at; };
  return static_cast<size_t>(std::lower_bound(map.begin(), map.end(), a, ends_before) - map.begin());
}

const Mapping* MemoryMap::find(Addr a) const {
  const size_t i = mapping_at(mappings(), a);
  return i < mappings_.size() && mappings_[i].range.contains(a) ? &mappings_[i] : nullptr;
}

// Nothing is written: MS_ASYNC only looks for holes.
bool is_mapped(AddrRange range) {
  return sys::call(__NR_msync, range.start.value, range.size(), static_cast<long>(MS_ASYNC)) == 0;
}

}  // namespace ckpt
