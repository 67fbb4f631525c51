#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cstring>

#include "base/sockets/job_addresses.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

struct OptionName {
  int level, name;
  bool zero_when_new = true;  // is left out then
};
constexpr OptionName kOfTcp[] = {{IPPROTO_TCP, TCP_NODELAY},
                                 {IPPROTO_TCP, TCP_CORK},
                                 {IPPROTO_TCP, TCP_KEEPIDLE, false},
                                 {IPPROTO_TCP, TCP_KEEPINTVL, false},
                                 {IPPROTO_TCP, TCP_KEEPCNT, false},
                                 {IPPROTO_TCP, TCP_DEFER_ACCEPT},
                                 {IPPROTO_TCP, TCP_USER_TIMEOUT},
                                 {IPPROTO_TCP, TCP_FASTOPEN},
                                 {IPPROTO_TCP, TCP_SYNCNT, false},
                                 {IPPROTO_TCP, TCP_LINGER2, false},
                                 {IPPROTO_TCP, TCP_NOTSENT_LOWAT},
                                 {IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS},
                                 {IPPROTO_TCP, TCP_FASTOPEN_CONNECT},
                                 {IPPROTO_TCP, 34 /* TCP_FASTOPEN_NO_COOKIE */},
                                 {IPPROTO_TCP, TCP_SAVE_SYN},
                                 {IPPROTO_TCP, TCP_INQ},
                                 {IPPROTO_TCP, 37 /* TCP_TX_DELAY */},
                                 {IPPROTO_TCP, TCP_WINDOW_CLAMP},
                                 {SOL_SOCKET, 74 /* SO_TXREHASH */, false},
                                 {IPPROTO_TCP, TCP_CONGESTION, false}};
constexpr OptionName kOfUdp[] = {
    {IPPROTO_UDP, 1 /* UDP_CORK */},           {IPPROTO_UDP, 104 /* UDP_GRO */},
    {IPPROTO_UDP, 103 /* UDP_SEGMENT */},      {IPPROTO_UDP, 101 /* UDP_NO_CHECK6_TX */},
    {IPPROTO_UDP, 102 /* UDP_NO_CHECK6_RX */}, {IPPROTO_UDP, 10 /* UDPLITE_SEND_CSCOV */},
    {IPPROTO_UDP, 11 /* UDPLITE_RECV_CSCOV */}};
constexpr OptionName kOfInternet[] = {{IPPROTO_IP, IP_TOS},
                                      {IPPROTO_IP, IP_TTL, false},
                                      {IPPROTO_IP, IP_PKTINFO},
                                      {IPPROTO_IP, IP_RECVERR},
                                      {IPPROTO_IP, IP_RECVTOS},
                                      {IPPROTO_IP, IP_RECVTTL},
                                      {IPPROTO_IP, IP_RECVOPTS},
                                      {IPPROTO_IP, IP_RETOPTS},
                                      {IPPROTO_IP, IP_RECVORIGDSTADDR},
                                      {IPPROTO_IP, IP_MINTTL},
                                      {IPPROTO_IP, IP_PASSSEC},
                                      {IPPROTO_IP, IP_CHECKSUM},
                                      {IPPROTO_IP, 25 /* IP_RECVFRAGSIZE */},
                                      {IPPROTO_IP, 26 /* IP_RECVERR_RFC4884 */},
                                      {IPPROTO_IP, IP_UNICAST_IF},
                                      {IPPROTO_IP, IP_MULTICAST_ALL, false},
                                      {IPPROTO_IP, IP_MTU_DISCOVER, false},
                                      {IPPROTO_IP, IP_FREEBIND},
                                      {IPPROTO_IP, IP_TRANSPARENT},
                                      {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT},
                                      {IPPROTO_IP, kIpLocalPortRange},
                                      {IPPROTO_IP, IP_MULTICAST_IF},
                                      {IPPROTO_IP, IP_MULTICAST_TTL, false},
                                      {IPPROTO_IP, IP_MULTICAST_LOOP, false}};
