#include "libckpt_rt/entry/control.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/clock.h"
#include "base/files/lines.h"
#include "base/protocol/control_protocol.h"
#include "base/raii_fd.h"
#include "base/settings/settings_table.h"
#include "job/capture/take.h"
#include "job/identity/own_job.h"
#include "job/session/session.h"
#include "libckpt_rt/back/back_run.h"
#include "libckpt_rt/checkpoint/account/progress.h"
#include "libckpt_rt/checkpoint/checkpoint.h"
#include "libckpt_rt/checkpoint/in_force.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/process/own_files.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/settings/own_key_file.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/entry/agent.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

// Lines go out together: each that is sent alone wakes the asker.
class Answer {
 public:
  explicit Answer(int fd) : fd_(fd) {}
  ~Answer() { send(); }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

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
    if (n > sizeof(lines_) - used_) send();
    std::memcpy(lines_ + used_, text, n);
    used_ += n;
  }
  // Before anything else is sent or received.
  void send() {
    if (used_ != 0) sys::call(__NR_sendto, fd_, lines_, used_, MSG_NOSIGNAL, 0L, 0L);
    used_ = 0;
  }

 private:
  int fd_;
  size_t used_ = 0;
  char lines_[4096];
};

enum class Found : uint32_t {
  kNobody,  // or a stranger
  kBusy,    // others wait to be accepted: it cannot be told who that is
  kAsker,
};

