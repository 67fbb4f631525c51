#include "made_image.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/clock.h"
#include "base/machine/cpu_features.h"
#include "base/protocol/restart_protocol.h"
#include "image/format/records/descriptor_records.h"
#include "restart/plan/vdso/vdso.h"

extern "C" const std::byte ckpt_guest_begin[], ckpt_guest_end[];

namespace ckpt {
namespace {

void abort_unless(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "made image: %s\n", what);
  std::abort();
}

}  // namespace

MadeImage::MadeImage() {
  process.pid = free_pid();
  process.thread_count = 1;
  process.umask = 022;
  process.dumpable = 1;
  getresuid(&process.uid[0], &process.uid[1], &process.uid[2]);
  getresgid(&process.gid[0], &process.gid[1], &process.gid[2]);
  process.uid[3] = process.uid[1];
  process.gid[3] = process.gid[1];
  process.cap_effective = process.cap_permitted = process.cap_bounding = geteuid() == 0 ? ~uint64_t{0} : 0;
  process.monotonic_ns = now_ns(CLOCK_MONOTONIC);
  process.boottime_ns = now_ns(CLOCK_BOOTTIME);
  process.realtime_ns = now_ns(CLOCK_REALTIME);
  process.xfeatures = read_xfeatures();
  auto vdso = find_vdso();
  process.vdso_hash = vdso->hash;
  // Elsewhere than here, and overlapping nothing.
  process.vdso_start = 0x7000'0000'0000;
  process.vdso_end = process.vdso_start + vdso->code.size();
  process.vvar_start = process.vdso_start - (vdso->code.start - vdso->whole().start);
  process.vvar_end = process.vdso_start;
  process.restart_entry = kCode;
  process.restart_state = kSteps;
  process.restart_protocol = kRestartProtocolVersion;
  for (int i = 0; i < 16; ++i) {
    rlimit64 l{};
    sys::call(__NR_prlimit64, 0L, i, 0L, &l);
    limits.soft[i] = l.rlim_cur;
    limits.hard[i] = l.rlim_max;
  }
  std::string code(reinterpret_cast<const char*>(ckpt_guest_begin),
                   static_cast<size_t>(ckpt_guest_end - ckpt_guest_begin));
  add(kCode, kCode + 0x4000, PROT_READ | PROT_EXEC, MappingKind::kAnonymous, code);
  mm.start_code = kCode;
  mm.end_code = kCode + 0x4000;
  mm.start_data = mm.end_data = kSteps;
  mm.start_brk = mm.brk = kSteps;
  mm.start_stack = kTexts;
  mm.arg_start = kTexts;
  mm.arg_end = kTexts + 6;
  mm.env_start = mm.env_end = kTexts + 6;
  texts_ = std::string("guest\0", 6);
  exe = "/proc/self/exe";
}

MadeMapping& MadeImage::add(uint64_t start, uint64_t end, uint32_t prot, MappingKind kind,
                            std::string bytes) {
  MadeMapping m;
  m.record.start = start;
  m.record.end = end;
  m.record.prot = prot;
  m.record.kind = static_cast<uint32_t>(kind);
  m.record.page_size = 4096;
  m.bytes = std::move(bytes);
  mappings_.reserve(256);  // references stay valid
  return mappings_.emplace_back(std::move(m));
}

void MadeImage::step(GuestOp op, uint32_t value, uint64_t address, uint64_t length) {
  steps_.push_back({op, value, address, length});
}

uint64_t MadeImage::text(const std::string& text) {
  uint64_t at = kTexts + texts_.size();
  texts_ += text;
  texts_ += '\0';
  return at;
}

