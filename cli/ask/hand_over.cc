#include "cli/ask/hand_over.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <vector>

#include "base/protocol/control_protocol.h"
#include "base/raii_fd.h"
#include "cli/text/failure.h"
#include "image/format/keeper_client.h"

namespace ckpt::cli {

namespace {

constexpr std::string_view kDirectory = "directory ";

// Belongs to the program's user, and nobody else may write to it.
bool is_of_user(const Target& t, int directory) {
  struct stat st;
  return fstat(directory, &st) == 0 && st.st_uid == t.uid && (st.st_mode & 022) == 0;
}

// As the program names it, in its own tree of files.
ScopedFd open_directory(const Target& t, const std::string& path) {
  if (!path.starts_with('/')) return {};
  if (keeper_part(path) == path.size()) {
    auto directory = open_keeper_directory(path);
    return directory.ok() && is_of_user(t, directory->get()) ? std::move(*directory) : ScopedFd();
  }
  const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
  ScopedFd set(open(fmt::format("/proc/{}/root{}", t.pid, path).c_str(), flags));
  if (!set.valid() || is_of_user(t, set.get())) return set;
  ScopedFd of_user(openat(set.get(), fmt::format("user-{}", t.uid).c_str(), flags));
  if (of_user.valid() && is_of_user(t, of_user.get())) return of_user;
  return {};
}

ScopedFd open_own(const Target& t, const char* file) {
  return ScopedFd(open(fmt::format("/proc/{}/{}", t.pid, file).c_str(), O_RDONLY | O_CLOEXEC));
}

}  // namespace

Result<void> hand_over(const Target& t, int socket, const std::string& what) {
  std::vector<ScopedFd> files;
  if (what == "memory") {
    files.push_back(open_own(t, "mem"));
    files.push_back(open_own(t, "pagemap"));
  } else if (what.starts_with(kDirectory)) {
    files.push_back(open_directory(t, what.substr(kDirectory.size())));
  }
  std::vector<int> numbers;
  for (const ScopedFd& file : files) {
    if (file.valid()) numbers.push_back(file.get());
  }
  // Both or none: they are told apart by their order.
  if (numbers.size() != files.size()) numbers.clear();
  char byte = kHandedOver;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (!numbers.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(numbers.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(numbers.size() * sizeof(int));
    memcpy(CMSG_DATA(c), numbers.data(), numbers.size() * sizeof(int));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL) == 1 || errno == EPIPE || errno == ECONNRESET) return {};
  return failure(ExitCode::kSystem, fmt::format("{} ({})", t.pid, t.name),
                 fmt::format("cannot be given what it needs: {}", strerror(errno)), "try again");
}

}  // namespace ckpt::cli
