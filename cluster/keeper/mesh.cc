#include "cluster/keeper/mesh.h"

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace ckpt::keeper {

namespace {

constexpr unsigned kMostStrangers = 16;  // who say nothing, at a time

}  // namespace

Result<int> Mesh::listen(const std::string& address) {
  int port = 0;
  auto fd = cluster::listen_at(address, 0, &port);
  if (!fd.ok()) return fd.error();
  listener_ = std::move(*fd);
  return port;
}

Result<void> Mesh::meet(const Peers& peers) {
  peers_ = peers;
  const size_t hosts = peers_.addresses.size();
  to_.resize(hosts);
  {
    const std::lock_guard<std::mutex> guard(lock_);
    seen_.assign(hosts, false);
    gone_.assign(hosts, false);
  }
  acceptor_ = std::thread([this] { accept_all(); });
  for (unsigned host = 0; host < hosts; ++host) {
    if (host == peers_.self) continue;
    auto socket = cluster::connect_to(peers_.addresses[host], peers_.ports[host], kMeetMs);
    if (!socket.ok()) return socket.error();
    // The other end listens since before anybody was told its port, and answers when it meets, as this one.
    auto link = cluster::SealedLink::connect(std::move(*socket), peers_.secret, kMeetMs);
    if (!link.ok())
      return make_error(link.error().code, 0, "{}: {}", peers_.addresses[host], link.error().message());
    to_[host] = std::move(*link);
    to_[host].use_libcrypto();
    compose(host, {kHello, peers_.self, 0, 0}, 0);
    if (!send(host)) return make_error(ExitCode::kUnavailable, 0, "{}: is gone", peers_.addresses[host]);
  }
  std::unique_lock<std::mutex> guard(lock_);
  const auto first_gone = [this] { return std::find(gone_.begin(), gone_.end(), true); };
  changed_.wait_for(guard, std::chrono::milliseconds(kMeetMs),
                    [&] { return met_ == hosts - 1 || first_gone() != gone_.end(); });
  if (met_ == hosts - 1) return {};
  gave_up_ = true;
  if (first_gone() == gone_.end()) return make_error(ExitCode::kUnavailable, 0, "not all hosts have met");
  return make_error(ExitCode::kUnavailable, 0, "{}: is gone",
                    peers_.addresses[static_cast<size_t>(first_gone() - gone_.begin())]);
}

// Each peer is greeted by a thread of its own: at low priority, on a busy machine, a host's hello may take
// seconds, and a stranger may never send one.
void Mesh::accept_all() {
  for (;;) {
    pollfd wait{listener_.get(), POLLIN, 0};
    (void)!poll(&wait, 1, 100);
    {
      const std::lock_guard<std::mutex> guard(lock_);
      if (ending_ || gave_up_ || met_ == peers_.addresses.size() - 1) {
        listener_.reset();
        return;
      }
      if (wait.revents == 0 || greeted_ >= peers_.addresses.size() + kMostStrangers) continue;
    }
    ScopedFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // Another descriptor of the same socket: to end it from outside, whatever becomes of the first.
    ScopedFd same(peer.valid() ? fcntl(peer.get(), F_DUPFD_CLOEXEC, 3) : -1);
    if (!same.valid()) continue;
    const std::lock_guard<std::mutex> guard(lock_);
    open_.push_back(same.get());
    ++greeted_;
    receivers_.emplace_back([this, fd = peer.release(), other = same.release()] {
      const ScopedFd closes(other);
      greet(ScopedFd(fd));
      const std::lock_guard<std::mutex> done(lock_);
      std::erase(open_, closes.get());
      --greeted_;
    });
  }
}

void Mesh::greet(ScopedFd peer) {
  auto link = cluster::SealedLink::accept(std::move(peer), peers_.secret, kMeetMs);
  if (!link.ok()) return;  // a stranger
  link->use_libcrypto();
  MessageHead head{};
  const auto bytes = link->receive_into(std::as_writable_bytes(std::span(&head, 1)));
  if (bytes != sizeof(head) || head.kind != kHello || head.role >= peers_.addresses.size() ||
      head.role == peers_.self)
    return;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (seen_[head.role]) return;
    seen_[head.role] = true;
    ++met_;
    changed_.notify_all();
  }
  receive_from(head.role, std::move(*link));
}

void Mesh::receive_from(unsigned host, cluster::SealedLink link) {
  for (;;) {
    // While nothing comes, which is most of the time, no memory is held for it.
    Block block = link.wait_for_length() ? blocks_.take() : Block();
    const auto bytes = block ? link.receive_into(block.message()) : std::nullopt;
    std::unique_lock<std::mutex> guard(lock_);
    if (bytes >= sizeof(MessageHead)) changed_.wait(guard, [this] { return ending_ || hears_ != nullptr; });
    if (ending_) return;
    MessageHead head{};
    if (bytes >= sizeof(head)) {
      memcpy(&head, block.message().data(), sizeof(head));
      if (hears_->take(host, head, std::move(block), *bytes - sizeof(head))) continue;
    }
    gone_[host] = true;
    changed_.notify_all();
    if (hears_ != nullptr) hears_->gone(host);
    return;
  }
}

bool Mesh::whole() {
  // Nobody says anything on these; of their end only a look tells.
  std::vector<pollfd> ends;
  for (const cluster::SealedLink& link : to_) {
    if (link.valid()) ends.push_back({link.fd(), POLLRDHUP, 0});
  }
  if (poll(ends.data(), ends.size(), 0) != 0) return false;
  const std::lock_guard<std::mutex> guard(lock_);
  return !peers_.addresses.empty() && met_ == peers_.addresses.size() - 1 &&
         std::none_of(gone_.begin(), gone_.end(), [](bool gone) { return gone; });
}

void Mesh::hear(MeshListener* listener) {
  const std::lock_guard<std::mutex> guard(lock_);
  hears_ = listener;
  for (unsigned host = 0; listener != nullptr && host < gone_.size(); ++host) {
    if (gone_[host]) listener->gone(host);
  }
  changed_.notify_all();
}

void Mesh::give_room_back() {
  for (cluster::SealedLink& link : to_) link.give_room_back();
}

std::span<std::byte> Mesh::compose(unsigned host, const MessageHead& head, size_t bytes) {
  const std::span<std::byte> room = to_[host].compose(sizeof(head) + bytes);
  memcpy(room.data(), &head, sizeof(head));
  return room.subspan(sizeof(head));
}

Mesh::~Mesh() {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    ending_ = true;
    for (const int fd : open_) shutdown(fd, SHUT_RDWR);
    changed_.notify_all();
  }
  for (cluster::SealedLink& link : to_) link.close();
  if (acceptor_.joinable()) acceptor_.join();
  {
    const std::lock_guard<std::mutex> guard(lock_);
    for (const int fd : open_) shutdown(fd, SHUT_RDWR);
  }
  for (std::thread& t : receivers_) t.join();
}

}  // namespace ckpt::keeper
