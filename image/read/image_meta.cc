#include "image/read/image_meta.h"

#include <algorithm>
#include <unordered_set>

#include "base/memory/bytes.h"
#include "base/units.h"
#include "image/format/io_error.h"

namespace ckpt {

namespace {

constexpr uint64_t kUserAddressEnd = 1ull << 56;  // with five-level page tables
constexpr uint32_t kMaxGroups = 65536;            // NGROUPS_MAX

// Collects what is wrong first; later checks of the same record do no harm.
class MetaParser {
 public:
  MetaParser(Blob bytes, const char* path) : in_(bytes), all_(bytes.size()), path_(path) {}

  Result<ImageMeta> parse() {
    while (in_.left() > 0 && !at_end_) {
      record_start_ = all_ - in_.left();
      auto header = in_.get<RecordHeader>();
      if (!in_.ok() || header.length > in_.left() || header.length % 8 != 0) {
        return damaged("a record is longer than the section");
      }
      ByteReader body(in_.take(header.length));
      if (const char* wrong = one(static_cast<RecordType>(header.type), body)) return damaged(wrong);
    }
    if (!at_end_) return damaged("no end record");
    if (in_.left() > 0) return damaged("records after the end record");
    if (const char* wrong = check_whole()) return damaged(wrong);
    return std::move(meta_);
  }

 private:
  Error damaged(const char* what) {
    return make_error(ExitCode::kImageDamaged, 0,
                      "{}: damaged: META section, record at byte {}: {}; use an older image of this program",
                      shown_path(path_).text, record_start_, what);
  }

  // The fixed struct, cut or not: the *_len fields of a record that is too short are 0.
  template <typename T>
  static T fixed(ByteReader& body) {
    return body.get<T>();
  }
  std::string_view string(ByteReader& body, uint32_t n) {
    auto text = body.text(n);
    if (text.find('\0') != std::string_view::npos) bad_string_ = true;
    return text;
  }
  const char* finish(ByteReader& body) {
    if (!body.ok()) return "a record is shorter than its fields say";
    if (body.left() >= 8) return "a record is longer than its fields say";
    for (std::byte b : body.take(body.left())) {
      if (b != std::byte{0}) return "padding of a record is used";
    }
    if (bad_string_) return "a name contains a NUL";
    return nullptr;
  }
  template <typename T>
  const char* simple(ByteReader& body, std::vector<T>* to) {
    to->push_back(fixed<T>(body));
    return finish(body);
  }

  const char* one(RecordType type, ByteReader& body) {
    if (!has_process_ && type != RecordType::kProcess) return "the process record is not the first";
    switch (type) {
      case RecordType::kEnd:
        at_end_ = true;
        return finish(body);
      case RecordType::kProcess:
        return process(body);
      case RecordType::kMm:
        return mm(body);
      case RecordType::kMapping:
        return mapping(body);
      case RecordType::kThread:
        return thread(body);
      case RecordType::kSignalAction:
        return simple(body, &meta_.actions);
      case RecordType::kDescriptor:
        return simple(body, &meta_.descriptors);
      case RecordType::kOpenFile:
        return open_file(body);
      case RecordType::kFileContent:
        return content(body);
      case RecordType::kPosixTimer:
        return simple(body, &meta_.posix_timers);
      case RecordType::kIntervalTimers:
        if (meta_.has_interval_timers) return "a second record of interval timers";
        meta_.has_interval_timers = true;
        meta_.interval_timers = fixed<IntervalTimersRecord>(body);
        return finish(body);
      case RecordType::kResourceLimits:
        if (has_limits_) return "a second record of resource limits";
        has_limits_ = true;
        meta_.limits = fixed<ResourceLimitsRecord>(body);
        return finish(body);
      case RecordType::kPendingSignal:
        return simple(body, &meta_.pending);
      case RecordType::kNote:
        return note(body);
      case RecordType::kChild:
        return child(body);
      case RecordType::kSystemV:
        return system_v(body);
      case RecordType::kCost:
        if (has_cost_) return "a second record of costs";
        has_cost_ = true;
        meta_.cost = body.take(body.left());
        return nullptr;
    }
    return "unknown type of record";
  }

