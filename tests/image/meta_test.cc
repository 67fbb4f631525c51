// Descriptions of a process that contradict themselves.
#include <functional>

#include "tests/image/image_fixture.h"

namespace ckpt {
namespace {

// A description with one of everything; each test spoils one thing.
struct Parts {
  ProcessRecord process{};
  std::vector<uint32_t> groups{4, 24, 27};
  std::string cwd = "/home", root = "/", comm = "prog", library = "/usr/lib/libckpt_rt.so";
  MmRecord mm{};
  std::string exe = "/usr/bin/prog";
  MappingRecord low{}, high{};
  std::string high_path = "/usr/lib/libc.so.6";
  ThreadRecord leader{}, other{};
  SignalActionRecord action{};
  OpenFileRecord file{};
  std::string file_path = "/tmp/log";
  DescriptorRecord first{}, second{};
  FileContentRecord content{};
  std::string content_bytes = "hello";
  PosixTimerRecord timer{};
  PendingSignalRecord pending{};
  NoteRecord note{};
  std::string note_text = "one thing";
  std::function<void(MetaWriter&)> extra;

  Parts() {
    process.pid = 100;
    process.thread_count = 2;
    process.group_count = 3;
    low.start = 0x1000;
    low.end = 0x3000;
    high.start = 0x3000;
    high.end = 0x5000;
    low.page_size = high.page_size = 4096;
    high.kind = static_cast<uint32_t>(MappingKind::kFilePrivate);
    leader.tid = 100;
    other.tid = 101;
    action.signal = 10;
    file.id = 1;
    first.fd = 3;
    second.fd = 4;
    first.open_file = second.open_file = 1;
    content.open_file = 1;
    pending.signal = 12;
    pending.tid = 101;
  }

