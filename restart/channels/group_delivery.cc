#include "restart/channels/group_delivery.h"

#include <cstring>

namespace ckpt {
namespace {

constexpr uint32_t kLoopback = 1;      // the number of lo in each network namespace
constexpr int kSoBindToIfindex = 62;   // asm-generic/socket.h
constexpr int kIpv6MulticastAll = 29;  // linux/in6.h

// False: the socket is bound to another one.
bool set_interface(int socket, bool six, uint32_t interface) {
  const int number = static_cast<int>(interface);
  ip_mreqn four{};
  four.imr_ifindex = number;
  return six ? setsockopt(socket, IPPROTO_IPV6, IPV6_MULTICAST_IF, &number, sizeof(number)) == 0
             : setsockopt(socket, IPPROTO_IP, IP_MULTICAST_IF, &four, sizeof(four)) == 0;
}

}  // namespace

bool is_group(const sockaddr* address) {
  if (address->sa_family == AF_INET6)
    return IN6_IS_ADDR_MULTICAST(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  return address->sa_family == AF_INET &&
         IN_MULTICAST(ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr));
}

// A socket that is bound to an interface takes nothing from another one.
GroupDelivery::GroupDelivery(int receiver, const sockaddr_storage& group, uint32_t interface,
                             const std::vector<int>& others)
    : receiver_(receiver) {
  uint32_t bound = 0;
  socklen_t length = sizeof(bound);
  if (getsockopt(receiver, SOL_SOCKET, kSoBindToIfindex, &bound, &length) != 0) bound = 0;
  if (bound == 0 && group.ss_family == AF_INET6)
    bound = reinterpret_cast<const sockaddr_in6&>(group).sin6_scope_id;
  request_.gr_interface = bound != 0 ? bound : interface != 0 ? interface : kLoopback;
  std::memcpy(&request_.gr_group, &group, sizeof(group));
  joined_ = setsockopt(receiver, level(), MCAST_JOIN_GROUP, &request_, sizeof(request_)) == 0;
  // By default a socket hears each group that any socket of the host is a member of.
  const struct {
    int level, option;
  } all[] = {{IPPROTO_IP, IP_MULTICAST_ALL}, {IPPROTO_IPV6, kIpv6MulticastAll}};
  for (int socket : others) {
    for (const auto& of : all) {
      int value = 0;
      length = sizeof(value);
      if (socket == receiver || getsockopt(socket, of.level, of.option, &value, &length) != 0 || value == 0)
        continue;
      value = 0;
      if (setsockopt(socket, of.level, of.option, &value, sizeof(value)) == 0)
        deaf_.push_back({socket, of.level, of.option});
    }
  }
}

GroupDelivery::~GroupDelivery() {
  if (joined_) setsockopt(receiver_, level(), MCAST_LEAVE_GROUP, &request_, sizeof(request_));
  const int on = 1;
  for (const Deaf& d : deaf_) setsockopt(d.socket, d.level, d.option, &on, sizeof(on));
}

// Through another interface than lo it would leave the host, but for a count of hops of 0.
int GroupDelivery::choose(int sender) const {
  int hops = -1;
  const bool chosen = set_interface(sender, is_six(), request_.gr_interface);
  if (chosen && request_.gr_interface == kLoopback) return hops;
  socklen_t length = sizeof(hops);
  getsockopt(sender, level(), hops_option(), &hops, &length);
  const int none = 0;
  setsockopt(sender, level(), hops_option(), &none, sizeof(none));
  return hops;
}

void GroupDelivery::give_back(int sender, int hops) const {
  if (hops >= 0) setsockopt(sender, level(), hops_option(), &hops, sizeof(hops));
  set_interface(sender, is_six(), 0);
}

}  // namespace ckpt