std::string MadeImage::write(const std::string& directory) {
  std::string steps(reinterpret_cast<const char*>(steps_.data()), steps_.size() * sizeof(GuestStep));
  add(kSteps, kSteps + 0x4000, PROT_READ | PROT_WRITE, MappingKind::kAnonymous, steps);
  add(kTexts, kTexts + 0x4000, PROT_READ | PROT_WRITE, MappingKind::kAnonymous, texts_);
  if (process.vdso_start != 0) {
    add(process.vvar_start, process.vvar_end, PROT_READ, MappingKind::kVdso).path = "[vvar]";
    add(process.vdso_start, process.vdso_end, PROT_READ | PROT_EXEC, MappingKind::kVdso).path = "[vdso]";
  }
  std::sort(mappings_.begin(), mappings_.end(),
            [](const MadeMapping& a, const MadeMapping& b) { return a.record.start < b.record.start; });

  Arena arena;
  SinkOptions options;
  options.codec = codec;
  uint64_t memory = 0;
  for (const MadeMapping& m : mappings_) memory += m.bytes.size() + 4096;
  abort_unless(arena.reserve(DirectSink::arena_bytes(options, memory)), "no arena");
  Arena meta_arena;
  abort_unless(meta_arena.reserve(8 << 20), "no arena");
  MetaWriter meta(meta_arena);
  CpuFeatures features = collect_cpu_features();
  process.thread_count = static_cast<uint32_t>(1 + more_threads.size());
  process.cpu_features_len = sizeof(features);
  process.cwd_len = static_cast<uint32_t>(cwd.size());
  process.comm_len = 5;
  meta.record(RecordType::kProcess, process, std::as_bytes(std::span(&features, 1)), std::string_view(cwd),
              std::string_view("guest"));
  char self[4096];
  ssize_t n = readlink(exe.c_str(), self, sizeof(self));
  std::string exe_path = n > 0 ? std::string(self, static_cast<size_t>(n)) : exe;
  mm.exe_path_len = static_cast<uint32_t>(exe_path.size());
  uint64_t auxv[2] = {0, 0};
  mm.auxv_len = sizeof(auxv);
  meta.record(RecordType::kMm, mm, std::as_bytes(std::span(auxv)), std::string_view(exe_path));
  for (MadeMapping& m : mappings_) {
    m.record.path_len = static_cast<uint32_t>(m.path.size());
    m.record.build_id_len = static_cast<uint32_t>(m.build_id.size());
    meta.record(RecordType::kMapping, m.record, std::string_view(m.path),
                std::span<const std::byte>(m.build_id));
  }
  for (int tid = process.pid, i = -1; i < static_cast<int>(more_threads.size()); ++i) {
    if (i >= 0) tid = more_threads[static_cast<size_t>(i)];
    ThreadRecord thread{};
    thread.tid = tid;
    thread.flags = i < 0 ? static_cast<uint32_t>(kThreadLeader) : 0;
    thread.name_len = 5;
    meta.record(RecordType::kThread, thread, std::string_view("guest"));
  }
  for (int fd = 0; fd < 3; ++fd) {
    OpenFileRecord file{};
    file.id = static_cast<uint32_t>(fd + 1);
    file.kind = static_cast<uint32_t>(OpenFileKind::kStandard);
    file.open_flags = fd == 0 ? O_RDONLY : O_WRONLY;
    file.path_len = 6;
    meta.record(RecordType::kOpenFile, file, std::string_view("pipe:1"));
    meta.record(RecordType::kDescriptor, DescriptorRecord{fd, file.id, 0, 0});
  }
  if (!vdso_code.empty()) {
    FileContentRecord content{0, 0, kVdsoContentObject, 0, vdso_code.size()};
    meta.record(RecordType::kFileContent, content, std::string_view(vdso_code));
  }
  meta.record(RecordType::kResourceLimits, limits);
  meta.finish();
  abort_unless(meta.ok(), "meta");

  static uint64_t sequence = 0;
  std::string name = fmt::format("guest.{}.abcdef01.{:06}.ckpt", process.pid, ++sequence);
  ScopedFd dir(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ImageIdentity identity{{0xab, 0xcd, 0xef, 0x01}, sequence, process.realtime_ns, {}};
  DirectSink sink(options);
  auto release = [](void*, uint32_t) {};
  abort_unless(sink.open(dir.get(), name.c_str(), identity, arena, release, nullptr).ok(), "open");
  abort_unless(sink.set_meta(meta.span()).ok(), "set_meta");
  constexpr uint64_t kSegment = 64 << 10;
  auto* buffer = static_cast<std::byte*>(std::aligned_alloc(4096, kSegment));
  for (const MadeMapping& m : mappings_) {
    for (uint64_t at = 0; at < m.bytes.size(); at += kSegment) {
      uint64_t part = std::min<uint64_t>(kSegment, m.bytes.size() - at);
      std::memset(buffer, 0, kSegment);
      std::memcpy(buffer, m.bytes.data() + at, part);
      uint64_t mask = 0;
      for (uint64_t page = 0; page * 4096 < part; ++page) {
        const std::byte* p = buffer + page * 4096;
        if (std::any_of(p, p + 4096, [](std::byte b) { return b != std::byte{0}; }))
          mask |= uint64_t{1} << page;
      }
      CopiedSegment segment{Addr{m.record.start + at}, mask, buffer, 0};
      if (mask != 0) abort_unless(sink.append({&segment, 1}).ok(), "append");
    }
  }
  std::free(buffer);
  auto stats = sink.commit();
  abort_unless(stats.ok(), stats.ok() ? "" : stats.error().text);
  return directory + "/" + name;
}

int RunResult::exit_code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status); }

namespace {

void set_filter(const sock_fprog& program) {
  abort_unless(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                   prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0,
               "seccomp");
}

}  // namespace

void refuse_ioctl(unsigned long request, int error) {
  const auto low = static_cast<uint32_t>(request);
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_ioctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, low, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  set_filter({std::size(filter), filter});
}

void refuse_mmap(int type, int error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_mmap, 0, 4),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[3])),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, MAP_TYPE),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(type), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  set_filter({std::size(filter), filter});
}

RunResult run_restart(std::vector<std::string> arguments, const std::string& input,
                      const std::function<void()>& before_exec) {
  int in[2], out[2], err[2];
  abort_unless(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0,
               "pipes");
  std::vector<char*> argv{const_cast<char*>(CKPT_RESTART_PROGRAM)};
  for (std::string& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  pid_t child = fork();
  if (child == 0) {
    dup2(in[0], 0);
    dup2(out[1], 1);
    dup2(err[1], 2);
    if (before_exec) before_exec();
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  close(err[1]);
  abort_unless(write(in[1], input.data(), input.size()) == static_cast<ssize_t>(input.size()), "input");
  close(in[1]);
  RunResult run;
  pollfd wait_for[2] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}};
  while (wait_for[0].fd >= 0 || wait_for[1].fd >= 0) {
    poll(wait_for, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (wait_for[i].fd < 0 || wait_for[i].revents == 0) continue;
      char buffer[4096];
      ssize_t n = read(wait_for[i].fd, buffer, sizeof(buffer));
      if (n > 0) (i == 0 ? run.out : run.err).append(buffer, static_cast<size_t>(n));
      if (n <= 0) wait_for[i].fd = -1;
    }
  }
  close(out[0]);
  close(err[0]);
  waitpid(child, &run.status, 0);
  return run;
}

int free_pid() {
  // The kernel hands ids out upwards and around: the one of a child that has just ended comes last.
  pid_t child = fork();
  if (child == 0) _exit(0);
  if (child > 0) waitpid(child, nullptr, 0);
  return child;
}

}  // namespace ckpt