constexpr OptionName kOfInternet6[] = {{IPPROTO_IPV6, IPV6_TCLASS},
                                       {IPPROTO_IPV6, 78 /* IPV6_FREEBIND */},
                                       {IPPROTO_IPV6, 75 /* IPV6_TRANSPARENT */},
                                       {IPPROTO_IPV6, IPV6_UNICAST_HOPS, false},
                                       {IPPROTO_IPV6, IPV6_RECVPKTINFO},
                                       {IPPROTO_IPV6, 2 /* IPV6_2292PKTINFO */},
                                       {IPPROTO_IPV6, 3 /* IPV6_2292HOPOPTS */},
                                       {IPPROTO_IPV6, 4 /* IPV6_2292DSTOPTS */},
                                       {IPPROTO_IPV6, 5 /* IPV6_2292RTHDR */},
                                       {IPPROTO_IPV6, 8 /* IPV6_2292HOPLIMIT */},
                                       {IPPROTO_IPV6, 30 /* IPV6_ROUTER_ALERT_ISOLATE */},
                                       {IPPROTO_IPV6, IPV6_RECVERR},
                                       {IPPROTO_IPV6, IPV6_RECVHOPLIMIT},
                                       {IPPROTO_IPV6, IPV6_RECVTCLASS},
                                       {IPPROTO_IPV6, IPV6_RECVORIGDSTADDR},
                                       {IPPROTO_IPV6, IPV6_DONTFRAG},
                                       {IPPROTO_IPV6, IPV6_RECVPATHMTU},
                                       {IPPROTO_IPV6, IPV6_RECVHOPOPTS},
                                       {IPPROTO_IPV6, IPV6_RECVRTHDR},
                                       {IPPROTO_IPV6, IPV6_RECVDSTOPTS},
                                       {IPPROTO_IPV6, 77 /* IPV6_RECVFRAGSIZE */},
                                       {IPPROTO_IPV6, 31 /* IPV6_RECVERR_RFC4884 */},
                                       {IPPROTO_IPV6, 29 /* IPV6_MULTICAST_ALL */, false},
                                       {IPPROTO_IPV6, IPV6_MTU_DISCOVER, false},
                                       {IPPROTO_IPV6, IPV6_MINHOPCOUNT},
                                       {IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, false},
                                       {IPPROTO_IPV6, IPV6_UNICAST_IF},
                                       {IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, false},
                                       {IPPROTO_IPV6, 33 /* IPV6_FLOWINFO_SEND */},
                                       {IPPROTO_IPV6, 11 /* IPV6_FLOWINFO */},
                                       {IPPROTO_IPV6, IPV6_MULTICAST_IF},
                                       {IPPROTO_IPV6, IPV6_MULTICAST_HOPS, false},
                                       {IPPROTO_IPV6, IPV6_MULTICAST_LOOP, false}};
// SO_PRIORITY after IP_TOS, which sets it.
constexpr OptionName kOfAll[] = {{SOL_SOCKET, SO_BROADCAST},
                                 {SOL_SOCKET, SO_RCVTIMEO},
                                 {SOL_SOCKET, SO_SNDTIMEO},
                                 {SOL_SOCKET, SO_LINGER},
                                 {SOL_SOCKET, SO_OOBINLINE},
                                 {SOL_SOCKET, SO_RCVLOWAT, false},
                                 {SOL_SOCKET, SO_PRIORITY, false},
                                 {SOL_SOCKET, SO_DONTROUTE},
                                 {SOL_SOCKET, SO_TIMESTAMP},
                                 {SOL_SOCKET, SO_TIMESTAMPNS},
                                 {SOL_SOCKET, SO_BUSY_POLL},
                                 {SOL_SOCKET, SO_PREFER_BUSY_POLL},
                                 {SOL_SOCKET, SO_RXQ_OVFL},
                                 {SOL_SOCKET, SO_NO_CHECK},
                                 {SOL_SOCKET, SO_WIFI_STATUS},
                                 {SOL_SOCKET, SO_NOFCS},
                                 {SOL_SOCKET, SO_SELECT_ERR_QUEUE},
                                 {SOL_SOCKET, SO_LOCK_FILTER},
                                 {SOL_SOCKET, SO_TXTIME},
                                 {SOL_SOCKET, SO_MAX_PACING_RATE, false},
                                 {SOL_SOCKET, SO_TIMESTAMPING},
                                 {SOL_SOCKET, 63 /* SO_TIMESTAMP_NEW */},
                                 {SOL_SOCKET, 75 /* SO_RCVMARK */},
                                 {SOL_SOCKET, 64 /* SO_TIMESTAMPNS_NEW */},
                                 {SOL_SOCKET, 82 /* SO_RCVPRIORITY */},
                                 {SOL_SOCKET, 65 /* SO_TIMESTAMPING_NEW */}};
