#include "cli/image/image_diff.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "cli/image/record_names.h"
#include "image/read/saved_memory.h"

namespace ckpt::cli {

namespace {

constexpr size_t kCompareBytes = 1u << 20;

class Comparer {
 public:
  Comparer(const ImageChain& a, const ImageChain& b, const DiffProgress& progress)
      : a_(a.meta()),
        b_(b.meta()),
        a_memory_(a),
        b_memory_(b),
        progress_(progress),
        total_(a.memory_bytes() + b.memory_bytes()) {}

  Result<ImageDiff> compare() {
    compare_process();
    compare_threads();
    compare_descriptors();
    CKPT_TRY(compare_mappings());
    return std::move(diff_);
  }

 private:
  void compare_process() {
    auto& out = diff_.process;
    const ProcessRecord &p = a_.process.record, &q = b_.process.record;
    if (a_.process.comm != b_.process.comm || a_.mm.exe_path != b_.mm.exe_path) out.push_back("program");
    if (p.pid != q.pid) out.push_back(fmt::format("process id {} -> {}", p.pid, q.pid));
    if (std::memcmp(p.uid, q.uid, sizeof(p.uid)) != 0 || std::memcmp(p.gid, q.gid, sizeof(p.gid)) != 0) {
      out.push_back("user or group");
    }
    if (a_.process.cwd != b_.process.cwd) out.push_back("working directory");
    if (p.umask != q.umask) out.push_back(fmt::format("umask {:03o} -> {:03o}", p.umask, q.umask));
    if (std::memcmp(&a_.limits, &b_.limits, sizeof(a_.limits)) != 0) out.push_back("resource limits");
    std::map<uint32_t, std::pair<const SignalActionRecord*, const SignalActionRecord*>> actions;
    for (const auto& x : a_.actions) actions[x.signal].first = &x;
    for (const auto& x : b_.actions) actions[x.signal].second = &x;
    for (const auto& [signal, pair] : actions) {
      bool same = pair.first != nullptr && pair.second != nullptr &&
                  std::memcmp(pair.first, pair.second, sizeof(SignalActionRecord)) == 0;
      if (!same) out.push_back(fmt::format("action of {}", signal_text(static_cast<int>(signal))));
    }
    auto same_signal = [](const PendingSignalRecord& x, const PendingSignalRecord& y) {
      return x.tid == y.tid && x.signal == y.signal;
    };
    if (!std::equal(a_.pending.begin(), a_.pending.end(), b_.pending.begin(), b_.pending.end(),
                    same_signal)) {
      out.push_back("pending signals");
    }
  }

  static bool same_registers(const ThreadRecord& x, const ThreadRecord& y) {
    static_assert(offsetof(ThreadRecord, signal_mask) == offsetof(ThreadRecord, eflags) + 8);
    return x.fs_base == y.fs_base && x.gs_base == y.gs_base &&
           std::memcmp(&x.rax, &y.rax, offsetof(ThreadRecord, signal_mask) - offsetof(ThreadRecord, rax)) ==
               0;
  }

  static bool same_signal_stack(const ThreadRecord& x, const ThreadRecord& y) {
    return x.altstack_base == y.altstack_base && x.altstack_size == y.altstack_size &&
           x.altstack_flags == y.altstack_flags;
  }

  static bool same_scheduling(const ParsedThread& a, const ParsedThread& b) {
    const ThreadRecord &x = a.record, &y = b.record;
    return x.nice == y.nice && x.sched_policy == y.sched_policy && x.sched_priority == y.sched_priority &&
           x.sched_flags == y.sched_flags && x.sched_runtime == y.sched_runtime &&
           x.sched_deadline == y.sched_deadline && x.sched_period == y.sched_period &&
           std::equal(a.affinity.begin(), a.affinity.end(), b.affinity.begin(), b.affinity.end());
  }

  void compare_threads() {
    std::map<int, std::pair<const ParsedThread*, const ParsedThread*>> threads;
    for (const auto& t : a_.threads) threads[t.record.tid].first = &t;
    for (const auto& t : b_.threads) threads[t.record.tid].second = &t;
    for (const auto& [tid, pair] : threads) {
      auto [x, y] = pair;
      ThreadDiff d{tid, std::string(y != nullptr ? y->name : x->name), Change::kChanged, {}};
      if (x == nullptr || y == nullptr) {
        d.change = x == nullptr ? Change::kAdded : Change::kRemoved;
        diff_.threads.push_back(d);
        continue;
      }
      if (x->name != y->name) d.what.push_back(fmt::format("name {} -> {}", x->name, y->name));
      if (!same_registers(x->record, y->record)) d.what.push_back("registers");
      if (x->record.signal_mask != y->record.signal_mask) d.what.push_back("signal mask");
      if (x->record.flags != y->record.flags) d.what.push_back("exited");
      if (!same_signal_stack(x->record, y->record)) d.what.push_back("signal stack");
      if (!same_scheduling(*x, *y)) d.what.push_back("scheduling");
      if (!d.what.empty()) diff_.threads.push_back(d);
    }
  }

