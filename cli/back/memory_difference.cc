#include "cli/back/memory_difference.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "base/machine/droppable_memory.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

constexpr uint64_t page_up(uint64_t a) { return (a + kPageSize - 1) & ~(kPageSize - 1); }

MappingKind kind_of(const ParsedMapping& m) { return static_cast<MappingKind>(m.record.kind); }

bool is_shared(const ParsedMapping& m) {
  switch (kind_of(m)) {
    case MappingKind::kFileShared:
    case MappingKind::kSharedAnonymous:
    case MappingKind::kSysV:
      return true;
    case MappingKind::kMemfd:
    case MappingKind::kDevice:
      return (m.record.flags & kMapPrivate) == 0;
    default:
      return false;
  }
}

bool is_file(const ParsedMapping& m) {
  return kind_of(m) == MappingKind::kFilePrivate || kind_of(m) == MappingKind::kFileShared;
}

uint64_t offset_at(const ParsedMapping& m, uint64_t at) {
  return m.record.file_offset + (at - m.record.start);
}

// Would the same bytes in both be the same memory?
bool same_object(const ParsedMapping& a, const ParsedMapping& b, uint64_t at) {
  if (a.record.kind != b.record.kind || a.record.page_size != b.record.page_size ||
      is_shared(a) != is_shared(b))
    return false;
  if (kind_of(a) == MappingKind::kAnonymous)
    return ((a.record.flags ^ b.record.flags) & kMapDroppable) == 0 || !kernel_has_droppable_memory();
  if (offset_at(a, at) != offset_at(b, at)) return false;
  return is_file(a) || kind_of(a) == MappingKind::kDevice
             ? a.record.device == b.record.device && a.record.inode == b.record.inode
             : a.record.object == b.record.object;
}

bool is_to_be_droppable(const ParsedMapping& m) {
  return (m.record.flags & kMapDroppable) != 0 && kernel_has_droppable_memory();
}

std::string where(uint64_t start, uint64_t end) { return fmt::format("memory {:x}-{:x}", start, end); }

class MemoryComparison {
 public:
  MemoryComparison(const ImageChain& image, const ImageMeta& now, const std::vector<AddrRange>& unwritten,
                   const std::vector<AddrRange>& own, const std::vector<AddrRange>& parts, AddrRange late,
                   const std::set<uint64_t>& shared)
      : image_(image),
        now_(now),
        unwritten_(unwritten),
        own_(own),
        parts_(parts),
        late_(late),
        shared_(shared) {}

  Result<MemoryDifference> run() {
    CKPT_TRY(check_own());
    CKPT_TRY(check_asynchronous());
    list_then();
    list_now();
    move_brk();
    find_broken();
    std::set<uint64_t> borders;
    for (const auto& m : then_mappings_) borders.insert({m.record.start, m.record.end});
    for (const auto& m : now_mappings_) borders.insert({m.record.start, m.record.end});
    size_t was = 0, is = 0;
    const auto& then = then_mappings_;
    for (auto b = borders.begin(); b != borders.end() && std::next(b) != borders.end(); ++b) {
      const uint64_t start = *b, end = *std::next(b);
      while (was < then.size() && then[was].record.end <= start) ++was;
      while (is < now_mappings_.size() && now_mappings_[is].record.end <= start) ++is;
      const ParsedMapping* i = was < then.size() && then[was].record.start <= start ? &then[was] : nullptr;
      const ParsedMapping* n =
          is < now_mappings_.size() && now_mappings_[is].record.start <= start ? &now_mappings_[is] : nullptr;
      CKPT_TRY(compare(start, end, i, n));
    }
    drop_holes();
    MemoryDifference result;
    for (auto* part : {&unmap_, &brk_, &map_, &protect_, &writable_, &drop_, &late_drop_})
      result.ops.insert(result.ops.end(), part->begin(), part->end());
    result.wanted = wanted_memory(image_, unwritten_);
    return result;
  }

 private:
  using Op = MemoryDifference::Op;
  static constexpr std::string_view kRing = "anon_inode:[io_uring]";

  Result<void> check_own() const {
    for (const auto& m : image_.meta().mappings) {
      for (const AddrRange& r : own_) {
        if (r.start.value >= m.record.end || r.end.value <= m.record.start) continue;
        return failure(ExitCode::kUnavailable, where(m.record.start, m.record.end),
                       "is where the library has its own memory now", "restart the image with ckpt-restart");
      }
    }
    return {};
  }

