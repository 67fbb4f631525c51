#include "restart/channels/ended_connections.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>

#include <vector>

#include "base/raii_fd.h"

namespace ckpt {
namespace {

constexpr uint16_t kDestroy = 21;  // SOCK_DESTROY

struct Request {
  nlmsghdr header;
  inet_diag_req_v2 request;
};

Request ask(uint16_t type, uint16_t flags, uint8_t family) {
  Request r{};
  r.header = {sizeof(r), type, flags, 1, 0};
  r.request.sdiag_family = family;
  r.request.sdiag_protocol = IPPROTO_TCP;
  return r;
}

std::vector<inet_diag_msg> list_ended(int netlink, uint8_t family, uint16_t port) {
  // FIN_WAIT1, FIN_WAIT2, TIME_WAIT, CLOSE, LAST_ACK, CLOSING.
  constexpr uint32_t kEnded = 1u << 4 | 1u << 5 | 1u << 6 | 1u << 7 | 1u << 9 | 1u << 11;
  std::vector<inet_diag_msg> found;
  Request r = ask(SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, family);
  r.request.idiag_states = kEnded;
  r.request.id.idiag_sport = htons(port);
  if (send(netlink, &r, sizeof(r), 0) < 0) return found;
  std::vector<char> buffer(64 << 10);
  for (;;) {
    const ssize_t n = recv(netlink, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (n <= 0) return found;
    auto* header = reinterpret_cast<const nlmsghdr*>(buffer.data());
    for (auto left = static_cast<unsigned>(n); NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
      if (header->nlmsg_type == NLMSG_DONE || header->nlmsg_type == NLMSG_ERROR) return found;
      if (header->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) continue;
      auto* message = static_cast<const inet_diag_msg*>(NLMSG_DATA(header));
      if (message->idiag_inode == 0 && message->id.idiag_sport == htons(port)) found.push_back(*message);
    }
  }
}

}  // namespace

size_t end_ended_connections(uint16_t port) {
  const ScopedFd netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  size_t count = 0;
  for (uint8_t family : {AF_INET, AF_INET6}) {
    for (const inet_diag_msg& one : list_ended(netlink.get(), family, port)) {
      ++count;
      Request r = ask(kDestroy, NLM_F_REQUEST | NLM_F_ACK, family);
      r.request.idiag_states = ~0u;
      r.request.id = one.id;
      if (send(netlink.get(), &r, sizeof(r), 0) < 0) continue;
      char answer[1024];
      (void)!recv(netlink.get(), answer, sizeof(answer), MSG_DONTWAIT);
    }
  }
  return count;
}

}  // namespace ckpt