constexpr OptionName kOfInternetSockets[] = {{SOL_SOCKET, SO_MARK},
                                             {SOL_SOCKET, SO_BINDTODEVICE},
                                             {SOL_SOCKET, SO_INCOMING_CPU, false},
                                             {SOL_SOCKET, SO_ZEROCOPY}};
constexpr OptionName kOfRaw[] = {
    {IPPROTO_IP, IP_HDRINCL, true}, {SOL_RAW, 1 /* ICMP_FILTER */}, {SOL_IPV6, 7 /* IPV6_CHECKSUM */, false}};
constexpr OptionName kOfPacket[] = {
    {SOL_PACKET, 8 /* PACKET_AUXDATA */},
    {SOL_PACKET, 9 /* PACKET_ORIGDEV */},
    {SOL_PACKET, 10 /* PACKET_VERSION */},
    {SOL_PACKET, 12 /* PACKET_RESERVE */},
    {SOL_PACKET, 14 /* PACKET_LOSS */},
    {SOL_PACKET, 15 /* PACKET_VNET_HDR */},
    {SOL_PACKET, 17 /* PACKET_TIMESTAMP */},
    {SOL_PACKET, 19 /* PACKET_TX_HAS_OFF */},
    {SOL_PACKET, 20 /* PACKET_QDISC_BYPASS */},
    {SOL_PACKET, 24 /* PACKET_VNET_HDR_SZ */},
    // After PACKET_ORIGDEV and the like; the socket is bound and its interface up.
    {SOL_PACKET, 18 /* PACKET_FANOUT */},
    {SOL_PACKET, 23 /* PACKET_IGNORE_OUTGOING */}};
constexpr OptionName kOfUnix[] = {{SOL_SOCKET, SO_PASSSEC},
                                  {SOL_SOCKET, 76 /* SO_PASSPIDFD */},
                                  {SOL_SOCKET, 83 /* SO_PASSRIGHTS */, false}};
constexpr OptionName kOfNetlink[] = {{SOL_NETLINK, NETLINK_PKTINFO},
                                     {SOL_NETLINK, NETLINK_BROADCAST_ERROR},
                                     {SOL_NETLINK, NETLINK_NO_ENOBUFS},
                                     {SOL_NETLINK, NETLINK_LISTEN_ALL_NSID},
                                     {SOL_NETLINK, NETLINK_CAP_ACK},
                                     {SOL_NETLINK, NETLINK_EXT_ACK},
                                     {SOL_NETLINK, NETLINK_GET_STRICT_CHK},
                                     {SOL_SOCKET, SO_PASSCRED},
                                     {SOL_SOCKET, SO_PASSSEC}};

void put_options(ByteWriter& out, int socket, std::span<const OptionName> names) {
  constexpr uint8_t kZero[sizeof(SocketOptionDetail::value)] = {};
  for (const OptionName& o : names) {
    SocketOptionDetail option{o.level, o.name, sizeof(option.value), 0, {}};
    if (sys::call(__NR_getsockopt, socket, o.level, o.name, option.value, &option.length) != 0) continue;
    if (option.length == 0) continue;
    if (o.zero_when_new && std::memcmp(option.value, kZero, sizeof(kZero)) == 0) continue;
    out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocketOption), sizeof(option)});
    out.put(option);
  }
}

// IP options, groups of netlink, filters: of any length. `unit`: what the kernel's length counts, in bytes.
void put_long_option(ByteWriter& out, int socket, int level, int name, uint32_t unit) {
  constexpr size_t kLargest = 32 << 10;  // BPF_MAXINSNS of 8 bytes
  uint8_t value[kLargest];
  uint32_t length = name == SO_ATTACH_FILTER && level == SOL_SOCKET ? 0 : sizeof(value);
  if (length == 0) {  // how many instructions there are is asked first
    const long r = sys::call(__NR_getsockopt, socket, level, name, 0L, &length);
    if (r != 0 || length == 0 || length * unit > sizeof(value)) return;
  }
  if (sys::call(__NR_getsockopt, socket, level, name, value, &length) != 0 || length == 0) return;
  length *= unit;
  if (length > sizeof(value)) return;
  const uint32_t padded = (static_cast<uint32_t>(sizeof(LongSocketOptionDetail)) + length + 7u) & ~7u;
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kLongSocketOption), padded});
  out.put(LongSocketOptionDetail{level, name, length, 0});
  out.raw(value, length);
  out.pad_to(8);
}