  // The kernel has the ring's counters by numbers of its own as well.
  Result<void> check_asynchronous() const {
    for (const ImageMeta* meta : {&image_.meta(), &now_}) {
      for (const auto& m : meta->mappings) {
        const std::string_view path = m.path;
        if (!path.starts_with("/[aio]") && path != kRing) continue;
        return failure(ExitCode::kUnsupported, where(m.record.start, m.record.end),
                       path == kRing
                           ? "is an io_uring, which cannot go back in place"
                           : "is a context of asynchronous I/O (io_setup), which cannot go back in place",
                       "restart the image with ckpt-restart");
      }
      for (const auto& f : meta->open_files) {
        if (f.path == kRing)
          return failure(ExitCode::kUnsupported, "the program",
                         "has an io_uring, which cannot go back in place",
                         "restart the image with ckpt-restart");
      }
    }
    return {};
  }

  // The kernel joins memory of the program with that of the library where they adjoin: there a mapping is
  // divided, for the library's own part cannot be made again.
  void list_then() {
    for (const ParsedMapping& m : image_.meta().mappings) {
      uint64_t at = m.record.start;
      for (const uint64_t border : {late_.start.value, late_.end.value, m.record.end}) {
        const uint64_t end = std::min(border, m.record.end);
        if (end <= at) continue;
        then_mappings_.push_back(m);
        then_mappings_.back().record.file_offset += at - m.record.start;
        then_mappings_.back().record.start = at;
        then_mappings_.back().record.end = end;
        at = end;
      }
    }
  }

  void list_now() { now_mappings_ = now_.mappings; }

  // The kernel knows the end of the heap by a number of its own.
  void move_brk() {
    const uint64_t was = image_.meta().mm.record.brk, is = now_.mm.record.brk;
    if (was == is || image_.meta().mm.record.start_brk != now_.mm.record.start_brk) return;
    const uint64_t from = page_up(std::min(was, is)), to = page_up(std::max(was, is));
    brk_.push_back({{static_cast<uint32_t>(BackMemory::kBrk), 0, was, 0}, ""});
    if (from == to) return;
    if (is > was) {
      std::vector<ParsedMapping> changed;
      for (const ParsedMapping& m : now_mappings_) {
        for (auto [start, end] : {std::pair(m.record.start, std::min(m.record.end, from)),
                                  std::pair(std::max(m.record.start, to), m.record.end)}) {
          if (start >= end) continue;
          changed.push_back(m);
          changed.back().record.file_offset += start - m.record.start;
          changed.back().record.start = start;
          changed.back().record.end = end;
        }
      }
      now_mappings_ = std::move(changed);
      return;
    }
    ParsedMapping grown{};
    grown.record.start = from;
    grown.record.end = to;
    grown.record.prot = PROT_READ | PROT_WRITE;
    grown.record.page_size = kPageSize;
    // A mapping that the program has made there since is unmapped first.
    std::vector<ParsedMapping> changed;
    for (const ParsedMapping& m : now_mappings_) {
      if (m.record.end <= from || m.record.start >= to) {
        changed.push_back(m);
        continue;
      }
      add(unmap_, BackMemory::kUnmap, std::max(m.record.start, from), std::min(m.record.end, to), 0);
      if (m.record.start < from) {
        changed.push_back(m);
        changed.back().record.end = from;
      }
      if (m.record.end > to) {
        changed.push_back(m);
        changed.back().record.file_offset += to - m.record.start;
        changed.back().record.start = to;
      }
    }
    changed.push_back(grown);
    std::sort(changed.begin(), changed.end(),
              [](const auto& a, const auto& b) { return a.record.start < b.record.start; });
    now_mappings_ = std::move(changed);
  }

  // The kernel has the mapping in several parts, one of which has no unwritten memory: the program may have
  // unmapped that part since, and mapped it again.
  bool has_new_part(const ParsedMapping& m) const {
    const AddrRange all{Addr{m.record.start}, Addr{m.record.end}};
    auto part = std::lower_bound(parts_.begin(), parts_.end(), all.start,
                                 [](const AddrRange& p, Addr at) { return p.end <= at; });
    if (part == parts_.end() || (part->start <= all.start && part->end >= all.end)) return false;
    for (; part != parts_.end() && part->start < all.end; ++part) {
      const auto unwritten = std::lower_bound(unwritten_.begin(), unwritten_.end(), part->start,
                                              [](const AddrRange& u, Addr at) { return u.end <= at; });
      if (unwritten == unwritten_.end() || unwritten->start >= part->end) return true;
    }
    return false;
  }