// at_once: nobody is waited for.
Found connect_to_asker(std::string_view name, bool at_once, ScopedFd& out) {
  const long kind = SOCK_STREAM | SOCK_CLOEXEC | (at_once ? SOCK_NONBLOCK : 0);
  ScopedFd fd(static_cast<int>(sys::call(__NR_socket, AF_UNIX, kind, 0)));
  if (!fd.valid()) {
    fd.release();
    return Found::kNobody;
  }
  // An asker that stops talking must not keep the agent, and with it the next checkpoint.
  timeval patience{5, 0};
  sys::call(__NR_setsockopt, fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  sys::call(__NR_setsockopt, fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (name.size() >= sizeof(address.sun_path)) return Found::kNobody;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  auto length = offsetof(sockaddr_un, sun_path) + 1 + name.size();
  const long connected = sys::call(__NR_connect, fd.get(), &address, length);
  if (connected != 0) return connected == -EAGAIN ? Found::kBusy : Found::kNobody;
  struct {
    int32_t pid;
    uint32_t uid, gid;
  } peer{};
  socklen_t size = sizeof(peer);
  if (sys::call(__NR_getsockopt, fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return Found::kNobody;
  if (peer.uid != 0 && peer.uid != static_cast<uint32_t>(sys::call(__NR_geteuid))) return Found::kNobody;
  if (at_once) sys::call(__NR_fcntl, fd.get(), long{F_SETFL}, 0L);
  out = std::move(fd);
  return Found::kAsker;
}

// What the asker hands over in answer to a line "need …": up to two descriptors, not valid where it has none.
void receive(int fd, ScopedFd (&out)[2]) {
  char byte = 0;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))];
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  long got;
  while ((got = sys::call(__NR_recvmsg, fd, &message, long{MSG_CMSG_CLOEXEC})) == -EINTR) {
  }
  if (got != 1 || byte != kHandedOver) return;
  const cmsghdr* c = CMSG_FIRSTHDR(&message);
  if (c == nullptr || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) return;
  const size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  for (size_t i = 0; i < n && i < 2; ++i) {
    int one;
    __builtin_memcpy(&one, CMSG_DATA(c) + i * sizeof(int), sizeof(one));
    out[i].reset(one);
  }
}

// Asks the asker for what the program may not open itself: the asker may have more rights.
class HandedOver {
 public:
  HandedOver(Answer& answer, int fd) {
    if (!own_directory::may_open()) {
      ScopedFd directory[2];
      answer.line("need directory {}", own_directory::set_name());
      answer.send();
      receive(fd, directory);
      own_directory::hand_over(std::move(directory[0]));
    }
    if (!own_files::may_open()) {
      ScopedFd files[2];
      answer.line("need memory");
      answer.send();
      receive(fd, files);
      own_files::hand_over(std::move(files[0]), std::move(files[1]));
    }
  }
  ~HandedOver() {
    own_directory::hand_over({});
    own_files::hand_over({}, {});
  }
  HandedOver(const HandedOver&) = delete;
  HandedOver& operator=(const HandedOver&) = delete;
};

void answer_account(Answer& answer, const Account& a) {
  answer.line("faults_ahead {}", a.faults_ahead);
  answer.line("fault_wait_ns {}", a.fault_wait_ns);
  answer.line("buffer_wait_ns {}", a.buffer_wait_ns);
  answer.line("copier_wait_ns {}", a.copier_wait_ns);
  answer.line("processor_ns {}", a.processor_ns());
  answer.line("processor_agent_ns {}", a.agent.ran_ns);
  answer.line("processor_handler_ns {}", a.handler.ran_ns);
  answer.line("processor_writer_ns {}", a.writer.ran_ns);
  answer.line("processor_helpers_ns {}", a.helpers.ran_ns);
  answer.line("processor_child_ns {}", a.child_ns);
  answer.line("delayed_agent_ns {}", a.agent.delayed_ns);
  answer.line("delayed_handler_ns {}", a.handler.delayed_ns);
  answer.line("delayed_writer_ns {}", a.writer.delayed_ns);
}

void answer_checkpoint(Answer& answer, int fd, const job::TakeOptions& options) {
  const HandedOver handed_over(answer, fd);
  job::TakeReport job;
  checkpoint_progress::tell(fd);
  auto result = job::take(options, job, &agent::serve_joins);
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
  answer_account(answer, c.account);
  answer.line("bytes_memory {}", c.bytes_memory);
  answer.line("bytes_written {}", c.bytes_written);
  answer.line("durable_ns {}", c.durable_ns);
  answer.line("threads {}", c.threads);
  answer.line("mappings {}", c.mappings);
  answer.line("descriptors {}", c.descriptors);
  answer.line("attempts {}", c.attempts);
  const bool restartable = c.restartable() && job.why_not_restartable[0] == '\0';
  answer.line("restartable {}", restartable ? "yes" : "no");
  if (job.members != 0) {
    answer.line("job {}", static_cast<const char*>(job.path));
    answer.line("members {}", job.members);
    answer.line("members_ended {}", job.ended);
    answer.line("members_left_out {}", job.left_out);
    answer.line("job_pause_ns {}", job.pause_ns);
    answer.line("job_attempts {}", job.attempts);
  }
  answer.line("done");
}

// Each setting as it is set, and as it is in force where that differs.
void answer_settings(Answer& answer, const Settings& set, const Settings& now) {
  for (const Setting& setting : setting_table()) {
    SettingText as_set, in_force;
    setting.print(set, as_set);
    setting.print(now, in_force);
    answer.line("setting {} {}", setting.variable, static_cast<const char*>(as_set.text));
    if (std::strcmp(as_set.text, in_force.text) != 0)
      answer.line("in_force {} {}", setting.variable, static_cast<const char*>(in_force.text));
  }
}

void answer_stat(Answer& answer) {
  Error why;
  const CheckpointMethod method = choose_method(user_settings(), &why);
  const Settings& set = user_settings();
  Settings now = in_force::now(method);
  const AutoInterval& learned = interval::learned();
  if (set.every_auto && learned.measured()) {
    now.every_auto = false;
    now.every_ns = learned.ns();
  }
  const Statistics counted = statistics::read();
  answer.line("pid {}", this_process.pid);
  answer.line("version {}", CKPT_VERSION);
  answer.line("directory {}", own_directory::name());
  answer.line("mode {}", mode_name(method.mode));
  answer.line("mode_reason {}", why.text[0] != '\0'       ? why.text
                                : set.mode == method.mode ? "as set"
                                                          : "the best this machine allows");
  if (method.protects_memory()) answer.line("faults {}", fault_back_end_name(method.back_end));
  if (method.why != nullptr)
    answer.line("faults_reason CKPT_FAULTS={} is not used: {}", fault_back_end_name(set.faults), method.why);
  if (job::own_job.identity.root != 0) {
    answer.line("job_id {}", job::job_text(job::own_job.identity.id).text);
    answer.line("job_root {}", job::own_job.identity.root);
    answer.line("job_directory {}", static_cast<const char*>(job::own_job.identity.directory));
  }
  answer.line("signal {}", own_signal.number);
  answer.line("segment {}", now.segment_bytes);
  answer.line("pool {}", now.pool_bytes);
  answer.line("compress {}", compression_name(set.compress.kind));
  if (set.compress.kind == Compression::kZstd) answer.line("compress_level {}", set.compress.level);
  if (set.to[0] != '\0') answer.line("to {}", static_cast<const char*>(set.to));
  if (own_key_file::path()[0] != '\0') answer.line("key_file {}", own_key_file::path());
  answer.line("increments {}", set.increments);
  answer.line("keep {}", set.images_to_keep);
  answer.line("every_ns {}", now.every_ns);
  if (set.every_auto && learned.measured()) {
    answer.line("every_overhead_ns {}", learned.overhead_ns());
    answer.line("every_latency_ns {}", learned.latency_ns());
    answer.line("every_mtbf_ns {}", learned.mtbf_ns());
  }
  answer_settings(answer, set, now);
  answer.line("checkpoints {}", counted.checkpoints);
  answer.line("failures {}", counted.failures);
  answer.line("last_image {}", static_cast<const char*>(counted.last_image));
  answer.line("last_error {}", static_cast<const char*>(counted.last_error));
  answer.line("total_pause_ns {}", counted.total_pause_ns);
  answer.line("longest_pause_ns {}", counted.longest_pause_ns);
  answer.line("processor_ns {}", counted.processor_ns);
  answer.line("done");
}

void answer_back(Answer& answer, int fd) {
  Result<BackCost> result = Error{};
  bool answered = false;
  {
    // The run's own mappings are gone when the asker hears of its end.
    BackRun run(fd);
    result = run.run();
    answered = run.answered();
  }
  if (!result.ok()) {
    if (answered) return;
    BackMessage failed{};
    failed.says = static_cast<uint32_t>(BackSays::kError);
    failed.code = static_cast<uint32_t>(result.error().code);
    std::memcpy(failed.text, result.error().text, sizeof(failed.text) - 1);
    sys::call(__NR_sendto, fd, &failed, sizeof(failed), MSG_NOSIGNAL, 0L, 0L);
    return;
  }
  const BackCost& c = *result;
  answer.line("pause_ns {}", c.pause_ns);
  answer.line("bytes {}", c.bytes);
  answer.line("watched {}", c.watched);
  answer.line("threads {}", c.threads);
  answer.line("threads_ended {}", c.ended);
  answer.line("threads_made {}", c.made);
  answer.line("generation {}", c.generation);
  answer.line("library_notes {}", c.notes);
  answer.line("done");
}

}  // namespace

