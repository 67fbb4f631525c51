// Writes small images of every kind into a directory: fuzz_corpus DIRECTORY
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "image/format/records/descriptor_records.h"
#include "image/write/direct_sink.h"
#include "image/write/meta_writer.h"

namespace ckpt {
namespace {

void describe(MetaWriter& meta, bool rich) {
  ProcessRecord process{};
  process.pid = 1234;
  process.thread_count = 1;
  process.group_count = 2;
  process.cwd_len = 4;
  process.comm_len = 4;
  uint32_t groups[2] = {4, 27};
  meta.record(RecordType::kProcess, process, std::as_bytes(std::span(groups)), std::string_view("/tmp"),
              std::string_view("prog"));
  meta.record(RecordType::kMm, MmRecord{});
  for (uint64_t i = 0; i < 2; i++) {
    MappingRecord mapping{};
    mapping.start = 0x10000 + i * 0x8000;
    mapping.end = mapping.start + 0x8000;
    mapping.page_size = 4096;
    mapping.path_len = i == 0 ? 0 : 8;
    meta.record(RecordType::kMapping, mapping, std::string_view("/bin/cat", mapping.path_len));
  }
  ThreadRecord thread{};
  thread.tid = 1234;
  thread.name_len = 4;
  meta.record(RecordType::kThread, thread, std::string_view("prog"));
  meta.record(RecordType::kResourceLimits, ResourceLimitsRecord{});
  if (rich) {
    SignalActionRecord action{};
    action.signal = 10;
    meta.record(RecordType::kSignalAction, action);
    OpenFileRecord file{};
    file.id = 1;
    file.path_len = 8;
    file.details_len = sizeof(DetailHeader) + sizeof(LockDetail);
    meta.begin(RecordType::kOpenFile);
    meta.add_struct(file);
    meta.add(std::string_view("/tmp/log"));
    meta.add_struct(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kLock), sizeof(LockDetail)});
    meta.add_struct(LockDetail{});
    meta.end();
    DescriptorRecord descriptor{};
    descriptor.fd = 3;
    descriptor.open_file = 1;
    meta.record(RecordType::kDescriptor, descriptor);
    FileContentRecord content{};
    content.open_file = 1;
    content.length = 5;
    meta.record(RecordType::kFileContent, content, std::string_view("hello"));
    meta.record(RecordType::kPosixTimer, PosixTimerRecord{});
    meta.record(RecordType::kIntervalTimers, IntervalTimersRecord{});
    PendingSignalRecord pending{};
    pending.signal = 12;
    meta.record(RecordType::kPendingSignal, pending);
    NoteRecord note{};
    note.text_len = 4;
    meta.record(RecordType::kNote, note, std::string_view("note"));
  }
  meta.finish();
}

// Which pages of the segment the image brings; never the one that increments inherit.
constexpr uint32_t kFew = 0b1101, kSeveralChunks = 0b1011'0111'1110'1101;
// Four runs of the same bytes. The second comes before the first is written; the others are in the index
// only.
constexpr uint32_t kRepeated = 0b0000'0110'1101'1011;

bool write_one(int dir_fd, const char* name, Codec codec, bool rich, uint32_t head_bytes, bool meta_last,
               uint32_t brought) {
  const bool repeats = brought == kRepeated;
  SinkOptions options;
  options.codec = codec;
  options.uring = false;
  options.head_bytes = head_bytes;
  options.chunk_bytes = codec == Codec::kNone ? 32u << 10 : 512u << 10;
  Arena arena, meta_arena;
  if (!arena.reserve(DirectSink::arena_bytes(options, 1 << 20)) || !meta_arena.reserve(1 << 20)) return false;
  MetaWriter meta(meta_arena);
  describe(meta, rich);
  alignas(4096) static std::byte pages[16 * 4096];
  for (size_t i = 0; i < sizeof(pages); i++) {
    const size_t n = repeats ? i % (3 * 4096) : i;
    pages[i] = static_cast<std::byte>(n * n >> 12);
  }
  CopiedSegment segment{{0x10000}, brought, pages, 0};
  ImageIdentity identity{};
  identity.sequence = rich ? 2 : 1;  // the plain one is a parent for the others
  if (rich) {
    identity.parent.sequence = identity.parent.chain_length = 1;
    std::strcpy(identity.parent.name, "prog.1.00000000.000001.ckpt");
  }
  DirectSink sink(options);
  auto give_meta = [&] { return sink.set_meta(meta.span()).ok(); };
  if (!sink.open(
               dir_fd, name, identity, arena, [](void*, uint32_t) {}, nullptr)
           .ok())
    return false;
  if (!meta_last && !give_meta()) return false;
  if (!sink.append({&segment, 1}).ok()) return false;
  AddrRange unchanged{{repeats ? 0x12000u : 0x11000u},
                      {repeats ? 0x13000u : 0x12000u}};  // a page that the segment does not bring
  if (rich && !sink.inherit({&unchanged, 1}).ok()) return false;
  if (meta_last && !give_meta()) return false;
  auto stats = sink.commit();
  return stats.ok() && repeats == (stats->as_parent.chain_bytes > stats->bytes_written);
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  using ckpt::Codec;
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
    return 64;
  }
  mkdir(argv[1], 0700);
  int dir_fd = open(argv[1], O_RDONLY | O_DIRECTORY);
  for (const char* old : {"plain", "rich", "lz4", "zstd", "heads", "chunks", "repeated", "repeated_lz4"})
    unlinkat(dir_fd, old, 0);
  bool ok = ckpt::write_one(dir_fd, "plain", Codec::kNone, false, 4096, false, ckpt::kFew) &&
            ckpt::write_one(dir_fd, "rich", Codec::kNone, true, 4096, true, ckpt::kFew) &&
            ckpt::write_one(dir_fd, "lz4", Codec::kLz4, true, 4096, false, ckpt::kFew) &&
            ckpt::write_one(dir_fd, "zstd", Codec::kZstd, false, 4096, true, ckpt::kFew) &&
            ckpt::write_one(dir_fd, "heads", Codec::kNone, true, 8192, false, ckpt::kFew) &&
            ckpt::write_one(dir_fd, "chunks", Codec::kNone, true, 4096, false, ckpt::kSeveralChunks) &&
            ckpt::write_one(dir_fd, "repeated", Codec::kNone, false, 4096, false, ckpt::kRepeated) &&
            ckpt::write_one(dir_fd, "repeated_lz4", Codec::kLz4, true, 4096, true, ckpt::kRepeated);
  if (!ok) std::fprintf(stderr, "%s: cannot write the corpus; is it writable?\n", argv[1]);
  return ok ? 0 : 74;
}