  // A mapping of which a part is gone is made again as a whole. The kernel would not join a new part with the
  // old ones, and mremap(2) takes no more than one mapping.
  void find_broken() {
    size_t n = 0;
    for (const ParsedMapping& m : then_mappings_) {
      while (n < now_mappings_.size() && now_mappings_[n].record.end <= m.record.start) ++n;
      if (kind_of(m) != MappingKind::kAnonymous && kind_of(m) != MappingKind::kFilePrivate) continue;
      if (m.path == "[heap]" || m.path == "[stack]") continue;
      // The library, which carries this out, cannot unmap itself.
      if (late_.overlaps({Addr{m.record.start}, Addr{m.record.end}})) continue;
      uint64_t there = 0;
      for (size_t i = n; i < now_mappings_.size() && now_mappings_[i].record.start < m.record.end; ++i) {
        const uint64_t start = std::max(m.record.start, now_mappings_[i].record.start);
        if (same_object(m, now_mappings_[i], start))
          there += std::min(m.record.end, now_mappings_[i].record.end) - start;
      }
      if ((there != 0 && there != m.record.end - m.record.start) || has_new_part(m)) broken_.insert(&m);
    }
    if (broken_.empty()) return;
    std::vector<AddrRange> left;
    for (AddrRange range : unwritten_) {
      for (const ParsedMapping* m : broken_) {
        if (m->record.end <= range.start.value || m->record.start >= range.end.value) continue;
        if (range.start.value < m->record.start) left.push_back({range.start, Addr{m->record.start}});
        range.start = Addr{std::min(m->record.end, range.end.value)};
      }
      if (range.start < range.end) left.push_back(range);
    }
    unwritten_ = std::move(left);
  }

  void add(std::vector<Op>& to, BackMemory kind, uint64_t start, uint64_t end, uint32_t prot) {
    if (!to.empty()) {
      BackMemoryOp& last = to.back().op;
      if (last.kind == static_cast<uint32_t>(kind) && last.start + last.length == start &&
          last.prot == prot) {
        last.length += end - start;
        return;
      }
    }
    to.push_back({{static_cast<uint32_t>(kind), prot, start, end - start}, ""});
  }

  Result<void> compare(uint64_t start, uint64_t end, const ParsedMapping* i, const ParsedMapping* n) {
    if (i == nullptr && n == nullptr) return {};
    if (i == nullptr) {
      // A stack that has grown stays so, and is empty there.
      if (n->path == "[stack]")
        dropped_.push_back({Addr{start}, Addr{end}});
      else
        add(unmap_, BackMemory::kUnmap, start, end, 0);
      return {};
    }
    if (broken_.count(i) != 0) {
      if (n != nullptr) add(unmap_, BackMemory::kUnmap, start, end, 0);
      return start == i->record.start ? map_again(*i, start, i->record.end) : Result<void>();
    }
    if (n != nullptr && same_object(*i, *n, start)) {
      if (i->record.prot != n->record.prot) add(protect_, BackMemory::kProtect, start, end, i->record.prot);
      if ((i->record.flags & kMapElsewhere) != 0) return {};  // its saver puts it back
      make_writable(*i, start, end);
      const uint32_t either = i->record.prot | n->record.prot;
      const bool kernel_made = kind_of(*i) == MappingKind::kDevice || kind_of(*i) == MappingKind::kFileShared;
      // A file's mapping without PROT_WRITE, then and now, cannot have been written: it is as it was.
      if (kernel_made || ((either & PROT_WRITE) == 0 && is_file(*i))) return {};
      if (is_shared(*i))
        zeroed_.push_back({Addr{start}, Addr{end}});
      else
        dropped_.push_back({Addr{start}, Addr{end}});
      return {};
    }
    if (n != nullptr) add(unmap_, BackMemory::kUnmap, start, end, 0);
    CKPT_TRY(map_again(*i, start, end));
    make_writable(*i, start, end);
    return {};
  }