  void write(MetaWriter& meta) {
    process.cwd_len = static_cast<uint32_t>(cwd.size());
    process.root_len = static_cast<uint32_t>(root.size());
    process.comm_len = static_cast<uint32_t>(comm.size());
    process.library_path_len = static_cast<uint32_t>(library.size());
    mm.exe_path_len = static_cast<uint32_t>(exe.size());
    high.path_len = static_cast<uint32_t>(high_path.size());
    file.path_len = static_cast<uint32_t>(file_path.size());
    content.length = content_bytes.size();
    note.text_len = static_cast<uint32_t>(note_text.size());
    auto text = [](const std::string& s) { return std::string_view(s); };
    meta.record(RecordType::kProcess, process, std::as_bytes(std::span<const uint32_t>(groups)), text(cwd),
                text(root), text(comm), text(library));
    meta.record(RecordType::kMm, mm, text(exe));
    meta.record(RecordType::kResourceLimits, ResourceLimitsRecord{});
    meta.record(RecordType::kMapping, low);
    meta.record(RecordType::kMapping, high, text(high_path));
    meta.record(RecordType::kThread, leader);
    meta.record(RecordType::kThread, other);
    meta.record(RecordType::kSignalAction, action);
    meta.record(RecordType::kOpenFile, file, text(file_path));
    meta.record(RecordType::kDescriptor, first);
    meta.record(RecordType::kDescriptor, second);
    meta.record(RecordType::kFileContent, content, text(content_bytes));
    meta.record(RecordType::kPosixTimer, timer);
    meta.record(RecordType::kIntervalTimers, IntervalTimersRecord{});
    meta.record(RecordType::kPendingSignal, pending);
    meta.record(RecordType::kNote, note, text(note_text));
    if (extra) extra(meta);
    meta.finish();
  }
};

class Meta : public ::testing::Test {
 protected:
  Result<ImageMeta> parse(Parts& parts) {
    arena_.reset();
    MetaWriter meta(arena_);
    parts.write(meta);
    bytes_.assign(reinterpret_cast<const char*>(meta.span().data()), meta.span().size());
    return parse_bytes();
  }
  Result<ImageMeta> parse_bytes() {
    return parse_meta(std::as_bytes(std::span<const char>(bytes_)), "image");
  }
  void expect_refused(const std::function<void(Parts&)>& spoil, const char* words) {
    Parts parts;
    spoil(parts);
    auto meta = parse(parts);
    ASSERT_FALSE(meta.ok()) << words;
    EXPECT_EQ(meta.error().code, ExitCode::kImageDamaged);
    EXPECT_NE(meta.error().message().find(words), std::string_view::npos) << meta.error().message();
  }
  void SetUp() override { ASSERT_TRUE(arena_.reserve(16 << 20)); }
  Arena arena_;
  std::string bytes_;
};

TEST_F(Meta, EverythingComesBack) {
  Parts parts;
  auto meta = parse(parts);
  ASSERT_TRUE(meta.ok()) << meta.error().message();
  EXPECT_EQ(meta->process.groups, parts.groups);
  EXPECT_EQ(meta->process.library_path, parts.library);
  EXPECT_EQ(meta->mm.exe_path, parts.exe);
  ASSERT_EQ(meta->mappings.size(), 2u);
  EXPECT_EQ(meta->mappings[1].path, parts.high_path);
  EXPECT_EQ(meta->threads.size(), 2u);
  EXPECT_EQ(meta->actions.size(), 1u);
  EXPECT_EQ(meta->descriptors.size(), 2u);
  ASSERT_NE(meta->open_file(1), nullptr);
  EXPECT_EQ(meta->open_file(1)->path, parts.file_path);
  EXPECT_EQ(meta->open_file(2), nullptr);
  EXPECT_EQ(meta->contents.at(0).bytes.size(), 5u);
  EXPECT_EQ(meta->posix_timers.size(), 1u);
  EXPECT_TRUE(meta->has_interval_timers);
  EXPECT_EQ(meta->pending.size(), 1u);
  EXPECT_EQ(meta->notes.at(0).text, parts.note_text);
}

TEST_F(Meta, CutAnywhereIsRefused) {
  Parts parts;
  ASSERT_TRUE(parse(parts).ok());
  const std::string whole = bytes_;
  for (size_t n = 0; n < whole.size(); n++) {
    bytes_ = whole.substr(0, n);
    EXPECT_FALSE(parse_bytes().ok()) << n;
  }
}

TEST_F(Meta, Contradictions) {
  expect_refused([](Parts& p) { p.process.pid = 0; }, "process id");
  expect_refused([](Parts& p) { p.process.group_count = 4; }, "record at byte 0");
  expect_refused([](Parts& p) { p.process.group_count = 0xffffffff; }, "too many groups");
  expect_refused([](Parts& p) { p.process.group_count = 2; }, "record at byte 0");
  expect_refused([](Parts& p) { p.process.cpu_features_len = 0xffffffff; }, "shorter");
  expect_refused(
      [](Parts& p) {
        p.extra = [](MetaWriter& meta) {
          NoteRecord note{};
          meta.record(RecordType::kNote, note, std::string_view("longer than said"));
        };
      },
      "longer than its fields");
  expect_refused([](Parts& p) { p.cwd = std::string("/a\0b", 4); }, "NUL");
  expect_refused([](Parts& p) { p.mm.auxv_len = 0xfffffff8; }, "shorter");
  expect_refused([](Parts& p) { p.process.thread_count = 3; }, "threads are missing");
  expect_refused([](Parts& p) { p.other.tid = 100; }, "thread ids repeat");
  expect_refused([](Parts& p) { p.other.tid = -1; }, "thread ids");
  expect_refused([](Parts& p) { std::swap(p.leader, p.other); }, "leader");
  expect_refused([](Parts& p) { p.low.end = p.low.start; }, "addresses");
  expect_refused([](Parts& p) { p.low.start++; }, "addresses");
  expect_refused([](Parts& p) { p.high.end = ~0ull << 12; }, "addresses");
  expect_refused([](Parts& p) { p.low.end += 4096; }, "overlap");
  expect_refused([](Parts& p) { p.high.kind = 99; }, "kind of mapping");
  expect_refused([](Parts& p) { p.high.page_size = 5000; }, "page size");
  expect_refused([](Parts& p) { p.high.page_size = 0; }, "page size");
  expect_refused([](Parts& p) { p.high.file_offset = 7; }, "file offset");
  expect_refused([](Parts& p) { p.high.file_offset = ~0ull << 12; }, "file offset");
  expect_refused([](Parts& p) { p.high.build_id_len = 0xffffffff; }, "shorter");
  expect_refused([](Parts& p) { p.action.signal = 0; }, "signal actions");
  expect_refused([](Parts& p) { p.action.signal = 65; }, "signal actions");
  expect_refused([](Parts& p) { p.file.id = 0; }, "open files");
  expect_refused([](Parts& p) { p.first.open_file = 9; }, "without its open file");
  expect_refused([](Parts& p) { p.first.fd = 4; }, "descriptors repeat");
  expect_refused([](Parts& p) { p.first.fd = -1; }, "descriptors repeat");
  expect_refused([](Parts& p) { p.content.open_file = 9; }, "contents without");
  expect_refused([](Parts& p) { p.pending.tid = 999; }, "no thread");
  expect_refused([](Parts& p) { p.pending.signal = 0; }, "no thread");
  expect_refused([](Parts& p) { p.timer.id = -1; }, "timer");
  expect_refused(
      [](Parts& p) { p.extra = [](MetaWriter& meta) { meta.record(RecordType::kMm, MmRecord{}); }; },
      "second record of the memory");
  expect_refused(
      [](Parts& p) {
        p.extra = [](MetaWriter& meta) { meta.record(RecordType::kResourceLimits, ResourceLimitsRecord{}); };
      },
      "second record of resource");
  expect_refused(
      [](Parts& p) {
        p.extra = [](MetaWriter& meta) { meta.record(RecordType::kIntervalTimers, IntervalTimersRecord{}); };
      },
      "second record of interval");
  expect_refused(
      [](Parts& p) {
        p.extra = [](MetaWriter& meta) { meta.record(static_cast<RecordType>(77), uint64_t{0}); };
      },
      "unknown type");
  expect_refused([](Parts& p) { p.extra = [](MetaWriter& meta) { meta.finish(); }; }, "after the end");
  expect_refused(
      [](Parts& p) {
        p.extra = [](MetaWriter& meta) {
          OpenFileRecord file{};
          file.id = 2;
          file.details_len = 16;
          DetailHeader header{1, 800};
          meta.begin(RecordType::kOpenFile);
          meta.add_struct(file);
          meta.add_struct(header);
          meta.add_struct(header);
          meta.end();
        };
      },
      "details of an open file");
  expect_refused(
      [](Parts& p) {
        p.extra = [](MetaWriter& meta) {
          FileContentRecord content{};
          content.length = ~0ull;
          meta.record(RecordType::kFileContent, content);
        };
      },
      "contents of a file are cut");
}

TEST_F(Meta, MissingRecords) {
  arena_.reset();
  MetaWriter no_process(arena_);
  no_process.record(RecordType::kMm, MmRecord{});
  auto meta = parse_meta(no_process.span(), "image");
  ASSERT_FALSE(meta.ok());
  EXPECT_NE(meta.error().message().find("not the first"), std::string_view::npos);

  const char* words[] = {"no record of the memory description", "no record of resource limits", "no threads"};
  for (int have = 0; have < 3; have++) {
    MetaWriter lonely(arena_);
    ProcessRecord process{};
    process.pid = 1;
    lonely.record(RecordType::kProcess, process);
    if (have > 0) lonely.record(RecordType::kMm, MmRecord{});
    if (have > 1) lonely.record(RecordType::kResourceLimits, ResourceLimitsRecord{});
    lonely.finish();
    meta = parse_meta(lonely.span(), "image");
    ASSERT_FALSE(meta.ok());
    EXPECT_NE(meta.error().message().find(words[have]), std::string_view::npos) << meta.error().message();
  }
}

// A set of three semaphores, and a queue of two messages, of which each test spoils something.
struct SystemVParts {
  SystemVRecord set{}, queue{};
  std::vector<uint16_t> values{1, 0, kHighestSemaphore};
  std::vector<std::byte> messages;

