#include "restart/channels/unix_names.h"
#include "image/read/open_file_details.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>

#include "restart/files/vanished_file.h"

namespace ckpt {
namespace {

// False: it is too long.
bool name_of(const std::string& path, SocketName& name) {
  auto& address = reinterpret_cast<sockaddr_un&>(name.address);
  if (path.size() >= sizeof(address.sun_path)) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return true;
}

// An accepted end has the name of the listening socket, and no file.
bool is_bound(const ChannelSocket& s) {
  return s.name.length != 0 && (s.detail.backlog >= 0 || s.detail.type == SOCK_DGRAM);
}

}  // namespace

bool is_path(const SocketName& name) {
  if (name.family() != AF_UNIX || name.length == 0) return false;
  const std::string text = name.text();
  return !text.empty() && text[0] != '@';
}

bool is_relative(const SocketName& name) { return is_path(name) && name.text()[0] != '/'; }

std::string directory_of(const ChannelSocket& s) {
  if (!is_relative(s.name)) return {};
  return s.directory.empty() ? std::string(s.meta->process.cwd) : s.directory;
}

std::string place_of(const ChannelSocket& s) {
  const std::string directory = directory_of(s);
  return directory.empty() ? s.name.text() : directory + "/" + s.name.text();
}

bool is_left_over(const std::string& path, int type) {
  struct stat st;
  SocketName name;
  if (lstat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode) || !name_of(path, name)) return false;
  ScopedFd probe(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return connect(probe.get(), name.get(), name.length) != 0 && errno == ECONNREFUSED;
}

void read_file(ChannelSocket& s) {
  for_each_detail<SocketFileDetail>(*s.file, OpenFileDetail::kSocketFile,
                                    [&](const SocketFileDetail& f, Blob rest) {
                                      s.socket_file = f;
                                      if (rest.size() < size_t{f.directory_len} + f.now_len) return;
                                      auto* text = reinterpret_cast<const char*>(rest.data());
                                      s.directory.assign(text, f.directory_len);
                                      s.now_at.assign(text + f.directory_len, f.now_len);
                                    });
}

// The one of this job that is bound to it; nullptr: none. like: who asks, and whose process is to be
// preferred.
const ChannelSocket* ChannelBuilder::bound_to(const SocketName& at, const ChannelSocket& like) const {
  const ChannelSocket* found = nullptr;
  for (const auto& s : sockets_) {
    if (!(s->name == at) || s->detail.domain != AF_UNIX || s->detail.type != like.detail.type ||
        !is_bound(*s))
      continue;
    if (found == nullptr || s->member == like.member) found = s.get();
  }
  return found;
}

std::string ChannelBuilder::directory_of_name(const SocketName& at, const ChannelSocket& like) const {
  if (!is_relative(at)) return {};
  const ChannelSocket* bound = bound_to(at, like);
  return bound != nullptr ? directory_of(*bound) : std::string(like.meta->process.cwd);
}

bool ChannelBuilder::connect_name(const ChannelSocket& like, int fd, const SocketName& at) const {
  const ChannelSocket* bound = is_path(at) ? bound_to(at, like) : nullptr;
  SocketName now;
  if (bound != nullptr && bound->moved && name_of(bound->now_at, now))
    return ::connect(fd, now.get(), now.length) == 0;
  const InDirectory there(directory_of_name(at, like));
  if (!there.is_there()) {
    errno = ENOENT;
    return false;
  }
  return ::connect(fd, at.get(), at.length) == 0;
}

bool ChannelBuilder::bind_file(const ChannelSocket& s, int fd, const SocketName& name,
                               const std::string& path) {
  const SocketFileDetail file = s.name == name ? s.socket_file : SocketFileDetail{};
  // Not chmod(2) afterwards: whoever may write to the directory could put a link in its place.
  const auto bind_it = [&] {
    const mode_t before = file.mode != 0 ? umask(~file.mode & 0777) : 0;
    const bool bound = bind(fd, name.get(), name.length) == 0;
    const int error = errno;
    if (file.mode != 0) umask(before);
    errno = error;
    return bound;
  };
  bool bound = bind_it();
  // Its directory was there at the checkpoint, and others know the name.
  if (!bound && errno == ENOENT && file.mode != 0 && make_directory_of(path, s.meta->process.record).ok())
    bound = bind_it();
  const int error = errno;
  struct stat st;
  const ScopedFd made(
      bound && file.mode != 0 && geteuid() == 0 ? open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1);
  if (made.valid() && fstat(made.get(), &st) == 0 && S_ISSOCK(st.st_mode) && st.st_nlink == 1 &&
      st.st_uid == 0)
    (void)!fchownat(made.get(), "", file.uid, file.gid, AT_EMPTY_PATH);
  errno = error;
  return bound;
}

// fd gets a name that is a path, of the socket itself or of the sender of a message.
Result<void> ChannelBuilder::bind_path(ChannelSocket& s, int fd, const SocketName& name, bool& unlink_after) {
  const std::string text = name.text();
  const std::string directory = s.name == name ? directory_of(s) : directory_of_name(name, s);
  // The directory of a relative name was there at the checkpoint, and others know the name.
  if (!directory.empty() && s.name == name && s.socket_file.mode != 0)
    (void)make_directory_of(directory + "/" + text, s.meta->process.record);
  const InDirectory there(directory);
  if (!there.is_there()) {
    leave_nameless(s, fd, text, unlink_after);
    return {};
  }
  struct stat st;
  unlink_after = lstat(text.c_str(), &st) != 0;
  if (is_left_over(text, s.detail.type)) unlink(text.c_str());
  const std::string now_at = is_bound(s) && s.name == name ? s.now_at : std::string();
  if (!now_at.empty()) {
    if (is_left_over(now_at, s.detail.type)) unlink(now_at.c_str());
    if (lstat(now_at.c_str(), &st) == 0)
      return make_error(ExitCode::kUnavailable, EADDRINUSE,
                        "{}: {} cannot be taken again ({}): end the program that has it", describe(s), now_at,
                        errno_name(EADDRINUSE));
  }
  // Several may have been bound to one name, and renamed one after the other.
  for (auto& other : sockets_) {
    if (other.get() != &s && other->fd >= 0 && !other->now_at.empty() && other->name == name)
      move_file(*other);
  }
  if (bind_file(s, fd, name, text)) return {};
  const int e = errno;
  if (e != ENOENT && e != ENOTDIR) return cannot_take(s, text, e);
  leave_nameless(s, fd, text, unlink_after);
  return {};
}

// The directory of its name is gone: nobody can find it by that name, here or before. A name of the kernel's
// choice, for only a socket with a name can listen.
void ChannelBuilder::leave_nameless(ChannelSocket& s, int fd, const std::string& name, bool& unlink_after) {
  say("{}: the directory of its name {} is gone: it has no such name now", describe(s), name);
  unlink_after = false;
  s.now_at.clear();
  sockaddr none{};
  none.sa_family = AF_UNIX;
  if (s.detail.backlog >= 0) (void)!bind(fd, &none, sizeof(none.sa_family));
}

void ChannelBuilder::leave_over(const SocketName& name, const ChannelSocket& like) {
  const std::string directory = directory_of_name(name, like);
  left_over_names_.push_back(directory.empty() ? name.text() : directory + "/" + name.text());
}

// A socket of another type has the name now by which this one was connected: its file makes room, if it is
// there already.
bool ChannelBuilder::borrow_name(const SocketName& at, const ChannelSocket& like) {
  if (!is_path(at)) return false;
  const std::string directory = directory_of_name(at, like);
  const std::string place = directory.empty() ? at.text() : directory + "/" + at.text();
  for (const auto& s : sockets_) {
    if (s->detail.domain != AF_UNIX || s->detail.type == like.detail.type || !is_bound(*s) ||
        place_of(*s) != place)
      continue;
    const std::string aside = fmt::format("{}.ckpt-restored-{}", place, getpid());
    lent_names_.push_back(
        {place, s->fd >= 0 && rename(place.c_str(), aside.c_str()) == 0 ? aside : std::string()});
    return true;
  }
  return false;
}

// When all streams are connected. A file of ours is in each of these places.
void ChannelBuilder::give_back_names() {
  for (const auto& [place, aside] : lent_names_) {
    unlink(place.c_str());
    if (!aside.empty()) rename(aside.c_str(), place.c_str());
  }
  lent_names_.clear();
}

// To where it was at the checkpoint.
void ChannelBuilder::move_file(ChannelSocket& s) {
  if (s.now_at.empty() || s.moved || !is_bound(s)) return;
  s.moved = rename(place_of(s).c_str(), s.now_at.c_str()) == 0;
  if (!s.moved)
    say("{}: the file of the socket cannot be renamed to {} again ({})", describe(s), s.now_at,
        errno_name(errno));
}

// When all are connected: the names that files had then.
void ChannelBuilder::leave_name(ChannelSocket& s) {
  if (s.unlink_name) unlink(place_of(s).c_str());
  move_file(s);
}

}  // namespace ckpt