  // Shared memory cannot be written through a mapping that may only be read, not even by the kernel.
  void make_writable(const ParsedMapping& m, uint64_t start, uint64_t end) {
    if (!is_shared(m) || kind_of(m) == MappingKind::kDevice || (m.record.prot & PROT_WRITE) != 0) return;
    const auto pieces = image_.pieces();
    const auto piece =
        std::lower_bound(pieces.begin(), pieces.end(), start,
                         [](const MemoryPiece& p, uint64_t at) { return p.address.value + p.length <= at; });
    const bool filled = piece != pieces.end() && piece->address.value < end;
    if (filled || kind_of(m) != MappingKind::kFileShared)
      add(writable_, BackMemory::kWritable, start, end, m.record.prot);
  }

  Result<void> map_again(const ParsedMapping& m, uint64_t start, uint64_t end) {
    BackMemoryOp op{static_cast<uint32_t>(BackMemory::kMap), m.record.prot, start, end - start};
    std::string path;
    switch (kind_of(m)) {
      case MappingKind::kAnonymous:
        op.flags = MAP_ANONYMOUS | (is_to_be_droppable(m) ? MAP_DROPPABLE : MAP_PRIVATE);
        if ((m.record.flags & kMapGrowsDown) != 0) op.flags |= MAP_GROWSDOWN;
        break;
      case MappingKind::kSharedAnonymous:
        CKPT_TRY(check_alone(m));
        op.flags = MAP_SHARED | MAP_ANONYMOUS;
        break;
      case MappingKind::kFilePrivate:
      case MappingKind::kFileShared: {
        path = std::string(m.path);
        struct stat st;
        if (stat(path.c_str(), &st) != 0 || st.st_ino != m.record.inode || st.st_dev != m.record.device) {
          return failure(ExitCode::kFileChanged, path,
                         "was mapped, is not any more, and is another file now or gone",
                         "put it back, or restart the image with ckpt-restart");
        }
        const bool shared = kind_of(m) == MappingKind::kFileShared;
        op.flags = shared ? MAP_SHARED : MAP_PRIVATE;
        op.open_flags = shared && (m.record.flags & kMapMayWrite) != 0 ? O_RDWR : O_RDONLY;
        op.offset = offset_at(m, start);
        op.device = m.record.device;
        op.inode = m.record.inode;
        break;
      }
      case MappingKind::kDevice:
        path = std::string(m.path);
        op.flags = (m.record.flags & kMapPrivate) != 0 ? MAP_PRIVATE : MAP_SHARED;
        op.open_flags = (m.record.prot & PROT_WRITE) != 0 ? O_RDWR : O_RDONLY;
        op.offset = offset_at(m, start);
        break;
      default:
        return failure(
            ExitCode::kUnsupported, where(start, end),
            is_shared(m) ? fmt::format("was shared memory ({}), which the program has unmapped since", m.path)
                         : fmt::format("was a private mapping of a memfd ({}), which the program has "
                                       "unmapped since, or has no descriptor of any more",
                                       m.path),
            "restart the image with ckpt-restart");
    }
    if ((m.record.flags & kMapNoReserve) != 0) op.flags |= MAP_NORESERVE;
    if ((m.record.flags & kMapHugeTlb) != 0) op.flags |= MAP_HUGETLB;
    map_.push_back({op, path});
    constexpr std::pair<uint32_t, int> kAdvice[] = {
        {kMapHugePage, MADV_HUGEPAGE},     {kMapNoHugePage, MADV_NOHUGEPAGE}, {kMapDontFork, MADV_DONTFORK},
        {kMapDontDump, MADV_DONTDUMP},     {kMapWipeOnFork, MADV_WIPEONFORK}, {kMapMergeable, MADV_MERGEABLE},
        {kMapSequential, MADV_SEQUENTIAL}, {kMapRandom, MADV_RANDOM}};
    for (auto [flag, advice] : kAdvice) {
      if ((m.record.flags & flag) == 0) continue;
      map_.push_back(
          {{static_cast<uint32_t>(BackMemory::kAdvise), static_cast<uint32_t>(advice), start, end - start},
           ""});
    }
    return {};
  }

  // Shared memory made again is another object: refused if the program maps the old one elsewhere, too.
  Result<void> check_alone(const ParsedMapping& m) const {
    size_t views = 0;
    for (const auto& other : image_.meta().mappings) views += other.record.object == m.record.object;
    if (shared_.count(m.record.object) != 0) {
      return failure(ExitCode::kUnsupported, where(m.record.start, m.record.end),
                     "was memory shared with other processes of the job, and has been unmapped since",
                     "restart the job with ckpt-restart");
    }
    if (views == 1) return {};
    return failure(
        ExitCode::kUnsupported, where(m.record.start, m.record.end),
        "was shared memory that is mapped more than once, and the program has unmapped some of it since",
        "restart the image with ckpt-restart");
  }

