#include "restart/channels/hosts_plan.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "image/read/manifest.h"

namespace ckpt {
namespace {

constinit std::optional<HostsPlan> plan;

Error agent_gone() {
  return make_error(ExitCode::kUnavailable, 0,
                    "the agent of this host is gone, or the other hosts have given up");
}

constexpr uint8_t kFour[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

PortAt port_at(const SocketName& name) {
  PortAt at{};
  at.port = name.port();
  if (name.family() == AF_INET6) {
    std::memcpy(at.address, &reinterpret_cast<const sockaddr_in6&>(name.address).sin6_addr, 16);
  } else {
    std::memcpy(at.address, kFour, sizeof(kFour));
    std::memcpy(at.address + 12, &reinterpret_cast<const sockaddr_in&>(name.address).sin_addr, 4);
  }
  return at;
}

std::string bytes_of(const std::string& text) {
  std::string bytes(reinterpret_cast<const char*>(kFour), sizeof(kFour));
  bytes.resize(16);
  if (inet_pton(AF_INET, text.c_str(), bytes.data() + 12) == 1) return bytes;
  return inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1 ? bytes : "";
}

std::vector<AddressLine> lines_of(const nlohmann::json& texts) {
  std::vector<AddressLine> lines;
  for (const std::string text : texts) {
    AddressLine line;
    if (text.size() == kAddressLineText && parse_address_line(text.c_str(), line)) lines.push_back(line);
  }
  return lines;
}

}  // namespace

const HostsPlan* hosts_plan() { return plan ? &*plan : nullptr; }

std::string host_of_part(const std::string& directory) {
  std::ifstream in(directory + "/" + kManifestName);
  const auto json = nlohmann::json::parse(in, nullptr, false);
  if (!json.is_object() || !json.contains("part_of") || !json["part_of"].is_object()) return "";
  return json["part_of"].value("host", "?");
}

bool shares_host() { return plan && plan->shared; }

std::string end_text(const SocketName& name) {
  std::string text;
  for (const uint8_t byte : port_at(name).address) text += fmt::format("{:02x}", byte);
  return fmt::format("{}.{}", text, name.port());
}

// By the name that the job has for it, which stays the same.
void HostsPlan::translate(SocketName& name, const uint8_t* of) const {
  if (name.length == 0 || (name.family() != AF_INET && name.family() != AF_INET6)) return;
  PortAt at = port_at(name);
  to_job(was, at, of);
  to_machine(is, at);
  reinterpret_cast<sockaddr_in&>(name.address).sin_port = htons(at.port);  // at the same place in both
  if (name.family() == AF_INET6) {
    std::memcpy(&reinterpret_cast<sockaddr_in6&>(name.address).sin6_addr, at.address, 16);
  } else if (std::memcmp(at.address, kFour, sizeof(kFour)) == 0) {
    std::memcpy(&reinterpret_cast<sockaddr_in&>(name.address).sin_addr, at.address + 12, 4);
  }
}

// The longest run of free ports.
void HostsPlan::limit_to_slice(int fd) const {
  const AddressLine* slice = own_slice(is);
  if (slice == nullptr) return;
  PortRange longest, ports;
  for (uint32_t from = slice->machine_first; from <= slice->last; from = ports.last + 1u) {
    if (!free_ports(is, static_cast<uint16_t>(from), ports) || ports.first < from) break;
    if (longest.first == 0 || ports.ports() > longest.ports()) longest = ports;
  }
  const uint32_t range = longest.option();  // 0: any
  setsockopt(fd, IPPROTO_IP, kIpLocalPortRange, &range, sizeof(range));
}

void HostsPlan::translate_own(SocketName& name) const { translate(name, was.empty() ? nullptr : was[0].job); }

void HostsPlan::translate_other(SocketName& name, const std::string& of) const {
  translate(name, of.size() == 16 ? reinterpret_cast<const uint8_t*>(of.data()) : nullptr);
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

Result<void> HostsPlan::say_listening_and_wait() const {
  return all_listen ? all_listen() : say_and_wait("listening");
}

Result<void> HostsPlan::say_ready_and_wait() const { return say_and_wait("ready"); }

void HostsPlan::say_running(int pid) const {
  const std::string line = fmt::format("{{\"say\": \"running\", \"pid\": {}}}\n", pid);
  (void)!send(agent_fd, line.data(), line.size(), MSG_NOSIGNAL);
}

void set_hosts_plan(HostsPlan p) { plan = std::move(p); }

Result<HostsPlan> parse_hosts_plan(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  try {
    HostsPlan p;
    p.was = lines_of(json.at("was"));
    p.is = lines_of(json.at("is"));
    p.shared = json.at("shared");
    p.token = json.at("token").get<std::string>();
    for (const auto& c : json.at("connections")) {
      const std::string one = c.at(0), other = c.at(1), of_one = c.at(2), of_other = c.at(3);
      p.connections.try_emplace({one, other}, bytes_of(of_other));
      p.connections.try_emplace({other, one}, bytes_of(of_one));
    }
    return p;
  } catch (const nlohmann::json::exception&) {
    return make_error(ExitCode::kUsage, 0, "what the agent says is no plan; use ckpt-restart --hosts");
  }
}

Result<void> receive_hosts_plan(int agent_fd) {
  std::string text;
  for (char c = 0; c != '\n'; text += c) {
    const ssize_t n = read(agent_fd, &c, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0 || text.size() > (64 << 20)) return agent_gone();
  }
  auto received = parse_hosts_plan(text);
  if (!received.ok()) return received.error();
  received->agent_fd = agent_fd;
  plan = std::move(*received);
  return {};
}

}  // namespace ckpt