  const char* process(ByteReader& body) {
    if (has_process_) return "a second process record";
    has_process_ = true;
    auto& p = meta_.process;
    p.record = fixed<ProcessRecord>(body);
    if (p.record.group_count > kMaxGroups) return "too many groups";
    for (uint32_t i = 0; i < p.record.group_count && body.ok(); i++) p.groups.push_back(body.get<uint32_t>());
    p.cpu_features = body.take(p.record.cpu_features_len);
    p.cwd = string(body, p.record.cwd_len);
    p.root = string(body, p.record.root_len);
    p.comm = string(body, p.record.comm_len);
    p.library_path = string(body, p.record.library_path_len);
    if (p.record.pid <= 0) return "impossible process id";
    return finish(body);
  }

  const char* mm(ByteReader& body) {
    if (has_mm_) return "a second record of the memory description";
    has_mm_ = true;
    auto& m = meta_.mm;
    m.record = fixed<MmRecord>(body);
    m.auxv = body.take(m.record.auxv_len);
    m.exe_path = string(body, m.record.exe_path_len);
    return finish(body);
  }

  const char* mapping(ByteReader& body) {
    ParsedMapping m;
    m.record = fixed<MappingRecord>(body);
    m.path = string(body, m.record.path_len);
    m.build_id = body.take(m.record.build_id_len);
    if (const char* wrong = finish(body)) return wrong;
    const auto& r = m.record;
    if (r.start >= r.end || r.end > kUserAddressEnd || (r.start | r.end) % kPageSize != 0) {
      return "impossible addresses of a mapping";
    }
    if (!meta_.mappings.empty() && r.start < meta_.mappings.back().record.end) {
      return "mappings overlap or are out of order";
    }
    if (r.kind > static_cast<uint32_t>(MappingKind::kLibraryOwned)) return "unknown kind of mapping";
    if (r.page_size < kPageSize || (r.page_size & (r.page_size - 1)) != 0) return "impossible page size";
    if (r.file_offset % kPageSize != 0 || r.file_offset > INT64_MAX - (r.end - r.start)) {
      return "impossible file offset of a mapping";
    }
    meta_.mappings.push_back(m);
    return nullptr;
  }

  const char* thread(ByteReader& body) {
    ParsedThread t;
    t.record = fixed<ThreadRecord>(body);
    t.name = string(body, t.record.name_len);
    t.affinity = body.take(t.record.affinity_len);
    t.xstate = body.take(t.record.xstate_len);
    if (const char* wrong = finish(body)) return wrong;
    bool leader = t.record.tid == meta_.process.record.pid;
    if (t.record.tid <= 0 || leader != meta_.threads.empty() || !tids_.insert(t.record.tid).second) {
      return "thread ids repeat, or the first thread is not the leader";
    }
    meta_.threads.push_back(t);
    return nullptr;
  }

  const char* open_file(ByteReader& body) {
    ParsedOpenFile f;
    f.record = fixed<OpenFileRecord>(body);
    f.path = string(body, f.record.path_len);
    f.details = body.take(f.record.details_len);
    if (const char* wrong = finish(body)) return wrong;
    ByteReader details(f.details);
    while (details.left() > 0) {
      auto header = details.get<DetailHeader>();
      details.take(header.length);
      if (!details.ok() || header.length % 8 != 0) return "details of an open file are cut";
    }
    if (f.record.id == 0 || !open_ids_.insert(f.record.id).second) return "numbers of open files repeat";
    meta_.open_files.push_back(f);
    return nullptr;
  }

  const char* content(ByteReader& body) {
    ParsedFileContent c;
    c.record = fixed<FileContentRecord>(body);
    if (c.record.length > body.left()) return "contents of a file are cut";
    c.bytes = body.take(c.record.length);
    if (const char* wrong = finish(body)) return wrong;
    meta_.contents.push_back(c);
    return nullptr;
  }

  const char* child(ByteReader& body) {
    ParsedChild c;
    c.record = fixed<ChildRecord>(body);
    c.name = string(body, c.record.name_len);
    if (const char* wrong = finish(body)) return wrong;
    if (c.record.pid <= 0 || !child_pids_.insert(c.record.pid).second) return "children repeat";
    if (c.record.state > static_cast<uint32_t>(ChildState::kEnded)) return "unknown state of a child";
    if (c.record.exit_signal < 0 || c.record.exit_signal > 64) return "a child with an impossible signal";
    meta_.children.push_back(c);
    return nullptr;
  }

