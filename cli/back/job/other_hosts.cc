#include "cli/back/job/other_hosts.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/sockets/opened_connection.h"
#include "cli/text/failure.h"
#include "cli/text/json_lines.h"
#include "restart/channels/hosts_plan.h"
#include "restart/channels/queue_exchange.h"

namespace ckpt::cli {

namespace {

Error gave_up() {
  return make_error(ExitCode::kUnavailable, 0,
                    "the job's other hosts have given up, or this host's agent is gone");
}

Result<ScopedFd> descriptor_of(int pidfd, int fd, const std::string& name) {
  ScopedFd ours(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd, fd, 0)));
  if (ours.valid()) return ours;
  return make_error(ExitCode::kPermission, errno,
                    "{}: cannot be looked at ({}); ask as root; nothing was changed", name,
                    errno_name(errno));
}

// What the exchange changes of a connection.
class ExchangedConnection {
 public:
  explicit ExchangedConnection(int fd) : fd_(fd), room_(fd), held_back_(send_at_once(fd)) {}
  void put_back() const {
    room_.put_back();
    // QueueExchange has set a size, which locks it.
    if (!room_.was_locked()) set_int(fd_, SOL_SOCKET, kSoBufLock, 0);
    hold_back_again(fd_, held_back_);
  }

 private:
  int fd_;
  ReceiveRoom room_;
  HeldBack held_back_;
};

}  // namespace

OtherHosts::OtherHosts(int socket, const nlohmann::json& connections) : socket_(socket) {
  for (const auto& c : connections) {
    const std::string one = c.at(0), other = c.at(1);
    connections_.insert({one, other});
    connections_.insert({other, one});
  }
}

bool OtherHosts::leads_there(const SocketName& local, const SocketName& remote) const {
  return local.length != 0 && remote.length != 0 &&
         connections_.contains({end_text(local), end_text(remote)});
}

Result<void> OtherHosts::lose_a_host(const nlohmann::json& plan) {
  auto parsed = parse_hosts_plan(plan.dump());
  if (!parsed.ok()) return parsed.error();
  parsed->all_listen = [this] { return come_to("listening"); };
  set_hosts_plan(std::move(*parsed));
  lost_a_host_ = true;
  return {};
}

std::span<const AddressLine> OtherHosts::addresses() const {
  return lost_a_host_ ? std::span<const AddressLine>(hosts_plan()->is) : std::span<const AddressLine>();
}

bool OtherHosts::leads_to_lost(const SocketName& local, const SocketName& remote) const {
  return lost_a_host_ && local.length != 0 && remote.length != 0 &&
         hosts_plan()->connections.contains({end_text(local), end_text(remote)});
}

Result<void> OtherHosts::come_to(const std::string& step, const std::function<bool()>& gives_up) {
  if (passed_.contains(step)) return {};
  nlohmann::json said{{"say", "step"}, {"step", step}};
  // The head compares them: of each connection both ends have to be there.
  for (const FarConnection& c : mine_) said["connections"].push_back({c.local, c.remote});
  if (!write_line(socket_, said)) return gave_up();
  for (;;) {
    pollfd wait{socket_, POLLIN, 0};
    if (poll(&wait, 1, 50) > 0) break;
    if (gives_up && gives_up()) return gave_up();
  }
  nlohmann::json answer;
  if (!read_line(socket_, answer, 10'000) || answer.value("step", "") != step) return gave_up();
  passed_.insert(step);
  return {};
}

Result<void> OtherHosts::add(int pidfd, int fd, FarConnection connection) {
  auto ours = descriptor_of(pidfd, fd, connection.name);
  if (!ours.ok()) return ours.error();
  connection.fd = std::move(*ours);
  mine_.push_back(std::move(connection));
  return {};
}

Result<void> OtherHosts::check_nobody_waits(int pidfd, int fd, const std::string& name) {
  auto ours = descriptor_of(pidfd, fd, name);
  if (!ours.ok()) return ours.error();
  pollfd wait{ours->get(), POLLIN, 0};
  if (poll(&wait, 1, 0) <= 0) return {};
  return failure(ExitCode::kUnsupported, name, "has a connection that was not accepted yet",
                 "nothing was changed; ask again, or restart the job with ckpt-restart --hosts");
}

Result<void> OtherHosts::give_back_queues(const std::function<bool()>& gives_up) {
  std::vector<ExchangedConnection> changed;
  std::vector<QueueExchange> all;
  for (const FarConnection& c : mine_) {
    changed.emplace_back(c.fd.get());
    std::vector<Blob> queue;
    for (const auto& part : c.queue) queue.emplace_back(part);
    all.emplace_back(c.fd.get(), queue, c.name);
  }
  auto done = exchange_all(all, gives_up);
  for (const ExchangedConnection& connection : changed) connection.put_back();
  return done;
}

}  // namespace ckpt::cli