// The largest segment that a socket asks for (TCP_MAXSEG), if it was set before the socket was connected.
// Before that the kernel tells it, and says 536, which would be a limit, where nothing was set. TCP_MAXSEG of
// a connected socket is the segment size sent, not the one requested; so it is not saved.
void put_largest_segment(ByteWriter& out, int socket, const SocketDetail& d, bool connection) {
  constexpr int kNotSet = 536, kLargestThatCanBeSet = 32767, kLargestPacket = 65535;
  SocketOptionDetail option{IPPROTO_TCP, TCP_MAXSEG, sizeof(int), 0, {}};
  int size = socket_option(socket, IPPROTO_TCP, TCP_MAXSEG);
  if (connection) {
    tcp_info info{};
    int length = sizeof(info);
    if (sys::failed(sys::call(__NR_getsockopt, socket, IPPROTO_TCP, TCP_INFO, &info, &length))) return;
    const int headers = d.domain == AF_INET6 ? 60 : 40;
    const int path = std::min(static_cast<int>(info.tcpi_pmtu), kLargestPacket) - headers;
    // What takes room in each segment is not in it.
    constexpr int kStamps = 12;
    const bool stamps = (info.tcpi_options & TCPI_OPT_TIMESTAMPS) != 0;
    size = static_cast<int>(info.tcpi_advmss) + (stamps ? kStamps : 0);
    if (info.tcpi_advmss == 0 || size >= path) return;
  } else if (size == kNotSet) {
    return;
  }
  if (size > kLargestThatCanBeSet) return;
  std::memcpy(option.value, &size, sizeof(size));
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocketOption), sizeof(option)});
  out.put(option);
}

}  // namespace

int socket_option(int socket, int level, int name) {
  int value = 0, length = sizeof(value);
  const long r = sys::call(__NR_getsockopt, socket, level, name, &value, &length);
  return r < 0 ? 0 : value;
}

// The kernel says EACCES where it has no instructions of classic BPF to show.
bool has_hidden_filter(int socket) {
  int length = 0;
  return sys::call(__NR_getsockopt, socket, SOL_SOCKET, SO_ATTACH_FILTER, 0L, &length) == -EACCES;
}

bool set_socket_option(int socket, int level, int name, int value) {
  return !sys::failed(sys::call(__NR_setsockopt, socket, level, name, &value, sizeof(value)));
}

void put_socket_options(ByteWriter& out, int socket, const SocketDetail& d, bool connection) {
  const bool internet = d.domain == AF_INET || d.domain == AF_INET6;
  // An IPv6 socket that talks IPv4 has both kinds.
  if (internet) put_options(out, socket, kOfInternet);
  if (d.domain == AF_INET6) put_options(out, socket, kOfInternet6);
  if (internet && d.type == SOCK_STREAM) put_options(out, socket, kOfTcp);
  if (internet && d.type == SOCK_STREAM && d.protocol == IPPROTO_TCP)
    put_largest_segment(out, socket, d, connection);
  if (internet && d.type == SOCK_DGRAM) put_options(out, socket, kOfUdp);
  if (internet || d.domain == AF_PACKET) put_options(out, socket, kOfInternetSockets);
  if (internet && d.type == SOCK_RAW) put_options(out, socket, kOfRaw);
  if (d.domain == AF_PACKET) put_options(out, socket, kOfPacket);
  if (d.domain == AF_UNIX) put_options(out, socket, kOfUnix);
  if (d.domain == AF_NETLINK) {
    put_options(out, socket, kOfNetlink);
    put_long_option(out, socket, SOL_NETLINK, NETLINK_LIST_MEMBERSHIPS, 1);
  }
  put_options(out, socket, kOfAll);
  if (internet) put_long_option(out, socket, IPPROTO_IP, IP_OPTIONS, 1);
  put_long_option(out, socket, SOL_SOCKET, SO_ATTACH_FILTER /* reads as SO_GET_FILTER */, 8);
}

}  // namespace ckpt
