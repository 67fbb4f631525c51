#include "cli/back/descriptors/strangers.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/protocol/unaccepted_protocol.h"
#include "restart/channels/hosts_plan.h"

namespace ckpt::cli {

namespace {

SocketName caller_of(int connection) {
  SocketName name;
  socklen_t length = sizeof(name.address);
  if (getpeername(connection, reinterpret_cast<sockaddr*>(&name.address), &length) == 0) name.length = length;
  return name;
}

bool is_of_lost_host(const SocketName& name) {
  SocketName now = name;
  hosts_plan()->translate_other(now, {});
  return end_text(now) != end_text(name);
}

bool is_of_job(const SocketName& name) {
  const std::string address = end_text(name).substr(0, 32);
  const auto has = [&](const std::vector<AddressLine>& table) {
    return std::any_of(table.begin(), table.end(), [&](const AddressLine& line) {
      std::string text;
      for (const uint8_t byte : line.machine) text += fmt::format("{:02x}", byte);
      return text == address;
    });
  };
  return has(hosts_plan()->was) || has(hosts_plan()->is);
}

void send_to_keeper(int keeper, const ChannelBuilder::Stranger& one) {
  UnacceptedQuestion question{UnacceptedQuestion::What::kHold, 0};
  const int fds[2] = {one.listener.get(), one.connection.get()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds))] = {};
  iovec part{&question, sizeof(question)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(fds));
  std::memcpy(CMSG_DATA(c), fds, sizeof(fds));
  (void)!sendmsg(keeper, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

void Strangers::add(std::vector<ChannelBuilder::Stranger> more) {
  for (ChannelBuilder::Stranger& one : more) {
    const SocketName caller = caller_of(one.connection.get());
    const bool is_undone =
        caller.length == 0 || is_of_lost_host(caller) || (without_ == Without::kOfJob && is_of_job(caller));
    if (!is_undone) all_.push_back(std::move(one));
  }
}

Strangers::~Strangers() {
  if (all_.empty() || keeper_.empty()) return;
  const ScopedFd keeper(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address;
  const socklen_t length = unaccepted_address(keeper_, address);
  if (!keeper.valid() || connect(keeper.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0)
    return;
  for (const ChannelBuilder::Stranger& one : all_) send_to_keeper(keeper.get(), one);
}

}  // namespace ckpt::cli
