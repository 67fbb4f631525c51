#include "image/format/keeper_client.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include "base/sockets/descriptor_message.h"
#include "base/sockets/local_peer.h"
#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

constexpr timeval kPatience{2, 0};
constexpr int kMostTries = 3;

struct Name {
  char text[kMostKeeperName + 1] = {};
};

// "main" of ".../main.keeper".
Name name_of(std::string_view path) {
  Name name;
  const std::string_view socket = path.substr(0, keeper_part(path));
  const size_t slash = socket.rfind('/');
  if (slash == std::string_view::npos || socket.size() < slash + 1 + kKeeperSuffix.size()) return name;
  const std::string_view last = socket.substr(slash + 1, socket.size() - slash - 1 - kKeeperSuffix.size());
  last.copy(name.text, kMostKeeperName);
  return name;
}

Error is_gone(std::string_view path) {
  const Name name = name_of(path);
  return make_error(
      ExitCode::kUnavailable, 0,
      "keeper:{}: there is no such keeper any more, and what it held is gone; start it again with 'ckpt "
      "keeper start {}'",
      static_cast<const char*>(name.text), static_cast<const char*>(name.text));
}

Error silent(std::string_view path) {
  return make_error(ExitCode::kTimeout, 0, "keeper:{}: does not answer; see 'ckpt keeper status {}'",
                    static_cast<const char*>(name_of(path).text),
                    static_cast<const char*>(name_of(path).text));
}

Error not_ours(std::string_view path, uint32_t user) {
  return make_error(ExitCode::kPermission, 0, "keeper:{}: belongs to user {}; start one of your own",
                    static_cast<const char*>(name_of(path).text), user);
}

uint32_t own_user() { return static_cast<uint32_t>(sys::call(__NR_geteuid)); }

// Our own keepers and root's; root may ask all.
bool may_be_asked(uint32_t user) {
  const uint32_t own = own_user();
  return user == own || user == 0 || own == 0;
}

Result<ScopedFd> connect_to(std::string_view path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t bytes = keeper_part(path);
  if (bytes == 0) return make_error(ExitCode::kInternal, 0, "a path that names no keeper was taken for one");
  path.copy(address.sun_path, bytes);
  // Others may make names in /tmp, but none in a directory that is not theirs.
  struct stat st;
  char directory[sizeof(address.sun_path)] = {};
  path.copy(directory, path.substr(0, bytes).rfind('/'));
  long r = sys::call(__NR_newfstatat, long{AT_FDCWD}, directory, &st, static_cast<long>(AT_SYMLINK_NOFOLLOW));
  if (sys::failed(r)) return is_gone(path);
  if (!S_ISDIR(st.st_mode) || !may_be_asked(st.st_uid) || (st.st_mode & 022) != 0)
    return not_ours(path, st.st_uid);
  ScopedFd socket(static_cast<int>(
      sys::call(__NR_socket, long{AF_UNIX}, static_cast<long>(SOCK_SEQPACKET | SOCK_CLOEXEC), 0L)));
  if (!socket.valid())
    return make_error(ExitCode::kSystem, socket.get(),
                      "no socket to ask the keeper: no descriptor or memory is left");
  r = connect_with_patience(socket.get(), address, sizeof(address), kPatience);
  if (r == -EAGAIN) return silent(path);
  if (r == -EACCES) return not_ours(path, st.st_uid);
  if (sys::failed(r)) return is_gone(path);
  uint32_t user = 0;
  r = user_of_peer(socket.get(), user);
  if (sys::failed(r) || !may_be_asked(user)) return not_ours(path, user);
  return socket;
}

// hung_up: the keeper was there, and closed the connection without a word. The keeper waits one second for a
// request: on a busy machine this process may have been without a processor for as long.
Result<KeeperAnswer> ask_once(std::string_view path, KeeperOperation operation, ScopedFd* directory,
                              bool& hung_up) {
  hung_up = false;
  auto socket = connect_to(path);
  if (!socket.ok()) return socket.error();
  KeeperRequest request;
  request.operation = static_cast<uint32_t>(operation);
  long r;
  while ((r = sys::call(__NR_sendto, socket->get(), &request, sizeof(request),
                        static_cast<long>(MSG_NOSIGNAL), nullptr, 0L)) == -EINTR) {
  }
  if (r == -EAGAIN) return silent(path);
  hung_up = r == -EPIPE;
  if (r != static_cast<long>(sizeof(request))) return is_gone(path);
  KeeperAnswer answer;
  int fd = -1;
  r = receive_descriptor(socket->get(), &answer, sizeof(answer), &fd);
  ScopedFd received(fd);
  if (r == -EAGAIN) return silent(path);
  hung_up = r == 0 || r == -ECONNRESET;
  if (r != static_cast<long>(sizeof(answer)) || answer.magic != kKeeperMagic ||
      (directory != nullptr && !received.valid()))
    return is_gone(path);
  if (directory != nullptr) *directory = std::move(received);
  return answer;
}

}  // namespace

Result<KeeperAnswer> ask_keeper(std::string_view path, KeeperOperation operation, ScopedFd* directory) {
  for (int left = kMostTries;;) {
    bool hung_up = false;
    auto answer = ask_once(path, operation, directory, hung_up);
    if (answer.ok() || !hung_up || --left == 0) return answer;
  }
}

Result<ScopedFd> open_keeper_directory(std::string_view path) {
  ScopedFd directory;
  auto answer = ask_keeper(path, KeeperOperation::kOpen, &directory);
  if (!answer.ok()) return answer.error();
  return directory;
}

Result<void> check_keeper_holds(std::string_view path, int directory) {
  auto now = open_keeper_directory(path);
  if (!now.ok()) return now.error();
  // The directory is open here, so no later mount has its number.
  struct stat had, has;
  if (sys::failed(sys::call(__NR_fstat, directory, &had)) ||
      sys::failed(sys::call(__NR_fstat, now->get(), &has)) || had.st_dev != has.st_dev)
    return make_error(
        ExitCode::kUnavailable, 0,
        "keeper:{}: it ended while the checkpoint was taken, and another was started; take it again",
        static_cast<const char*>(name_of(path).text));
  return {};
}

}  // namespace ckpt