namespace {

bool serve(ScopedFd fd) {
  ControlHello hello{kControlMagic, kControlVersion, this_process.pid, 0};
  if (sys::call(__NR_sendto, fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL, 0L, 0L) != sizeof(hello))
    return false;
  ControlRequest request{};
  // With a receive timeout the kernel does not restart a call that a stop of the process (SIGSTOP, a
  // tracer) interrupts; nothing of the request has been taken then.
  long got;
  while ((got = sys::call(__NR_recvfrom, fd.get(), &request, sizeof(request), MSG_WAITALL, 0L, 0L)) ==
         -EINTR) {
  }
  if (got != sizeof(request)) return got > 0;  // the asker has hung up
  Answer answer(fd.get());
  if (request.magic != kControlMagic || request.version != kControlVersion) {
    answer.line(
        "error {} this library speaks version {} of the control protocol; use the ckpt that came with it",
        static_cast<int>(ExitCode::kIncompatible), kControlVersion);
  } else if (request.operation == static_cast<uint32_t>(ControlOperation::kCheckpoint)) {
    job::TakeOptions options;
    options.only = (request.flags & kControlOnly) != 0;
    options.asker = fd.get();
    if ((request.flags & kControlLeaveOut) != 0) {
      static_assert(sizeof(options.leave_out) == sizeof(LeaveOutList));
      if (sys::call(__NR_recvfrom, fd.get(), options.leave_out, sizeof(options.leave_out), MSG_WAITALL, 0L,
                    0L) != sizeof(options.leave_out))
        return true;
      options.leave_out[sizeof(options.leave_out) - 1] = '\0';
    }
    if ((request.flags & kControlHosts) != 0) {
      if (sys::call(__NR_recvfrom, fd.get(), &options.part, sizeof(options.part), MSG_WAITALL, 0L, 0L) !=
          sizeof(options.part))
        return true;
      options.part.host[sizeof(options.part.host) - 1] = '\0';
      options.hosts_socket = fd.get();
    }
    const job::AskedWhileStopped stopped((request.flags & kControlStopped) != 0 ? fd.get() : -1);
    answer_checkpoint(answer, fd.get(), options);
  } else if (request.operation == static_cast<uint32_t>(ControlOperation::kJoin)) {
    job::serve_join(fd.get());
  } else if (request.operation == static_cast<uint32_t>(ControlOperation::kStat)) {
    answer_stat(answer);
  } else if (request.operation == static_cast<uint32_t>(ControlOperation::kBack)) {
    answer_back(answer, fd.get());
  } else {
    answer.line("error {} unknown operation {}", static_cast<int>(ExitCode::kUsage), request.operation);
  }
  return true;
}

}  // namespace

