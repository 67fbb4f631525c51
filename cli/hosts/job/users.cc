#include "cli/hosts/job/users.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>

#include "base/clock.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

sockaddr_un address_of(const std::string& name, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t n = name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
  return address;
}

}  // namespace

std::string agent_socket_name(const std::string& job, const std::string& host) {
  return fmt::format("ckpt_rt.agent.{}.{}", job, host);
}
std::string head_socket_name(int pid) { return fmt::format("ckpt_rt.head.{}", pid); }

namespace {

// An agent whose head is gone has heard of it by then, and has ended its processes.
constexpr int64_t kOlderEndsNs = 20'000'000'000;

// The process that listens there; 0: none, or one of another pid namespace.
int who_listens(const sockaddr_un& address, socklen_t length) {
  const ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ucred who{};
  socklen_t size = sizeof(who);
  const bool known = connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
                     getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) == 0;
  return known ? who.pid : 0;
}

}  // namespace

int who_listens_to_users(const std::string& name) {
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, &length);
  return who_listens(address, length);
}

// A job that was killed may come back before the kernel has ended its older agent here, which has the same
// name. The older agent is waited for: what it had started may be there as long as that agent is.
Result<ScopedFd> listen_to_users(const std::string& name) {
  ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, &length);
  const auto cannot = [&name] {
    return failure(ExitCode::kSystem, name, fmt::format("cannot be listened at: {}", strerror(errno)),
                   "try again");
  };
  if (!fd.valid()) return cannot();
  int older = 0;
  for (const int64_t until = now_ns() + kOlderEndsNs;
       bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0;) {
    if (errno != EADDRINUSE) return cannot();
    if (const int now = who_listens(address, length); now > 0) older = now;
    if (now_ns() > until)
      return failure(ExitCode::kUnavailable, name,
                     older > 0 ? fmt::format("process {} serves this job on this host already", older)
                               : "another process serves this job on this host already",
                     "end the job first, or that process");
    const ScopedFd process(older > 0 ? static_cast<int>(syscall(SYS_pidfd_open, older, 0)) : -1);
    pollfd gone{process.get(), POLLIN, 0};
    (void)!poll(&gone, 1, process.valid() ? 1000 : 10);
  }
  if (listen(fd.get(), 16) != 0) return cannot();
  return fd;
}

bool is_own_user(int connection) {
  ucred who{};
  socklen_t size = sizeof(who);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 &&
         (who.uid == geteuid() || who.uid == 0);
}

bool ask_over_hosts(const std::string& name, const Json& question, Json& answer) {
  ScopedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, &length);
  if (!fd.valid() || connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      !is_own_user(fd.get()))
    return false;
  return write_line(fd.get(), question) && read_line(fd.get(), answer, -1);
}

}  // namespace ckpt::cli