  SystemVParts() {
    set.id = queue.id = 7;
    set.mode = queue.mode = 0600;
    set.count = 3;
    set.data_len = 6;
    queue.kind = static_cast<uint32_t>(SystemVKind::kMessages);
    queue.count = 2;
    add(5, "hello");
    add(9, "");
  }
  void add(int64_t type, std::string_view text) {
    const SystemVMessage head{type, static_cast<uint32_t>(text.size()), 0};
    const size_t at = messages.size();
    messages.resize(at + sizeof(head) + (text.size() + 7) / 8 * 8);
    std::memcpy(messages.data() + at, &head, sizeof(head));
    std::memcpy(messages.data() + at + sizeof(head), text.data(), text.size());
    queue.data_len = static_cast<uint32_t>(messages.size());
  }
  SystemVMessage& first() { return *reinterpret_cast<SystemVMessage*>(messages.data()); }
  void write(MetaWriter& meta) {
    meta.record(RecordType::kSystemV, set, std::as_bytes(std::span<const uint16_t>(values)));
    meta.record(RecordType::kSystemV, queue, std::span<const std::byte>(messages));
  }
};

TEST_F(Meta, SystemVObjectsComeBack) {
  Parts parts;
  SystemVParts objects;
  parts.extra = [&](MetaWriter& meta) { objects.write(meta); };
  auto meta = parse(parts);
  ASSERT_TRUE(meta.ok()) << meta.error().message();
  ASSERT_EQ(meta->system_v.size(), 2u);
  EXPECT_EQ(meta->system_v[0].values, objects.values);
  const auto& messages = meta->system_v[1].messages;
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].first, 5);
  EXPECT_EQ(
      std::string_view(reinterpret_cast<const char*>(messages[0].second.data()), messages[0].second.size()),
      "hello");
  EXPECT_EQ(messages[1].first, 9);
  EXPECT_TRUE(messages[1].second.empty());
}