  const char* system_v(ByteReader& body) {
    ParsedSystemV o;
    o.record = fixed<SystemVRecord>(body);
    ByteReader data(body.take(o.record.data_len));
    if (const char* wrong = finish(body)) return wrong;
    const SystemVRecord& r = o.record;
    if (r.kind > static_cast<uint32_t>(SystemVKind::kMessages)) return "unknown kind of System V object";
    if (r.id < 0 || (r.mode & ~0777u) != 0) return "an impossible System V object";
    if (!system_v_ids_.insert(uint64_t{r.kind} << 32 | static_cast<uint32_t>(r.id)).second)
      return "System V objects repeat";
    if (o.kind() == SystemVKind::kSemaphores) {
      if (r.count > kMostSemaphores || r.data_len != r.count * sizeof(uint16_t))
        return "a semaphore set is cut";
      for (uint32_t i = 0; i < r.count; ++i) {
        o.values.push_back(data.get<uint16_t>());
        if (o.values.back() > kHighestSemaphore) return "an impossible value of a semaphore";
      }
    } else {
      for (uint32_t i = 0; i < r.count && data.ok(); ++i) {
        const auto m = data.get<SystemVMessage>();
        const Blob text = data.take(m.length);
        for (std::byte b : data.take(-size_t{m.length} & 7)) {
          if (b != std::byte{0}) return "padding of a message is used";
        }
        if (data.ok() && (m.type <= 0 || m.reserved != 0)) return "a message of an impossible type";
        o.messages.emplace_back(m.type, text);
      }
      if (!data.ok() || data.left() != 0) return "messages are cut";
    }
    meta_.system_v.push_back(std::move(o));
    return nullptr;
  }

  const char* note(ByteReader& body) {
    auto r = fixed<NoteRecord>(body);
    ParsedNote n{r.severity, string(body, r.text_len)};
    if (const char* wrong = finish(body)) return wrong;
    meta_.notes.push_back(n);
    return nullptr;
  }

  // What can be said only when all records are known.
  const char* check_whole() {
    if (!has_process_) return "no process record";
    if (!has_mm_) return "no record of the memory description";
    if (!has_limits_) return "no record of resource limits";
    if (meta_.threads.empty()) return "no threads";
    if (meta_.threads.size() != meta_.process.record.thread_count) return "threads are missing";
    std::unordered_set<int32_t> fds;
    for (const auto& d : meta_.descriptors) {
      if (d.fd < 0 || !fds.insert(d.fd).second) return "descriptors repeat";
      if (open_ids_.count(d.open_file) == 0) return "a descriptor without its open file";
    }
    for (const auto& c : meta_.contents) {
      if (c.record.open_file != 0 && open_ids_.count(c.record.open_file) == 0) {
        return "contents without their open file";
      }
    }
    std::unordered_set<uint32_t> signals;
    for (const auto& a : meta_.actions) {
      if (a.signal < 1 || a.signal > 64 || !signals.insert(a.signal).second) return "signal actions repeat";
    }
    for (const auto& p : meta_.pending) {
      if (p.signal < 1 || p.signal > 64 || (p.tid != 0 && tids_.count(p.tid) == 0)) {
        return "a pending signal of no thread";
      }
    }
    std::unordered_set<int32_t> timers;
    for (const auto& t : meta_.posix_timers) {
      if (t.id < 0 || !timers.insert(t.id).second) return "timer numbers repeat";
    }
    return nullptr;
  }

  ByteReader in_;
  size_t all_;
  const char* path_;
  size_t record_start_ = 0;
  bool at_end_ = false, has_process_ = false, has_mm_ = false, has_limits_ = false, has_cost_ = false;
  bool bad_string_ = false;
  std::unordered_set<int32_t> tids_, child_pids_;
  std::unordered_set<uint32_t> open_ids_;
  std::unordered_set<uint64_t> system_v_ids_;
  ImageMeta meta_;
};

}  // namespace

const ParsedOpenFile* ImageMeta::open_file(uint32_t id) const {
  auto it = std::find_if(open_files.begin(), open_files.end(),
                         [id](const ParsedOpenFile& f) { return f.record.id == id; });
  return it == open_files.end() ? nullptr : &*it;
}

Result<ImageMeta> parse_meta(Blob bytes, const char* path) { return MetaParser(bytes, path).parse(); }

}  // namespace ckpt
