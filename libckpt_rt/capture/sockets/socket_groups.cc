#include <netinet/in.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

// Multicast groups of a socket. The kernel lists the groups of each interface, of all sockets together. Of
// each group the socket is asked whether it is a member.

namespace ckpt {
namespace {

// The kernel writes those of IPv4 in upper case, those of IPv6 in lower case.
uint8_t hex_byte(std::string_view two) {
  uint8_t value = 0;
  for (char c : two) {
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    value = static_cast<uint8_t>(value << 4 | (digit & 15));
  }
  return value;
}

// Is the socket in that group, at that interface? Also with a choice of senders, which is not recorded.
bool is_member(int socket, int level, const group_req& group, bool& of_all_senders) {
  struct {
    uint32_t interface;
    sockaddr_storage group;
    uint32_t mode, sources;
    sockaddr_storage list[1];
  } filter{};
  filter.interface = group.gr_interface;
  std::memcpy(&filter.group, &group.gr_group, sizeof(filter.group));
  uint32_t length = offsetof(decltype(filter), list);
  if (sys::call(__NR_getsockopt, socket, level, MCAST_MSFILTER, &filter, &length) != 0) return false;
  of_all_senders = filter.mode == MCAST_EXCLUDE && filter.sources == 0;
  return true;
}

void put_group(ByteWriter& out, int level, const group_req& group) {
  const uint32_t padded = (static_cast<uint32_t>(sizeof(LongSocketOptionDetail) + sizeof(group)) + 7u) & ~7u;
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kLongSocketOption), padded});
  out.put(LongSocketOptionDetail{level, MCAST_JOIN_GROUP, sizeof(group), 0});
  out.raw(&group, sizeof(group));
  out.pad_to(8);
}

// "1  lo : 1 V3" and, a line each, "\t\t\t010000E0 1 0:00000000 0": the bytes of the address, the first last.
template <typename Visit>
void for_each_group4(std::string_view text, Visit visit) {
  uint64_t interface = 0;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    if (line[0] != '\t') {
      interface = 0;
      numbers(line, 10, &interface, 1);
      continue;
    }
    line.remove_prefix(std::min(line.find_first_not_of('\t'), line.size()));
    if (interface == 0 || line.size() < 8) continue;
    group_req group{};
    group.gr_interface = static_cast<uint32_t>(interface);
    auto& address = reinterpret_cast<sockaddr_in&>(group.gr_group);
    address.sin_family = AF_INET;
    uint8_t bytes[4];
    for (size_t i = 0; i < 4; ++i) bytes[i] = hex_byte(line.substr(6 - 2 * i, 2));
    std::memcpy(&address.sin_addr, bytes, sizeof(bytes));
    visit(group);
  }
}

// "1 lo ff020000000000000000000000000001 1 0000000C 0". An interface may be called "ff", but not "a b".
template <typename Visit>
void for_each_group6(std::string_view text, Visit visit) {
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    uint64_t interface = 0;
    if (numbers(line, 10, &interface, 1) != 1) continue;
    for (int words = 0; words < 2; ++words) {  // the number and the name
      line.remove_prefix(std::min(line.find(' '), line.size()));
      line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
    }
    if (line.size() < 32) continue;
    group_req group{};
    group.gr_interface = static_cast<uint32_t>(interface);
    auto& address = reinterpret_cast<sockaddr_in6&>(group.gr_group);
    address.sin6_family = AF_INET6;
    for (size_t i = 0; i < 16; ++i) address.sin6_addr.s6_addr[i] = hex_byte(line.substr(2 * i, 2));
    visit(group);
  }
}

// All of it: a host with many interfaces or groups has a long one. Not there, for example without IPv6:
// empty. No data: the arena is full.
std::string_view read_list(Arena& arena, const char* path) {
  for (size_t size = 16 << 10;; size *= 4) {
    auto* text = static_cast<char*>(arena.allocate(size, 1));
    const long n = text == nullptr ? 0 : read_small_file(path, text, size);
    if (n < static_cast<long>(size) - 1) return {text, n > 0 ? static_cast<size_t>(n) : 0};
  }
}

}  // namespace

bool put_multicast_groups(SocketLook& look, Arena& arena, int socket, bool six) {
  std::string_view& list = six ? look.groups6 : look.groups4;
  if (list.data() == nullptr)
    list = read_list(arena, six ? "/proc/thread-self/net/igmp6" : "/proc/thread-self/net/igmp");
  bool all = true;
  const int level = six ? int{IPPROTO_IPV6} : int{IPPROTO_IP};
  auto put = [&](const group_req& group) {
    bool of_all_senders = false;
    if (!is_member(socket, level, group, of_all_senders)) return;
    all = all && of_all_senders;
    put_group(look.options, level, group);
  };
  six ? for_each_group6(list, put) : for_each_group4(list, put);
  return all;
}

}  // namespace ckpt