  // All that is saved of an open file's contents, in the order of the records.
  static std::string contents_of(const ImageMeta& meta, uint32_t open_file) {
    std::string all;
    for (const auto& c : meta.contents) {
      if (c.record.open_file != open_file) continue;
      all += fmt::format("{}:", c.record.offset);
      all.append(reinterpret_cast<const char*>(c.bytes.data()), c.bytes.size());
    }
    return all;
  }

  void compare_descriptors() {
    std::map<int, std::pair<const DescriptorRecord*, const DescriptorRecord*>> descriptors;
    for (const auto& d : a_.descriptors) descriptors[d.fd].first = &d;
    for (const auto& d : b_.descriptors) descriptors[d.fd].second = &d;
    for (const auto& [fd, pair] : descriptors) {
      auto [x, y] = pair;
      const ParsedOpenFile* f = x != nullptr ? a_.open_file(x->open_file) : nullptr;
      const ParsedOpenFile* g = y != nullptr ? b_.open_file(y->open_file) : nullptr;
      const ParsedOpenFile* any = g != nullptr ? g : f;
      DescriptorDiff d{fd, std::string(any->path), any->record.kind, Change::kChanged, {}};
      if (f == nullptr || g == nullptr) {
        d.change = f == nullptr ? Change::kAdded : Change::kRemoved;
        diff_.descriptors.push_back(d);
        continue;
      }
      const OpenFileRecord &r = f->record, &s = g->record;
      if (r.kind != s.kind || f->path != g->path || r.device != s.device || r.inode != s.inode)
        d.what.push_back("another file");
      if (x->fd_flags != y->fd_flags || r.open_flags != s.open_flags) d.what.push_back("flags");
      if (r.offset != s.offset) d.what.push_back(fmt::format("offset {} -> {}", r.offset, s.offset));
      if (r.size != s.size) d.what.push_back(fmt::format("size {} -> {}", r.size, s.size));
      if (r.value != s.value) d.what.push_back("value");
      if (contents_of(a_, r.id) != contents_of(b_, s.id)) d.what.push_back("contents");
      if (!d.what.empty()) diff_.descriptors.push_back(d);
    }
  }

  // The end that stays where it is when a mapping grows: stacks grow down, everything else up.
  static std::pair<uint64_t, bool> anchor(const ParsedMapping& m) {
    bool down = (m.record.flags & kMapGrowsDown) != 0 || m.path == "[stack]";
    return {down ? m.record.end : m.record.start, down};
  }

  Result<void> compare_mappings() {
    std::map<std::pair<uint64_t, bool>, std::pair<const ParsedMapping*, const ParsedMapping*>> mappings;
    for (const auto& m : a_.mappings) mappings[anchor(m)].first = &m;
    for (const auto& m : b_.mappings) mappings[anchor(m)].second = &m;
    for (const auto& [at, pair] : mappings) {
      auto [x, y] = pair;
      const ParsedMapping& m = y != nullptr ? *y : *x;
      if (static_cast<MappingKind>(m.record.kind) == MappingKind::kLibraryOwned) continue;
      MappingDiff d{m.record.start, m.record.end, std::string(m.path), m.record.kind, Change::kChanged, {}};
      if (x == nullptr || y == nullptr) {
        d.change = x == nullptr ? Change::kAdded : Change::kRemoved;
        SavedMemory& memory = x == nullptr ? b_memory_ : a_memory_;
        for (const AddrRange& run : memory.stored_in({{d.start}, {d.end}}))
          d.pages_different += run.size() / kPageSize;
        diff_.mappings.push_back(d);
        continue;
      }
      describe_change(*x, *y, &d.what);
      if (((x->record.flags ^ y->record.flags) & kMapElsewhere) != 0)
        d.what.push_back("saved by another process, not compared");
      AddrRange both{{std::max(x->record.start, y->record.start)}, {std::min(x->record.end, y->record.end)}};
      // Of what another member has saved only its own image tells.
      if (!both.empty() && ((x->record.flags | y->record.flags) & kMapElsewhere) == 0) {
        d.pages = both.size() / kPageSize;
        bool from_file = is_file(*x) || is_file(*y);
        auto pages = different_pages(both, from_file);
        if (!pages.ok()) return pages.error();
        d.pages_different = *pages;
        diff_.pages_different += *pages;
      }
      if (!d.what.empty() || d.pages_different != 0) diff_.mappings.push_back(d);
    }
    return {};
  }