bool serve_asker(uint64_t cookie) {
  char name[64];
  auto end = fmt::format_to_n(name, sizeof(name), "ckpt_rt.{:016x}", cookie);
  ScopedFd fd;
  return connect_to_asker({name, end.size}, false, fd) == Found::kAsker && serve(std::move(fd));
}

namespace {

// The first asker in the list of sockets whose cookie is none of `tried`.
// A line of the list: "… 01 12345 @ckpt_rt.<pid>.<cookie>".
bool find_asker(std::span<const uint64_t> tried, uint64_t& cookie) {
  char wanted[64];
  const auto end = fmt::format_to_n(wanted, sizeof(wanted), "@ckpt_rt.{:016x}.", this_process.pid);
  const std::string_view prefix(wanted, end.size);
  constexpr size_t kDigits = 16;
  const ScopedFd list(static_cast<int>(
      sys::call(__NR_openat, AT_FDCWD, "/proc/thread-self/net/unix", O_RDONLY | O_CLOEXEC, 0)));
  if (!list.valid()) return false;
  bool found = false;
  for_each_line<4096>(list.get(), [&](std::string_view line) {
    const size_t at = line.find(prefix);
    if (at == line.npos || line.size() != at + prefix.size() + kDigits) return true;
    found = number_after(line.substr(at), prefix, 16, cookie) &&
            std::find(tried.begin(), tried.end(), cookie) == tried.end();
    return !found;
  });
  return found;
}

Found connect_at_once(uint64_t cookie, ScopedFd& fd) {
  char name[64];
  const auto end = fmt::format_to_n(name, sizeof(name), "ckpt_rt.{:016x}.{:016x}", this_process.pid, cookie);
  return connect_to_asker({name, end.size}, true, fd);
}

}  // namespace

// Another user may have sockets with such names, and is turned away; one that was served is gone. The list is
// closed before anybody is served, since a program with few descriptors leaves us few, and looked at again
// after. Those to which nobody can connect now are tried again for a while, all together: a stranger must not
// take that time for each of his.
bool serve_askers_without_cookie() {
  constexpr size_t kMost = 256;
  constexpr int64_t kBusyNs = 5'000'000'000;
  constexpr timespec kStep{0, 20'000'000};
  uint64_t tried[kMost], busy[kMost];
  size_t count = 0, left = 0;
  bool any = false;
  while (count < kMost && find_asker({tried, count}, tried[count])) {
    const uint64_t cookie = tried[count++];
    ScopedFd fd;
    const Found found = connect_at_once(cookie, fd);
    if (found == Found::kBusy) busy[left++] = cookie;
    any = (found == Found::kAsker && serve(std::move(fd))) || any;
  }
  for (const int64_t until = now_ns() + kBusyNs; left != 0 && now_ns() < until;) {
    sys::call(__NR_nanosleep, &kStep, nullptr);
    size_t still = 0;
    for (size_t i = 0; i < left; ++i) {
      ScopedFd fd;
      const Found found = connect_at_once(busy[i], fd);
      if (found == Found::kBusy) busy[still++] = busy[i];
      any = (found == Found::kAsker && serve(std::move(fd))) || any;
    }
    left = still;
  }
  return any;
}

}  // namespace ckpt
