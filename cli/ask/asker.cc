#include "cli/ask/asker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "base/settings/settings.h"
#include "cli/ask/hand_over.h"
#include "cli/ask/network.h"
#include "cli/ask/stopped_target.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

constexpr size_t kLongestLine = 64 << 10;  // bytes; a path and its key are far shorter

std::string label_of(const Target& t) { return fmt::format("{} ({})", t.pid, t.name); }

Error system_error(const Target& t, const char* what) {
  int error = errno;
  return failure(ExitCode::kSystem, label_of(t),
                 fmt::format("{}: {} ({})", what, strerror(error), errno_name(error)),
                 "try again, and report it if it stays");
}

Error no_answer(const Target& t, int64_t waited_ns) {
  char state = process_state(t.pid);
  std::string what = fmt::format("did not answer within {:.3g} s", static_cast<double>(waited_ns) / 1e9);
  const char* remedy = "see the log in its image directory, or give it longer with --timeout";
  if (state == 'T') {
    what += ": it is stopped";
    remedy = "continue it with kill -CONT";
  } else if (state == 't') {
    what += ": a debugger holds it";
    remedy = "let the debugger continue it";
  } else if (state == 'D') {
    what += ": it waits for a device (state D)";
  }
  return failure(ExitCode::kTimeout, label_of(t), what, remedy);
}

Error died(const Target& t) {
  return failure(ExitCode::kNoProcess, label_of(t), "exited before it answered",
                 "restart an image with ckpt-restart");
}

// Waits until `fd` can be read. The end of the process ends the wait as well; deadline_ns 0 is never.
enum class Waited { kReadable, kDied, kTimeout, kError };
Waited wait_readable(const Target& t, int fd, int64_t deadline_ns) {
  while (true) {
    int timeout = -1;
    if (deadline_ns != 0) {
      int64_t left = deadline_ns - now_ns();
      if (left <= 0) return Waited::kTimeout;
      timeout = static_cast<int>(std::min<int64_t>(left / 1'000'000 + 1, 1'000'000));
    }
    pollfd fds[2] = {{fd, POLLIN, 0}, {t.pidfd.get(), POLLIN, 0}};
    int n = poll(fds, 2, timeout);
    if (n < 0 && errno != EINTR) return Waited::kError;
    // Bytes that the program wrote before it died are read first.
    if (n > 0 && fds[0].revents != 0) return Waited::kReadable;
    if (n > 0 && fds[1].revents != 0) return Waited::kDied;
  }
}

Error wait_failure(const Target& t, Waited how, int64_t limit_ns) {
  switch (how) {
    case Waited::kDied:
      return died(t);
    case Waited::kTimeout:
      return no_answer(t, limit_ns);
    default:
      return system_error(t, "poll");
  }
}

// inner_pid: 0 for an asker whose cookie the program is told.
sockaddr_un address_of(uint64_t cookie, pid_t inner_pid, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = inner_pid == 0 ? fmt::format("ckpt_rt.{:016x}", cookie)
                                          : fmt::format("ckpt_rt.{:016x}.{:016x}", inner_pid, cookie);
  auto end = fmt::format_to_n(address.sun_path + 1, sizeof(address.sun_path) - 1, "{}", name);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + end.size);
  return address;
}

// The credentials that the program checks are those of the process at its listen(2). Root is root in its
// own user namespace only: a program that was restarted into another sees a user without a name. So we
// listen as the program's own user, which is what root may do.
bool listen_as_user_of(const Target& t, int listener) {
  const uid_t own = geteuid();
  // A root without that right asks as itself, and is known where it shares the namespace.
  const bool other = own == 0 && t.uid != own && seteuid(t.uid) == 0;
  const bool listens = listen(listener, 4) == 0;
  const int error = errno;
  if (other && seteuid(own) != 0) return false;
  errno = error;
  return listens;
}

// info: nullptr sends what kill(2) sends. False: there is no place in the queue of the program's user.
Result<bool> send_signal(const Target& t, siginfo_t* info) {
  if (syscall(SYS_pidfd_send_signal, t.pidfd.get(), t.signal, info, 0) == 0) return true;
  if (errno == EAGAIN) return false;
  if (errno == ESRCH) return died(t);
  if (errno == EPERM) {
    return failure(ExitCode::kPermission, label_of(t), "may not be signalled", "ask as its user or as root");
  }
  return system_error(t, "pidfd_send_signal");
}

