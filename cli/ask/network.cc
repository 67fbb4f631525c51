#include "cli/ask/network.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/raii_fd.h"
#include "base/sockets/descriptor_message.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// In the child: enters the program's network namespace, if need be through its user namespace, where
// whoever made it has the right to. Returns errno.
int enter_network_of(pid_t pid) {
  ScopedFd net(open(fmt::format("/proc/{}/ns/net", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!net.valid()) return errno;
  if (setns(net.get(), CLONE_NEWNET) == 0) return 0;
  ScopedFd user(open(fmt::format("/proc/{}/ns/user", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (!user.valid() || setns(user.get(), CLONE_NEWUSER) != 0) return EPERM;
  return setns(net.get(), CLONE_NEWNET) == 0 ? 0 : errno;
}

int new_socket() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

// Sends `error` in one byte, with the descriptor attached when `error` is 0.
void send_socket(int channel, int error, int fd) {
  const char byte = static_cast<char>(error);
  (void)send_descriptor(channel, &byte, 1, fd);
}

// The descriptor, or -errno.
int receive_socket(int channel) {
  char byte = 0;
  int fd = -1;
  const long n = receive_descriptor(channel, &byte, 1, &fd);
  if (n != 1) return n < 0 ? static_cast<int>(n) : -ECHILD;
  if (fd < 0) return byte != 0 ? -byte : -EPROTO;
  return fd;
}

}  // namespace

Result<int> make_socket_near(const Target& t) {
  std::string label = fmt::format("{} ({})", t.pid, t.name);
  if (!t.other_network) {
    int fd = new_socket();
    if (fd >= 0) return fd;
    return failure(ExitCode::kSystem, label, fmt::format("socket: {}", strerror(errno)), "check ulimit -n");
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return failure(ExitCode::kSystem, label, fmt::format("socketpair: {}", strerror(errno)),
                   "check ulimit -n");
  }
  ScopedFd ours(ends[0]), theirs(ends[1]);
  pid_t child = fork();
  if (child < 0) {
    return failure(ExitCode::kSystem, label, fmt::format("fork: {}", strerror(errno)), "check ulimit -u");
  }
  if (child == 0) {
    int error = enter_network_of(t.pid);
    int fd = error == 0 ? new_socket() : -1;
    if (error == 0 && fd < 0) error = errno;
    send_socket(theirs.get(), error, fd);
    _exit(0);
  }
  theirs.reset();
  int fd = receive_socket(ours.get());
  waitpid(child, nullptr, 0);
  if (fd >= 0) return fd;
  return failure(ExitCode::kPermission, label,
                 fmt::format("is in another network namespace that may not be entered: {}", strerror(-fd)),
                 fmt::format("ask from inside it: nsenter --net --user -t {} ckpt ..., or as root", t.pid));
}

}  // namespace ckpt::cli
