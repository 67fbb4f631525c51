#include "restart/channels/hosts_plan.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>

namespace ckpt {
namespace {

std::optional<HostsPlan> plan;

Error agent_gone() {
  return make_error(ExitCode::kUnavailable, 0,
                    "the agent of this host is gone, or the other hosts have given up");
}

// 16 bytes; IPv4 as ::ffff:a.b.c.d.
std::string bytes_of(const SocketName& name) {
  if (name.family() == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(name.address);
    return {reinterpret_cast<const char*>(&six.sin6_addr), 16};
  }
  const auto& four = reinterpret_cast<const sockaddr_in&>(name.address);
  return std::string("\0\0\0\0\0\0\0\0\0\0\xff\xff", 12) +
         std::string(reinterpret_cast<const char*>(&four.sin_addr), 4);
}

std::string bytes_of(const std::string& text) {
  SocketName name;
  auto& four = reinterpret_cast<sockaddr_in&>(name.address);
  auto& six = reinterpret_cast<sockaddr_in6&>(name.address);
  if (inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
  } else if (inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
  } else {
    return {};
  }
  return bytes_of(name);
}

}  // namespace

const HostsPlan* hosts_plan() { return plan ? &*plan : nullptr; }

std::string end_text(const SocketName& name) {
  std::string text;
  for (char c : bytes_of(name)) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return fmt::format("{}.{}", text, name.port());
}

void HostsPlan::translate(SocketName& name) const {
  if (name.length == 0 || (name.family() != AF_INET && name.family() != AF_INET6)) return;
  const std::string bytes = bytes_of(name);
  for (const auto& [was, is] : addresses) {
    if (bytes_of(was) != bytes) continue;
    const std::string to = bytes_of(is);
    if (name.family() == AF_INET6) {
      std::memcpy(&reinterpret_cast<sockaddr_in6&>(name.address).sin6_addr, to.data(), 16);
    } else {
      std::memcpy(&reinterpret_cast<sockaddr_in&>(name.address).sin_addr, to.data() + 12, 4);
    }
    return;
  }
}

Result<void> HostsPlan::say_and_wait(const char* what) const {
  const std::string line = fmt::format("{{\"say\": \"{}\"}}\n", what);
  char answer = 0;
  if (send(agent_fd, line.data(), line.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(line.size()))
    return agent_gone();
  ssize_t n;
  while ((n = read(agent_fd, &answer, 1)) < 0 && errno == EINTR) {
  }
  return n == 1 && answer == 'g' ? Result<void>() : agent_gone();
}

Result<void> HostsPlan::say_listening_and_wait() const { return say_and_wait("listening"); }

Result<void> HostsPlan::say_ready_and_wait() const { return say_and_wait("ready"); }

void HostsPlan::say_running(int pid) const {
  const std::string line = fmt::format("{{\"say\": \"running\", \"pid\": {}}}\n", pid);
  (void)!send(agent_fd, line.data(), line.size(), MSG_NOSIGNAL);
}

Result<void> receive_hosts_plan(int agent_fd) {
  std::string text;
  for (char c = 0; c != '\n'; text += c) {
    const ssize_t n = read(agent_fd, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || text.size() > (64 << 20)) return agent_gone();
  }
  const auto json = nlohmann::json::parse(text, nullptr, false);
  try {
    HostsPlan p;
    p.agent_fd = agent_fd;
    p.addresses = json.at("addresses").get<decltype(p.addresses)>();
    p.token = json.at("token").get<std::string>();
    for (const auto& c : json.at("connections")) {
      const std::string one = c.at(0), other = c.at(1);
      p.connections.emplace(one, other);
      p.connections.emplace(other, one);
    }
    plan = std::move(p);
  } catch (const nlohmann::json::exception&) {
    return make_error(ExitCode::kUsage, 0,
                      "--hosts-fd: what the agent says is no plan; use ckpt-restart --hosts");
  }
  return {};
}

}  // namespace ckpt
