// Writes a small but complete image with the library's own writing half, for the tests of ckpt.
// Usage: make_image DIRECTORY COMM PID SEQUENCE [tmp|future]        prints the path
//        tmp: stops before the commit, as a writer that died
//        future: the image of a later version, with a header that is right in itself
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/clock.h"
#include "base/settings/settings.h"
#include "image/format/checksum.h"
#include "image/format/image_format.h"
#include "image/format/image_name.h"
#include "image/format/records/descriptor_records.h"
#include "image/write/direct_sink.h"
#include "image/write/meta_writer.h"

namespace ckpt {

namespace {

constexpr uint64_t kBase = 0x7f0000000000;
constexpr size_t kPages = 64;

void describe(MetaWriter& meta, std::string_view comm, int pid, int64_t realtime_ns) {
  ProcessRecord process{};
  process.pid = pid;
  process.ppid = 1;
  process.thread_count = 2;
  process.checkpoint_signal = 60;
  process.realtime_ns = realtime_ns;
  constexpr std::string_view kCwd = "/tmp";
  process.cwd_len = kCwd.size();
  process.comm_len = static_cast<uint32_t>(comm.size());
  meta.record(RecordType::kProcess, process, kCwd, comm);
  meta.record(RecordType::kMm, MmRecord{});
  MappingRecord mapping{};
  mapping.start = kBase;
  mapping.end = kBase + 2 * kPages * kPageSize;
  mapping.prot = PROT_READ | PROT_WRITE;
  mapping.page_size = kPageSize;
  meta.record(RecordType::kMapping, mapping);
  for (int tid : {pid, pid + 1}) {
    ThreadRecord thread{};
    thread.tid = tid;
    if (tid == pid) thread.flags = kThreadLeader;
    // A name that would clear the screen if it were printed as it is.
    std::string_view name = tid == pid ? comm : std::string_view("\033[2Jworker");
    thread.name_len = static_cast<uint32_t>(name.size());
    meta.record(RecordType::kThread, thread, name);
  }
  SignalActionRecord action{};
  action.signal = 10;
  action.handler = 1;
  meta.record(RecordType::kSignalAction, action);
  meta.record(RecordType::kResourceLimits, ResourceLimitsRecord{});
  OpenFileRecord file{};
  constexpr std::string_view kPath = "/dev/null";
  file.id = 1;
  file.kind = static_cast<uint32_t>(OpenFileKind::kDevice);
  file.open_flags = O_RDWR;
  file.path_len = kPath.size();
  meta.record(RecordType::kOpenFile, file, kPath);
  for (int fd : {0, 1}) meta.record(RecordType::kDescriptor, DescriptorRecord{fd, 1, 0, 0});
  constexpr std::string_view kNote = "descriptor 5 is a GPU: it comes back closed";
  meta.record(RecordType::kNote, NoteRecord{1, kNote.size()}, kNote);
  CostRecord cost{};
  cost.mode = static_cast<uint32_t>(Mode::kRealtime);
  cost.attempts = 1;
  cost.pause_ns = 1'250'000;
  cost.forced_copies = 17;
  cost.sequential_copies = 4;
  meta.record(RecordType::kCost, cost);
  meta.finish();
}

void make_future(int dir, const char* name) {
  ScopedFd fd(openat(dir, name, O_RDWR | O_CLOEXEC));
  FileHeader header{};
  if (pread(fd.get(), &header, sizeof(header), 0) != sizeof(header)) return;
  header.version = kFormatVersion + 1;
  header.checksum = checksum_of(std::as_bytes(std::span(&header, 1)).first(offsetof(FileHeader, checksum)));
  (void)!pwrite(fd.get(), &header, sizeof(header), 0);
}

Error make(const char* directory, std::string_view comm, int pid, uint64_t sequence, std::string_view kind) {
  ScopedFd dir(open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  Arena arena, meta_arena;
  if (!dir.valid() || !arena.reserve(64 << 20) || !meta_arena.reserve(1 << 20)) {
    return make_error(ExitCode::kSystem, 0, "{}: cannot be opened", directory);
  }
  ImageIdentity identity{};
  std::memset(identity.run_id, pid, sizeof(identity.run_id));
  identity.sequence = sequence;
  identity.realtime_ns = now_ns(CLOCK_REALTIME) - 90'000'000'000;
  ImageName name = compose_image_name(comm, pid, identity.run_id, sequence);
  MetaWriter meta(meta_arena);
  describe(meta, comm, pid, identity.realtime_ns);

  // Static: a writer that is left open must outlive main() to leave its file behind.
  static DirectSink sink;
  auto done = sink.open(
      dir.get(), name.text, identity, arena, [](void*, uint32_t) {}, nullptr);
  if (!done.ok()) return done.error();
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(kPageSize, kPages * kPageSize));
  for (size_t i = 0; i < kPages * kPageSize; ++i) memory[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  CopiedSegment segment{{kBase}, ~uint64_t{0}, memory, 0};
  done = sink.append({&segment, 1});
  if (done.ok()) done = sink.set_meta(meta.span());
  if (!done.ok()) return done.error();
  fmt::print("{}/{}{}\n", directory, name.text, kind == "tmp" ? ".tmp" : "");
  std::fflush(stdout);
  if (kind == "tmp") _exit(0);
  auto stats = sink.commit();
  if (!stats.ok()) return stats.error();
  if (kind == "future") make_future(dir.get(), name.text);
  _exit(0);
}

}  // namespace

}  // namespace ckpt

int main(int argc, char** argv) {
  if (argc < 5) return 64;
  ckpt::Error error = ckpt::make(argv[1], argv[2], std::atoi(argv[3]), std::strtoull(argv[4], nullptr, 10),
                                 argc > 5 ? argv[5] : "");
  fmt::print(stderr, "make_image: {}\n", error.message());
  return static_cast<int>(error.code);
}
