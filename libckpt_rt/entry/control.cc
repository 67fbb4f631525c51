#include "libckpt_rt/entry/control.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cstddef>

#include "base/control_protocol.h"
#include "base/raii_fd.h"
#include "libckpt_rt/checkpoint/checkpoint.h"
#include "libckpt_rt/checkpoint/progress.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/entry/agent.h"

namespace ckpt {

namespace {

class Answer {
 public:
  explicit Answer(int fd) : fd_(fd) {}

  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    char text[1600];
    auto out = fmt::format_to_n(text, sizeof(text) - 1, format, std::forward<Args>(args)...);
    size_t n = out.size < sizeof(text) - 1 ? out.size : sizeof(text) - 1;
    // A name with a newline would end the line early.
    for (size_t i = 0; i < n; ++i) {
      if (text[i] == '\n') text[i] = '?';
    }
    text[n++] = '\n';
    sys::call(__NR_sendto, fd_, text, n, MSG_NOSIGNAL, 0L, 0L);
  }

 private:
  int fd_;
};

bool connect_to_asker(uint64_t cookie, ScopedFd& out) {
  ScopedFd fd(static_cast<int>(sys::call(__NR_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  if (!fd.valid()) {
    fd.release();
    return false;
  }
  // An asker that stops talking must not keep the agent, and with it the next checkpoint.
  timeval patience{5, 0};
  sys::call(__NR_setsockopt, fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sys::call(__NR_setsockopt, fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  auto end = fmt::format_to_n(address.sun_path + 1, sizeof(address.sun_path) - 1, "ckpt_rt.{:016x}", cookie);
  auto length = offsetof(sockaddr_un, sun_path) + 1 + end.size;
  if (sys::call(__NR_connect, fd.get(), &address, length) != 0) return false;
  struct {
    int32_t pid;
    uint32_t uid, gid;
  } peer{};
  socklen_t size = sizeof(peer);
  if (sys::call(__NR_getsockopt, fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  if (peer.uid != 0 && peer.uid != static_cast<uint32_t>(sys::call(__NR_geteuid))) return false;
  out = std::move(fd);
  return true;
}

void answer_checkpoint(Answer& answer, int fd) {
  checkpoint_progress::tell(fd);
  auto result = take_checkpoint();
  checkpoint_progress::tell(-1);
  if (!result.ok()) {
    answer.line("error {} {}", static_cast<int>(result.error().code), result.error().message());
    return;
  }
  const CheckpointCost& c = *result;
  answer.line("image {}", c.image);
  answer.line("mode {}", mode_name(c.mode));
  answer.line("sequence {}", c.sequence);
  answer.line("parent_sequence {}", c.parent_sequence);
  answer.line("pause_ns {}", c.pause_ns);
  answer.line("longest_wait_ns {}", c.longest_wait_ns);
  answer.line("forced_copies {}", c.forced_copies + c.release_copies);
  answer.line("sequential_copies {}", c.sequential_copies);
  answer.line("faults {}", c.faults);
  answer.line("buffer_waits {}", c.pool_waits_forced);
  answer.line("bytes_memory {}", c.bytes_memory);
  answer.line("bytes_written {}", c.bytes_written);
  answer.line("durable_ns {}", c.durable_ns);
  answer.line("threads {}", c.threads);
  answer.line("mappings {}", c.mappings);
  answer.line("descriptors {}", c.descriptors);
  answer.line("attempts {}", c.attempts);
  answer.line("restartable {}", c.restartable ? "yes" : "no");
  answer.line("done");
}

void answer_stat(Answer& answer) {
  Error why;
  const auto [mode, back_end, why_not_set] = choose_way(&why);
  const Settings& s = library.settings;
  const Statistics statistics = agent::statistics();
  answer.line("pid {}", library.pid);
  answer.line("version {}", CKPT_VERSION);
  answer.line("directory {}", static_cast<const char*>(library.directory));
  answer.line("mode {}", mode_name(mode));
  answer.line("mode_reason {}", why.text[0] != '\0' ? why.text
                                : s.mode == mode    ? "as set"
                                                    : "the best this machine allows");
  if (protects_memory(mode)) answer.line("faults {}", fault_back_end_name(back_end));
  if (why_not_set != nullptr)
    answer.line("faults_reason CKPT_FAULTS={} is not used: {}", fault_back_end_name(s.faults), why_not_set);
  answer.line("signal {}", library.signal);
  answer.line("segment {}", s.segment_bytes);
  answer.line("pool {}", s.pool_bytes);
  answer.line("compress {}", compression_name(s.compress.kind));
  if (s.compress.kind == Compression::kZstd) answer.line("compress_level {}", s.compress.level);
  if (s.to[0] != '\0') answer.line("to {}", static_cast<const char*>(s.to));
  if (library.key_file[0] != '\0') answer.line("key_file {}", static_cast<const char*>(library.key_file));
  answer.line("increments {}", s.increments);
  answer.line("keep {}", s.keep);
  answer.line("every_ns {}", s.every_ns);
  answer.line("checkpoints {}", statistics.checkpoints);
  answer.line("failures {}", statistics.failures);
  answer.line("last_image {}", static_cast<const char*>(statistics.last_image));
  answer.line("last_error {}", static_cast<const char*>(statistics.last_error));
  answer.line("total_pause_ns {}", statistics.total_pause_ns);
  answer.line("longest_pause_ns {}", statistics.longest_pause_ns);
  answer.line("done");
}

}  // namespace

bool serve_asker(uint64_t cookie) {
  ScopedFd fd;
  if (!connect_to_asker(cookie, fd)) return false;
  ControlHello hello{kControlMagic, kControlVersion, library.pid, 0};
  if (sys::call(__NR_sendto, fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL, 0L, 0L) != sizeof(hello))
    return false;
  ControlRequest request{};
  // With a receive timeout the kernel does not restart a call that a stop of the process (SIGSTOP, a
  // tracer) interrupts; nothing of the request has been taken then.
  long got;
  while ((got = sys::call(__NR_recvfrom, fd.get(), &request, sizeof(request), MSG_WAITALL, 0L, 0L)) ==
         -EINTR) {
  }
  if (got != sizeof(request)) return got > 0;  // it has hung up: it asks somebody else
  Answer answer(fd.get());
  if (request.magic != kControlMagic || request.version != kControlVersion) {
    answer.line(
        "error {} this library speaks version {} of the control protocol; use the ckpt that came with it",
        static_cast<int>(ExitCode::kIncompatible), kControlVersion);
  } else if (request.operation == static_cast<uint32_t>(ControlOperation::kCheckpoint)) {
    answer_checkpoint(answer, fd.get());
  } else if (request.operation == static_cast<uint32_t>(ControlOperation::kStat)) {
    answer_stat(answer);
  } else {
    answer.line("error {} unknown operation {}", static_cast<int>(ExitCode::kUsage), request.operation);
  }
  return true;
}

}  // namespace ckpt