  // The library's own data is in use until its fills come, so it is dropped late. No operation spans its
  // border.
  void drop(BackMemory kind, AddrRange range) {
    const AddrRange before{range.start, std::min(range.end, late_.start)};
    const AddrRange behind{std::max(range.start, late_.end), range.end};
    const AddrRange own{std::max(range.start, late_.start), std::min(range.end, late_.end)};
    for (AddrRange r : {before, behind}) {
      if (r.start < r.end) add(drop_, kind, r.start.value, r.end.value, 0);
    }
    if (own.start >= own.end) return;
    add(late_drop_, kind, own.start.value, own.end.value, 0);
    late_drop_.back().op.late = 1;
  }

  // Drops pages that have come since the checkpoint. Pages that will be filled need not be dropped.
  void drop_holes() {
    for (auto [list, kind] :
         {std::pair(&dropped_, BackMemory::kDrop), std::pair(&zeroed_, BackMemory::kZero)}) {
      size_t p = 0, u = 0;
      for (const AddrRange& range : *list) {
        const auto pieces = image_.pieces();
        uint64_t at = range.start.value;
        const uint64_t end = range.end.value;
        while (at < end) {
          while (p < pieces.size() && pieces[p].address.value + pieces[p].length <= at) ++p;
          while (u < unwritten_.size() && unwritten_[u].end.value <= at) ++u;
          // The next memory that stays: a piece of the image, or unwritten memory.
          uint64_t next = end, behind = end;
          if (p < pieces.size() && pieces[p].address.value < next) {
            next = std::max(at, pieces[p].address.value);
            behind = pieces[p].address.value + pieces[p].length;
          }
          if (u < unwritten_.size() && std::max(at, unwritten_[u].start.value) < next) {
            next = std::max(at, unwritten_[u].start.value);
            behind = unwritten_[u].end.value;
          }
          if (at < next) drop(kind, {Addr{at}, Addr{next}});
          at = std::max(next, std::min(behind, end));
          if (next == end) break;
        }
      }
    }
  }

  const ImageChain& image_;
  const ImageMeta& now_;
  std::vector<AddrRange> unwritten_;
  const std::vector<AddrRange>&own_, &parts_;
  const AddrRange late_;
  const std::set<uint64_t>& shared_;
  struct ByAddress {
    bool operator()(const ParsedMapping* a, const ParsedMapping* b) const {
      return a->record.start < b->record.start;
    }
  };
  std::set<const ParsedMapping*, ByAddress> broken_;
  std::vector<ParsedMapping> then_mappings_, now_mappings_;
  std::vector<Op> unmap_, brk_, map_, protect_, writable_, drop_, late_drop_;
  std::vector<AddrRange> dropped_, zeroed_;
};

}  // namespace

std::vector<AddrRange> wanted_memory(const ImageChain& image, const std::vector<AddrRange>& unwritten) {
  std::vector<AddrRange> wanted;
  size_t u = 0;
  auto add = [&](uint64_t start, uint64_t end) {
    if (start >= end) return;
    if (!wanted.empty() && wanted.back().end.value == start)
      wanted.back().end = Addr{end};
    else
      wanted.push_back({Addr{start}, Addr{end}});
  };
  for (const MemoryPiece& p : image.pieces()) {
    uint64_t at = p.address.value;
    const uint64_t end = at + p.length;
    while (u < unwritten.size() && unwritten[u].end.value <= at) ++u;
    for (size_t v = u; at < end && v < unwritten.size() && unwritten[v].start.value < end; ++v) {
      add(at, unwritten[v].start.value);
      at = std::max(at, unwritten[v].end.value);
    }
    add(at, end);
  }
  return wanted;
}

Result<MemoryDifference> compare_memory(const ImageChain& image, const ImageMeta& now,
                                        const std::vector<AddrRange>& unwritten,
                                        const std::vector<AddrRange>& own,
                                        const std::vector<AddrRange>& parts, AddrRange late,
                                        const std::set<uint64_t>& shared) {
  return MemoryComparison(image, now, unwritten, own, parts, late, shared).run();
}

}  // namespace ckpt::cli