TEST_F(Meta, SystemVObjectsThatCannotBe) {
  auto expect = [&](const std::function<void(SystemVParts&)>& spoil, const char* words) {
    SystemVParts objects;
    spoil(objects);
    expect_refused([&](Parts& parts) { parts.extra = [&](MetaWriter& meta) { objects.write(meta); }; },
                   words);
  };
  expect([](SystemVParts& o) { o.set.kind = 2; }, "unknown kind of System V object");
  expect([](SystemVParts& o) { o.set.id = -1; }, "impossible System V object");
  expect([](SystemVParts& o) { o.queue.mode = 01777; }, "impossible System V object");
  expect(
      [](SystemVParts& o) {
        o.queue = o.set;
        o.messages.resize(6);
      },
      "System V objects repeat");
  expect([](SystemVParts& o) { o.set.count = 4; }, "a semaphore set is cut");
  expect(
      [](SystemVParts& o) {
        o.set.count = 1u << 31;
        o.set.data_len = 0;
        o.values.clear();
      },
      "a semaphore set is cut");
  expect([](SystemVParts& o) { o.set.data_len = 64; }, "shorter than its fields say");
  expect([](SystemVParts& o) { o.values[1] = kHighestSemaphore + 1; }, "impossible value of a semaphore");
  expect([](SystemVParts& o) { o.queue.count = 3; }, "messages are cut");
  expect([](SystemVParts& o) { o.queue.count = UINT32_MAX; }, "messages are cut");
  expect([](SystemVParts& o) { o.queue.count = 1; }, "messages are cut");
  expect([](SystemVParts& o) { o.first().length = UINT32_MAX; }, "messages are cut");
  expect([](SystemVParts& o) { o.first().type = 0; }, "a message of an impossible type");
  expect([](SystemVParts& o) { o.first().length = 4; }, "padding of a message is used");
}

}  // namespace
}  // namespace ckpt