Result<bool> queue_signal(const Target& t, uint64_t cookie) {
  siginfo_t info{};
  info.si_signo = t.signal;
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_ptr = reinterpret_cast<void*>(cookie);
  return send_signal(t, &info);
}

Result<int> listen_for(const Target& t, uint64_t cookie, pid_t inner_pid) {
  auto made = make_socket_near(t);
  if (!made.ok()) return made.error();
  ScopedFd listener(*made);
  socklen_t length = 0;
  sockaddr_un address = address_of(cookie, inner_pid, &length);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    return system_error(t, "bind");
  if (!listen_as_user_of(t, listener.get())) return system_error(t, "listen");
  return listener.release();
}

// Returns the socket to which the program will connect.
Result<int> call_program(const Target& t, bool of_job) {
  uint64_t cookie = 0;
  if (getrandom(&cookie, sizeof(cookie), 0) != sizeof(cookie)) return system_error(t, "getrandom");
  cookie = (cookie | kLeastCookie) & ~(kJoinCookie | kBackCookie);
  if (of_job) cookie |= kBackCookie;
  auto listener = listen_for(t, cookie, 0);
  if (!listener.ok()) return listener.error();
  auto sent = queue_signal(t, cookie);
  if (sent.ok() && *sent) return *listener;
  close(*listener);
  if (!sent.ok()) return sent.error();
  listener = listen_for(t, cookie, t.inner_pid);
  if (!listener.ok()) return listener.error();
  sent = send_signal(t, nullptr);
  if (sent.ok() && *sent) return *listener;
  close(*listener);
  return sent.ok() ? system_error(t, "kill") : sent.error();
}

