#include "cli/back/descriptors/strangers.h"

#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cstring>

#include "base/protocol/unaccepted_protocol.h"
#include "base/sockets/descriptor_message.h"
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

// False: it does not take it.
bool send_to_keeper(int keeper, const ChannelBuilder::Stranger& one) {
  const UnacceptedQuestion question{UnacceptedQuestion::What::kHold, 0};
  const int fds[2] = {one.listener.get(), one.connection.get()};
  return send_descriptors(keeper, &question, sizeof(question), fds) == sizeof(question);
}

// Of the keeper, whose queue is full while it has no processor.
ScopedFd connect_to_keeper(const std::string& name) {
  constexpr timeval kPatience{10, 0};
  ScopedFd keeper(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t length = unaccepted_address(name, address);
  setsockopt(keeper.get(), SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  if (connect(keeper.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return {};
  return keeper;
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
  const ScopedFd keeper = connect_to_keeper(keeper_);
  size_t sent = 0;
  while (sent < all_.size() && keeper.valid() && send_to_keeper(keeper.get(), all_[sent])) ++sent;
  if (sent == all_.size()) return;
  fmt::print(
      stderr,
      "ckpt: {} of {} connections from outside that waited to be accepted are closed: the first process of "
      "this host does not take them\n",
      all_.size() - sent, all_.size());
}

}  // namespace ckpt::cli
