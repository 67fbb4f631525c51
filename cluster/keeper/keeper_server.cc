#include "cluster/keeper/keeper_server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/sockets/descriptor_message.h"

namespace ckpt::keeper {

namespace {

constexpr int kPatienceMs = 1000;

bool is_ours(uint32_t user) { return user == geteuid() || user == 0; }

bool receive_request(int client, KeeperRequest& request) {
  pollfd wait{client, POLLIN, 0};
  if (poll(&wait, 1, kPatienceMs) != 1) return false;
  return recv(client, &request, sizeof(request), MSG_DONTWAIT | MSG_TRUNC) ==
             static_cast<ssize_t>(sizeof(request)) &&
         request.magic == kKeeperMagic;
}

void answer(int client, const Memory& memory, const Facts& facts, bool with_directory) {
  const Use use = use_of(memory);
  KeeperAnswer a;
  a.pid = getpid();
  a.huge_pages = facts.huge_pages;
  a.bound_bytes = use.bound_bytes;
  a.used_bytes = use.used_bytes;
  a.touched_bytes = facts.touched_bytes;
  a.since_ns = facts.since_ns;
  // An open file for each client: reading its entries moves no other client's place in it.
  const ScopedFd directory(
      with_directory ? openat(memory.images.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1);
  (void)send_descriptor(client, &a, sizeof(a), directory.get(), MSG_DONTWAIT);
}

// True: it is to stop.
bool serve_one(int client, const Memory& memory, const Facts& facts) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(client, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 || !is_ours(peer.uid)) return false;
  KeeperRequest request;
  if (!receive_request(client, request)) return false;
  const auto operation = static_cast<KeeperOperation>(request.operation);
  answer(client, memory, facts, operation == KeeperOperation::kOpen);
  return operation == KeeperOperation::kStop;
}

bool is_listened_at(const sockaddr_un& address) {
  const ScopedFd client(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
         errno == EAGAIN;
}

// A keeper that was killed listens no more, but may have its lock for a while: the kernel closes its files
// one after the other, in its last thread, which may be the one of low priority. A keeper that is just
// starting has the lock, and listens soon. False: another keeper is there.
bool lock_alone(int lock, const sockaddr_un& address) {
  constexpr int kTries = 2000, kBetweenMs = 10;
  for (int i = 0; i < kTries; ++i) {
    if (flock(lock, LOCK_EX | LOCK_NB) == 0) return true;
    if (errno != EWOULDBLOCK || is_listened_at(address)) return false;
    poll(nullptr, 0, kBetweenMs);
  }
  return false;
}

Error cannot(const char* what, const std::string& path) {
  return make_error(ExitCode::kCannotCreate, errno, "{}: cannot be {} ({}); look who has it", path, what,
                    errno_name(errno));
}

}  // namespace

Result<Place> take_place(const std::string& name) {
  Place place;
  const std::string socket = keeper_path(geteuid(), name).text;
  const std::string directory = socket.substr(0, socket.rfind('/'));
  place.socket = socket.substr(socket.rfind('/') + 1);
  mkdir(directory.c_str(), 0700);
  place.directory.reset(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!place.directory.valid()) return cannot("opened", directory);
  struct stat st {};
  if (fstat(place.directory.get(), &st) != 0) return cannot("examined", directory);
  if (st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
    return make_error(
        ExitCode::kPermission, 0,
        "{}: belongs to user {} and has mode {:o}; it must be yours, 0700: remove it, or chmod it", directory,
        st.st_uid, st.st_mode & 07777);
  }
  const std::string lock = name + ".lock";
  place.lock.reset(
      openat(place.directory.get(), lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!place.lock.valid()) return cannot("opened", directory + "/" + lock);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(static_cast<char*>(address.sun_path), socket.data(), socket.size());
  if (!lock_alone(place.lock.get(), address)) {
    return make_error(
        ExitCode::kUnavailable, 0,
        "keeper:{}: is there already; 'ckpt keeper status {}' shows it, 'ckpt keeper stop {}' ends it", name,
        name, name);
  }
  unlinkat(place.directory.get(), place.socket.c_str(), 0);  // of one that was killed
  place.listener.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const mode_t before = umask(0177);
  const bool bound = bind(place.listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  umask(before);
  if (!bound || listen(place.listener.get(), 128) != 0) return cannot("listened on", socket);
  return place;
}

void serve(const Place& place, const Memory& memory, const Facts& facts, const int volatile* ended) {
  for (bool stop = false; !stop && *ended == 0;) {
    pollfd wait{place.listener.get(), POLLIN, 0};
    // A signal that comes just before is seen after this time at the latest.
    if (poll(&wait, 1, 1000) != 1) continue;
    const ScopedFd client(accept4(place.listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (client.valid()) stop = serve_one(client.get(), memory, facts);
  }
  unlinkat(place.directory.get(), place.socket.c_str(), 0);
}

}  // namespace ckpt::keeper