// The program's connection: whoever else finds the socket is turned away.
Result<int> accept_program(const Target& t, int listener, const AskLimits& limits) {
  int64_t deadline = now_ns() + limits.answer_ns;
  while (true) {
    Waited w = wait_readable(t, listener, deadline);
    if (w == Waited::kTimeout && limits.total_ns == 0 && checkpoint_under_way(t.pid)) {
      deadline = now_ns() + limits.answer_ns;
      continue;
    }
    if (w != Waited::kReadable) return wait_failure(t, w, limits.answer_ns);
    ScopedFd peer(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return system_error(t, "accept");
    }
    ucred who{};
    socklen_t size = sizeof(who);
    if (getsockopt(peer.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
      return system_error(t, "SO_PEERCRED");
    if (who.pid == t.pid) return peer.release();
  }
}

// Buffered bytes of the connection.
class Stream {
 public:
  Stream(const Target& target, int fd, const AskLimits& limits, int64_t started_ns)
      : target_(target), fd_(fd), limits_(limits), started_ns_(started_ns) {}

  Result<void> exactly(void* out, size_t n) {
    while (buffer_.size() < n) {
      auto got = more(accepted_ns_ + limits_.answer_ns, limits_.answer_ns);
      if (!got.ok()) return got.error();
      if (!*got) return hung_up();
    }
    memcpy(out, buffer_.data(), n);
    buffer_.erase(0, n);
    return {};
  }

  // A line without its end; nothing at the end of the answer.
  Result<std::optional<std::string>> line() {
    size_t end;
    while ((end = buffer_.find('\n')) == std::string::npos) {
      if (buffer_.size() > kLongestLine) return broke_off();
      auto got = more(limits_.total_ns == 0 ? 0 : started_ns_ + limits_.total_ns, limits_.total_ns);
      if (!got.ok()) return got.error();
      if (!*got) return std::optional<std::string>();
    }
    std::optional<std::string> text = buffer_.substr(0, end);
    buffer_.erase(0, end + 1);
    return text;
  }

  // The connection is closed by the agent's own end, and a program ends only with the last of its threads:
  // on a busy machine much later.
  Error hung_up() const {
    switch (wait_readable(target_, target_.pidfd.get(), now_ns() + limits_.answer_ns)) {
      case Waited::kReadable:
      case Waited::kDied:  // it ended between poll()'s looks at the two
        return died(target_);
      default:
        return broke_off();
    }
  }

 private:
  Error broke_off() const {
    return failure(ExitCode::kInternal, label_of(target_), "broke off before its answer was complete",
                   "see the log in its image directory");
  }

  // False at end of file.
  Result<bool> more(int64_t deadline_ns, int64_t limit_ns) {
    Waited w = wait_readable(target_, fd_, deadline_ns);
    if (w != Waited::kReadable) return wait_failure(target_, w, limit_ns);
    char bytes[4096];
    ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
    if (n < 0 && errno != EINTR && errno != ECONNRESET) return system_error(target_, "recv");
    if (n < 0 && errno == EINTR) return true;
    if (n <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(n));
    return true;
  }

  const Target& target_;
  int fd_;
  const AskLimits& limits_;
  int64_t started_ns_, accepted_ns_ = now_ns();
  std::string buffer_;
};

// "error CODE TEXT"
Error parse_error(const Target& t, const std::string& value) {
  int code = static_cast<int>(ExitCode::kInternal);
  auto [end, bad] = std::from_chars(value.data(), value.data() + value.size(), code);
  std::string text(end, value.data() + value.size());
  if (!text.empty() && text[0] == ' ') text.erase(0, 1);
  if (bad != std::errc() || code <= 0 || code > 255) code = static_cast<int>(ExitCode::kInternal);
  return make_error(static_cast<ExitCode>(code), 0, "{}: {}", printable(label_of(t)), printable(text));
}

}  // namespace

std::string text_of(const Answer& answer, const std::string& key) {
  for (const auto& [k, v] : answer) {
    if (k == key) return v;
  }
  return "";
}

uint64_t number_of(const Answer& answer, const std::string& key) {
  std::string text = text_of(answer, key);
  uint64_t n = 0;
  std::from_chars(text.data(), text.data() + text.size(), n);
  return n;
}

Result<void> refuse_stopped(const Target& t) {
  if (t.state != 'T') return {};
  return failure(ExitCode::kUnavailable, label_of(t), "is stopped and cannot answer",
                 fmt::format("continue it: kill -CONT {}", t.pid));
}

Result<void> set_timeout(const std::string& timeout, AskLimits& limits) {
  if (timeout.empty()) return {};
  auto longest = parse_duration("--timeout", timeout.c_str());
  if (!longest.ok()) return longest.error();
  if (*longest <= 0)
    return failure(ExitCode::kUsage, "--timeout", "must be more than 0", "give for example 30s");
  limits = {*longest, *longest};
  return {};
}

Result<ScopedFd> call(const Target& t, ControlOperation operation, const AskLimits& limits,
                      const AskOptions& options) {
  const int64_t started = now_ns();
  if (!options.stop_signal) CKPT_TRY(refuse_stopped(t));
  auto called = call_program(t, options.back_of_job);
  if (!called.ok()) return called.error();
  ScopedFd listener(*called);
  auto accepted = accept_program(t, listener.get(), limits);
  if (!accepted.ok()) return accepted.error();
  ScopedFd peer(*accepted);
  listener.reset();

  Stream stream(t, peer.get(), limits, started);
  ControlHello hello{};
  CKPT_TRY(stream.exactly(&hello, sizeof(hello)));
  if (hello.magic != kControlMagic || hello.version != kControlVersion) {
    return failure(ExitCode::kIncompatible, label_of(t),
                   fmt::format("speaks version {} of the control protocol, this ckpt version {}",
                               hello.version, kControlVersion),
                   fmt::format("use the ckpt that belongs to {}", brief(t.library)));
  }
  if (hello.pid != t.inner_pid) {
    return failure(ExitCode::kInternal, label_of(t),
                   fmt::format("answered as process {} instead of {}", hello.pid, t.inner_pid), "report it");
  }
  // An answer follows the hello, and no program answers before it is asked: the stream holds nothing more.
  ControlRequest request{kControlMagic, kControlVersion, static_cast<uint32_t>(operation), 0};
  if (options.only) request.flags |= kControlOnly;
  if (!options.leave_out.empty()) request.flags |= kControlLeaveOut;
  if (options.part != nullptr) request.flags |= kControlHosts;
  if (options.stop_signal) request.flags |= kControlStopped;
  if (send(peer.get(), &request, sizeof(request), MSG_NOSIGNAL) != sizeof(request)) return stream.hung_up();
  if (!options.leave_out.empty()) {
    LeaveOutList list{};
    options.leave_out.copy(list.text, sizeof(list.text) - 1);
    if (send(peer.get(), &list, sizeof(list), MSG_NOSIGNAL) != sizeof(list)) return stream.hung_up();
  }
  if (options.part != nullptr &&
      send(peer.get(), options.part, sizeof(*options.part), MSG_NOSIGNAL) != sizeof(*options.part))
    return stream.hung_up();
  return peer;
}

Result<Answer> read_answer(const Target& t, int connection, const AskLimits& limits,
                           const OnProgress& on_progress, const AskOptions& options) {
  Stream stream(t, connection, limits, now_ns());
  Answer answer;
  while (true) {
    auto line = stream.line();
    if (!line.ok()) return line.error();
    if (!line->has_value()) return stream.hung_up();
    std::string& text = **line;
    size_t space = text.find(' ');
    std::string key = text.substr(0, space);
    std::string value = space == std::string::npos ? "" : text.substr(space + 1);
    if (key == "done") return answer;
    if (key == "error") return parse_error(t, value);
    if (key == "need" && value.starts_with("step ") && options.at_step) {
      const std::string goes_on = options.at_step(value.substr(5), answer);
      answer.clear();
      // Gone: its own last words, or none, tell why.
      for (size_t sent = 0; sent < goes_on.size();) {
        const ssize_t n = send(connection, goes_on.data() + sent, goes_on.size() - sent, MSG_NOSIGNAL);
        if (n <= 0) break;
        sent += static_cast<size_t>(n);
      }
      continue;
    }
    if (key == "need" && value == "stop_signal" && options.stop_signal) {
      const auto signal = static_cast<uint8_t>(options.stop_signal());
      (void)!send(connection, &signal, 1, MSG_NOSIGNAL);
      continue;
    }
    if (key == "need") {
      CKPT_TRY(hand_over(t, connection, value));
      continue;
    }
    if (key == "progress") {
      uint64_t done = 0, total = 0;
      auto middle = std::from_chars(value.data(), value.data() + value.size(), done).ptr;
      if (middle < value.data() + value.size())
        std::from_chars(middle + 1, value.data() + value.size(), total);
      if (on_progress) on_progress(done, total);
      continue;
    }
    answer.emplace_back(std::move(key), std::move(value));
  }
}

Result<Answer> ask(const Target& t, ControlOperation operation, const AskLimits& limits,
                   const OnProgress& on_progress, const AskOptions& asked) {
  std::optional<StoppedTarget> stopped;
  AskOptions options = asked;
  if (t.state == 'T') {
    stopped.emplace();
    CKPT_TRY(stopped->seize(t));
    options.stop_signal = [&] { return stopped->stop_signal(t); };
  }
  auto connection = call(t, operation, limits, options);
  if (!connection.ok()) return connection.error();
  return read_answer(t, connection->get(), limits, on_progress, options);
}

Result<void> read_exactly(const Target& t, int connection, const AskLimits& limits, void* out, size_t bytes) {
  const int64_t deadline = now_ns() + limits.answer_ns;
  for (size_t done = 0; done < bytes;) {
    const Waited w = wait_readable(t, connection, deadline);
    if (w != Waited::kReadable) return wait_failure(t, w, limits.answer_ns);
    const ssize_t n = recv(connection, static_cast<char*>(out) + done, bytes - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Stream(t, connection, limits, now_ns()).hung_up();
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<ScopedFd> listen_near(const Target& t, const char* name, uint64_t cookie) {
  auto made = make_socket_near(t);
  if (!made.ok()) return made.error();
  ScopedFd listener(*made);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  auto end = fmt::format_to_n(address.sun_path + 1, sizeof(address.sun_path) - 1, "{}.{:016x}", name, cookie);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + end.size);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    return system_error(t, "bind");
  if (!listen_as_user_of(t, listener.get())) return system_error(t, "listen");
  return listener;
}

Result<ScopedFd> accept_from(const Target& t, int listener, const AskLimits& limits) {
  auto accepted = accept_program(t, listener, limits);
  if (!accepted.ok()) return accepted.error();
  return ScopedFd(*accepted);
}

}  // namespace ckpt::cli