  static bool is_file(const ParsedMapping& m) {
    auto kind = static_cast<MappingKind>(m.record.kind);
    return kind == MappingKind::kFilePrivate || kind == MappingKind::kFileShared;
  }

  static void describe_change(const ParsedMapping& x, const ParsedMapping& y,
                              std::vector<std::string>* what) {
    const MappingRecord &r = x.record, &s = y.record;
    uint64_t before = r.end - r.start, after = s.end - s.start;
    if (before != after) what->push_back(fmt::format("size {} -> {}", before, after));
    if (r.prot != s.prot)
      what->push_back(fmt::format("protection {} -> {}", protection_text(r.prot, false).substr(0, 3),
                                  protection_text(s.prot, false).substr(0, 3)));
    if (r.kind != s.kind || x.path != y.path || r.object != s.object) what->push_back("another object");
    if (r.file_offset != s.file_offset) what->push_back("offset");
    if (((r.flags ^ s.flags) & ~uint32_t{kMapElsewhere}) != 0) what->push_back("flags");
    if (is_file(x) && is_file(y) && x.path == y.path &&
        (r.device != s.device || r.inode != s.inode || r.file_hash != s.file_hash ||
         r.file_mtime_ns != s.file_mtime_ns ||
         !std::equal(x.build_id.begin(), x.build_id.end(), y.build_id.begin(), y.build_id.end()))) {
      what->push_back("the file itself");
    }
  }

  // Pages that are in neither image are the same in both. A page that is in one image only: in a mapped file
  // it differs, for the other image means the file's page; elsewhere the other has zeros, and the contents
  // decide.
  Result<uint64_t> different_pages(AddrRange range, bool from_file) {
    auto in_a = a_memory_.stored_in(range), in_b = b_memory_.stored_in(range);
    std::vector<Addr> cuts;
    for (const auto& run : in_a) cuts.insert(cuts.end(), {run.start, run.end});
    for (const auto& run : in_b) cuts.insert(cuts.end(), {run.start, run.end});
    std::sort(cuts.begin(), cuts.end());
    uint64_t pages = 0;
    size_t i = 0, j = 0;
    for (size_t c = 0; c + 1 < cuts.size(); c++) {
      AddrRange piece{cuts[c], cuts[c + 1]};
      if (piece.empty()) continue;
      while (i < in_a.size() && in_a[i].end <= piece.start) i++;
      while (j < in_b.size() && in_b[j].end <= piece.start) j++;
      bool a_has = i < in_a.size() && in_a[i].start <= piece.start;
      bool b_has = j < in_b.size() && in_b[j].start <= piece.start;
      if (!a_has && !b_has) continue;
      if (from_file && a_has != b_has) {
        pages += piece.size() / kPageSize;
        continue;
      }
      auto n = compare_bytes(piece);
      if (!n.ok()) return n.error();
      pages += *n;
    }
    return pages;
  }

  Result<uint64_t> compare_bytes(AddrRange range) {
    a_bytes_.resize(kCompareBytes);
    b_bytes_.resize(kCompareBytes);
    uint64_t pages = 0;
    for (Addr at = range.start; at < range.end;) {
      size_t n = std::min<uint64_t>(kCompareBytes, range.end - at);
      CKPT_TRY(a_memory_.read(at, std::span(a_bytes_).first(n)));
      CKPT_TRY(b_memory_.read(at, std::span(b_bytes_).first(n)));
      for (size_t page = 0; page < n; page += kPageSize) {
        pages += std::memcmp(&a_bytes_[page], &b_bytes_[page], kPageSize) != 0;
      }
      at = at + n;
      done_ += 2 * n;
      if (progress_) progress_(done_, total_);
    }
    return pages;
  }

  const ImageMeta &a_, &b_;
  SavedMemory a_memory_, b_memory_;
  const DiffProgress& progress_;
  std::vector<std::byte> a_bytes_, b_bytes_;
  uint64_t done_ = 0, total_;
  ImageDiff diff_;
};

}  // namespace

Result<ImageDiff> compare_images(const ImageChain& a, const ImageChain& b, const DiffProgress& progress) {
  return Comparer(a, b, progress).compare();
}

}  // namespace ckpt::cli
