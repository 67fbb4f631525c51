// A datagram that waited in a socket which is bound to a multicast group is sent to that group again, and
// only that socket gets it: until all messages are there no other socket of the job is a member
// (IP_MULTICAST_ALL is off as well), and the datagram stays on this host.
//
// Owner:     ChannelBuilder::send_datagrams, one object for each receiver. Callers: one thread.
// Never:     leaves a socket in a group; keeps programs outside of the job from hearing the datagram once
//            more, if they are at the same port of this host and hear that group.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <vector>

namespace ckpt {

// Of IPv4 or IPv6.
bool is_group(const sockaddr* address);

class GroupDelivery {
 public:
  // group: an address that is_group(). interface: of the receiver's membership; 0: any. others: sockets of
  // the job, which are not to hear it.
  GroupDelivery(int receiver, const sockaddr_storage& group, uint32_t interface,
                const std::vector<int>& others);
  GroupDelivery(const GroupDelivery&) = delete;
  ~GroupDelivery();

  // `send` sends to the group by `sender`, through the interface at which the receiver is a member. After it
  // the sender is as it was, but for its choice of an interface, which it has none of yet.
  template <typename Send>
  auto by(int sender, Send send) {
    const int hops = choose(sender);
    auto result = send();
    give_back(sender, hops);
    return result;
  }

 private:
  bool is_six() const { return request_.gr_group.ss_family == AF_INET6; }
  int level() const { return is_six() ? int{IPPROTO_IPV6} : int{IPPROTO_IP}; }
  int hops_option() const { return is_six() ? IPV6_MULTICAST_HOPS : IP_MULTICAST_TTL; }
  int choose(int sender) const;
  void give_back(int sender, int hops) const;

  int receiver_;
  group_req request_{};
  bool joined_;
  struct Deaf {
    int socket, level, option;
  };
  std::vector<Deaf> deaf_;
};

}  // namespace ckpt
