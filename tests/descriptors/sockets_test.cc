#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

class Sockets : public testing::TestWithParam<bool> {
 protected:
  Sockets() { trip.executor = GetParam(); }
  ScratchDirectory dir;
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, Sockets, testing::Values(true, false), how_sampled);

void pair_at(int a, int b, int type) {
  int pair[2];
  VERIFY(socketpair(AF_UNIX, type, 0, pair) == 0);
  int high = fcntl(pair[1], F_DUPFD, 100);
  close(pair[1]);
  move_to(pair[0], a);
  move_to(high, b);
}

uint16_t port_of(int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  VERIFY(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return ntohs(address.sin_port);
}

TEST_P(Sockets, StreamPairWithBytesBothWays) {
  trip.setup = [] {
    pair_at(5, 6, SOCK_STREAM);
    fcntl(5, F_SETFL, O_NONBLOCK);
    VERIFY(write(5, "to six, ", 8) == 8 && write(5, "twice", 5) == 5);
    VERIFY(write(6, "to five", 7) == 7);
    dup2(6, 9);
  };
  trip.after_stop = [] { VERIFY_EQ(read_some(6, 100), "to six, twice"); };
  trip.verify = [] {
    VERIFY_EQ(read_some(6, 100), "to six, twice");
    VERIFY_EQ(read_some(5, 100), "to five");
    VERIFY_EQ(read_some(5, 100), fmt::format("errno {}", EAGAIN));
    VERIFY(write(5, "x", 1) == 1);
    VERIFY_EQ(read_some(9, 100), "x");
    close(9);
    VERIFY_EQ(read_some(5, 100), fmt::format("errno {}", EAGAIN));
    close(6);
    VERIFY_EQ(read_some(5, 100), "");
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Sockets, LargeStream) {
  std::string bytes(150'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  trip.setup = [&] {
    pair_at(5, 6, SOCK_STREAM);
    VERIFY(write(5, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  };
  trip.verify = [&] {
    std::string all;
    while (all.size() < bytes.size()) {
      std::string some = read_some(6, bytes.size());
      if (some.empty() || some.starts_with("errno")) break;
      all += some;
    }
    VERIFY(all == bytes);
  };
  trip.run();
}

TEST_P(Sockets, MessagesKeepTheirBoundaries) {
  trip.setup = [] {
    pair_at(5, 6, SOCK_SEQPACKET);
    pair_at(7, 8, SOCK_DGRAM);
    for (int fd : {5, 7}) VERIFY(write(fd, "first", 5) == 5 && write(fd, "second", 6) == 6);
  };
  trip.verify = [] {
    for (int fd : {6, 8}) {
      VERIFY_EQ(read_some(fd, 100), "first");
      VERIFY_EQ(read_some(fd, 100), "second");
    }
    VERIFY(write(8, "back", 4) == 4);
    VERIFY_EQ(read_some(7, 100), "back");
  };
  trip.run();
}

TEST_P(Sockets, HalfClosedAndOrphaned) {
  trip.setup = [] {
    pair_at(5, 6, SOCK_STREAM);
    VERIFY(write(5, "last", 4) == 4);
    shutdown(5, SHUT_WR);
    pair_at(7, 8, SOCK_STREAM);
    VERIFY(write(8, "left behind", 11) == 11);
    close(8);
  };
  trip.verify = [] {
    VERIFY_EQ(read_some(6, 100), "last");
    VERIFY_EQ(read_some(6, 100), "");
    VERIFY(write(6, "x", 1) == 1);
    VERIFY_EQ(read_some(5, 100), "x");
    VERIFY_EQ(read_some(7, 100), "left behind");
    VERIFY_EQ(read_some(7, 100), "");
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Sockets, ListeningTcp) {
  trip.setup = [&] {
    move_to(socket(AF_INET, SOCK_STREAM, 0), 5);
    int yes = 1;
    VERIFY(setsockopt(5, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0);
    auto address = loopback(0);
    VERIFY(bind(5, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    VERIFY(listen(5, 17) == 0);
    fcntl(5, F_SETFL, O_NONBLOCK);
    write_file(dir / "port", std::to_string(port_of(5)));
    // A connection of the program that lingers after it.
    int client = socket(AF_INET, SOCK_STREAM, 0);
    address = loopback(port_of(5));
    VERIFY(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    VERIFY(await_input(5));
    close(accept(5, nullptr, nullptr));
    close(client);
  };
  trip.verify = [&] {
    VERIFY_EQ(port_of(5), std::stoi(read_file(dir / "port")));
    int client = socket(AF_INET, SOCK_STREAM, 0);
    auto address = loopback(port_of(5));
    VERIFY(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    VERIFY(await_input(5));
    VERIFY(accept(5, nullptr, nullptr) >= 0);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Sockets, ListeningUnixAndDatagrams) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  strcpy(address.sun_path, (dir / "socket").c_str());
  trip.setup = [&] {
    move_to(socket(AF_UNIX, SOCK_STREAM, 0), 5);
    VERIFY(bind(5, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(5, 5) == 0);
    move_to(socket(AF_INET, SOCK_DGRAM, 0), 6);
    auto udp = loopback(0);
    VERIFY(bind(6, reinterpret_cast<sockaddr*>(&udp), sizeof(udp)) == 0);
    move_to(socket(AF_INET, SOCK_DGRAM, 0), 7);
    udp = loopback(port_of(6));
    VERIFY(connect(7, reinterpret_cast<sockaddr*>(&udp), sizeof(udp)) == 0);
    move_to(socket(AF_INET, SOCK_STREAM, 0), 8);
  };
  trip.verify = [&] {
    int client = socket(AF_UNIX, SOCK_STREAM, 0);
    VERIFY(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    VERIFY(accept(5, nullptr, nullptr) >= 0);
    VERIFY(write(7, "hello", 5) == 5);
    VERIFY_EQ(read_some(6, 100), "hello");
    VERIFY(listen(8, 1) == 0);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

// An earlier checkpoint has looked at them, which the kernel notes of messages without a byte.
TEST_P(Sockets, EmptyMessagesThatWereSeen) {
  trip.setup = [] {
    move_to(socket(AF_INET, SOCK_DGRAM, 0), 5);
    auto address = loopback(0);
    VERIFY(bind(5, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    address = ends_of(5, false);
    VERIFY(connect(5, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    int pair[2];
    VERIFY(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
    const int high = fcntl(pair[1], F_DUPFD, 100);
    close(pair[1]);
    move_to(pair[0], 6);
    move_to(high, 7);
    for (int fd : {5, 6}) {
      const int to = fd == 5 ? 5 : 7;
      VERIFY(send(fd, "", 0, 0) == 0);
      for (int offset : {0, -1}) {
        char byte;
        VERIFY(setsockopt(to, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof(offset)) == 0);
        VERIFY(recv(to, &byte, 1, MSG_PEEK) == 0);
      }
      VERIFY(send(fd, "behind", 6, 0) == 6 && send(fd, "", 0, 0) == 0);
    }
  };
  trip.verify = [] {
    for (int fd : {5, 7}) {
      fcntl(fd, F_SETFL, O_NONBLOCK);
      VERIFY_EQ(read_some(fd, 10), "");
      VERIFY_EQ(read_some(fd, 10), "behind");
      VERIFY_EQ(read_some(fd, 10), "");
      VERIFY_EQ(read_some(fd, 10), fmt::format("errno {}", EAGAIN));
    }
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Sockets, OptionsStay) {
  static constexpr timeval kSome{0, 120'000};
  auto set = [](int fd, int level, int name, const auto& value) {
    VERIFY(setsockopt(fd, level, name, &value, sizeof(value)) == 0);
  };
  auto require = [](int fd, int level, int name, const auto& value) {
    auto now = value;
    socklen_t length = sizeof(now);
    VERIFY(getsockopt(fd, level, name, &now, &length) == 0);
    VERIFY_EQ(length, sizeof(now));
    VERIFY(memcmp(&now, &value, sizeof(now)) == 0);
  };
  auto for_all = [](auto&& use) {
    use(5, SOL_SOCKET, SO_RCVTIMEO, kSome);
    use(6, SOL_SOCKET, SO_SNDTIMEO, kSome);
    use(7, SOL_SOCKET, SO_BROADCAST, 1);
    use(7, SOL_SOCKET, SO_RCVTIMEO, kSome);
    use(7, IPPROTO_IP, IP_TOS, 0x10);
    use(7, SOL_SOCKET, SO_PRIORITY, 3);  // set by IP_TOS too
    use(7, IPPROTO_IP, IP_PKTINFO, 1);
    use(8, IPPROTO_TCP, TCP_NODELAY, 1);
    use(8, IPPROTO_TCP, TCP_KEEPIDLE, 77);
    use(8, SOL_SOCKET, SO_LINGER, linger{1, 3});
    use(9, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
  };
  trip.setup = [&] {
    int pair[2];
    VERIFY(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    const int others[] = {socket(AF_INET, SOCK_DGRAM, 0), socket(AF_INET, SOCK_STREAM, 0),
                          socket(AF_INET6, SOCK_DGRAM, 0)};
    const int high[] = {fcntl(pair[0], F_DUPFD, 20), fcntl(pair[1], F_DUPFD, 20),
                        fcntl(others[0], F_DUPFD, 20), fcntl(others[1], F_DUPFD, 20),
                        fcntl(others[2], F_DUPFD, 20)};
    for (int fd : {pair[0], pair[1], others[0], others[1], others[2]}) close(fd);
    for (int i = 0; i < 5; ++i) move_to(high[i], 5 + i);
    for_all(set);
  };
  trip.verify = [&] {
    for_all(require);
    char byte;
    VERIFY(read(5, &byte, 1) < 0 && errno == EAGAIN);  // and does not wait for ever
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Sockets, AddressInUseIsNamed) {
  int holder = -1;
  trip.setup = [&] {
    move_to(socket(AF_INET, SOCK_STREAM, 0), 5);
    auto address = loopback(0);
    VERIFY(bind(5, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(5, 5) == 0);
    write_file(dir / "port", std::to_string(port_of(5)));
  };
  trip.meanwhile = [&] {
    holder = socket(AF_INET, SOCK_STREAM, 0);
    auto address = loopback(static_cast<uint16_t>(std::stoi(read_file(dir / "port"))));
    ASSERT_EQ(bind(holder, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    listen(holder, 1);
  };
  trip.expect_restore_error = true;
  trip.run();
  EXPECT_NE(trip.restore_error.find("cannot be taken again (EADDRINUSE): end the program that has it"),
            std::string::npos)
      << trip.restore_error;
  close(holder);
}

TEST_P(Sockets, ConnectionsToOthersAreNamedAndReset) {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  auto address = loopback(0);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  address = loopback(port_of(listener));
  std::thread other([&] {
    int accepted = accept(listener, nullptr, nullptr);
    EXPECT_EQ(write(accepted, "unread", 6), 6);
    char byte;
    EXPECT_LE(read(accepted, &byte, 1), 0);
    close(accepted);
  });
  trip.setup = [&] {
    move_to(socket(AF_INET, SOCK_STREAM, 0), 20);
    VERIFY(connect(20, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    VERIFY(await_input(20));
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(20, 10), "unread");
    VERIFY_EQ(read_some(20, 10), fmt::format("errno {}", ECONNRESET));
  };
  trip.run();
  other.join();
  close(listener);
  ASSERT_EQ(trip.notes.size(), 1u);
  EXPECT_EQ(trip.notes[0].find("descriptor 20 (socket:["), 0u) << trip.notes[0];
}

// In a network namespace of its own: two interfaces that take messages to groups, one with a name like a
// group's.
bool two_interfaces() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  const int control = socket(AF_INET, SOCK_DGRAM, 0);
  for (const char* name : {"ff0", "tap1"}) {
    const int tap = open("/dev/net/tun", O_RDWR);
    ifreq request{};
    std::strcpy(request.ifr_name, name);
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    if (ioctl(tap, TUNSETIFF, &request) != 0 || ioctl(tap, TUNSETPERSIST, 1L) != 0) return false;
    close(tap);
    request.ifr_flags = IFF_UP | IFF_MULTICAST;
    if (ioctl(control, SIOCSIFFLAGS, &request) != 0) return false;
  }
  close(control);
  return true;
}

group_req group_at(int family, const std::string& address, const char* interface) {
  group_req group{};
  group.gr_interface = if_nametoindex(interface);
  group.gr_group.ss_family = static_cast<sa_family_t>(family);
  auto& four = reinterpret_cast<sockaddr_in&>(group.gr_group);
  auto& six = reinterpret_cast<sockaddr_in6&>(group.gr_group);
  inet_pton(family, address.c_str(), family == AF_INET ? static_cast<void*>(&four.sin_addr) : &six.sin6_addr);
  return group;
}

int join(int fd, int level, const group_req& group) {
  return setsockopt(fd, level, MCAST_JOIN_GROUP, &group, sizeof(group)) == 0 ? 0 : errno;
}

TEST_P(Sockets, GroupsOfSeveralInterfacesAndBehindLongLists) {
  const pid_t child = fork();
  if (child == 0) _exit(two_interfaces() ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0)
    GTEST_SKIP() << "needs the right to make a network namespace with interfaces (/dev/net/tun)";
  constexpr int kSockets = 30, kOfEach = 18;  // a socket may be in 20 groups
  trip.setup = [] {
    VERIFY(two_interfaces());
    move_to(socket(AF_INET, SOCK_DGRAM, 0), 5);
    for (const char* name : {"ff0", "tap1"})
      VERIFY_EQ(join(5, IPPROTO_IP, group_at(AF_INET, "224.0.0.251", name)), 0);
    move_to(socket(AF_INET6, SOCK_DGRAM, 0), 6);
    for (const char* name : {"ff0", "tap1"})
      VERIFY_EQ(join(6, IPPROTO_IPV6, group_at(AF_INET6, "ff02::fb", name)), 0);
    // The kernel lists the newest first: they push those out of a short text.
    for (int i = 0; i < kSockets; ++i) {
      move_to(socket(AF_INET, SOCK_DGRAM, 0), 40 + i);
      for (int k = 0; k < kOfEach; ++k)
        VERIFY_EQ(join(40 + i, IPPROTO_IP, group_at(AF_INET, fmt::format("239.1.{}.{}", i, k), "ff0")), 0);
    }
  };
  trip.before_restore = [] { VERIFY(two_interfaces()); };
  trip.verify = [] {
    for (const char* name : {"ff0", "tap1"}) {
      VERIFY_EQ(join(5, IPPROTO_IP, group_at(AF_INET, "224.0.0.251", name)), EADDRINUSE);
      VERIFY_EQ(join(6, IPPROTO_IPV6, group_at(AF_INET6, "ff02::fb", name)), EADDRINUSE);
    }
    VERIFY_EQ(join(40, IPPROTO_IP, group_at(AF_INET, "239.1.0.0", "ff0")), EADDRINUSE);
    VERIFY_EQ(join(69, IPPROTO_IP, group_at(AF_INET, "239.1.29.17", "ff0")), EADDRINUSE);
    VERIFY_EQ(join(69, IPPROTO_IP, group_at(AF_INET, "239.1.29.17", "tap1")), 0);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

int tcp_info_state(int fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? info.tcpi_state : -1;
}

int protocol_of(int fd) {
  int protocol = 0;
  socklen_t length = sizeof(protocol);
  return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 ? protocol : -1;
}

constexpr int kMultipath = 262;  // IPPROTO_MPTCP

// As programs in Go have them.
TEST_P(Sockets, ListenersOfMultipathTcpListenAgain) {
  if (close(socket(AF_INET, SOCK_STREAM, kMultipath)) != 0) GTEST_SKIP() << "this kernel has no MPTCP";
  trip.setup = [] {
    move_to(socket(AF_INET, SOCK_STREAM, kMultipath), 5);
    auto address = loopback(0);
    VERIFY(bind(5, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    VERIFY(listen(5, 4) == 0);
    // Plain TCP, of which one end is accepted by that listener.
    address.sin_port = htons(port_of(5));
    move_to(socket(AF_INET, SOCK_STREAM, 0), 6);
    VERIFY(connect(6, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    move_to(accept(5, nullptr, nullptr), 7);
    VERIFY(write(6, "plain", 5) == 5);
    move_to(socket(AF_INET, SOCK_STREAM, kMultipath), 8);
  };
  trip.verify = [] {
    VERIFY_EQ(protocol_of(5), kMultipath);
    VERIFY_EQ(tcp_info_state(5), int{TCP_LISTEN});
    VERIFY_EQ(read_some(7, 5), "plain");
    auto address = loopback(port_of(5));
    VERIFY_EQ(protocol_of(8), kMultipath);
    VERIFY(connect(8, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    move_to(accept(5, nullptr, nullptr), 9);
    VERIFY(write(8, "paths", 5) == 5);
    VERIFY_EQ(read_some(9, 5), "paths");
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Sockets, ConnectionsOfMultipathTcpAreNamed) {
  if (close(socket(AF_INET, SOCK_STREAM, kMultipath)) != 0) GTEST_SKIP() << "this kernel has no MPTCP";
  trip.setup = [] {
    move_to(socket(AF_INET, SOCK_STREAM, kMultipath), 5);
    const int on = 1;  // else the port is kept for a minute for connections that have ended
    VERIFY(setsockopt(5, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
    VERIFY(listen(5, 4) == 0);
    const auto address = loopback(port_of(5));
    move_to(socket(AF_INET, SOCK_STREAM, kMultipath), 6);
    VERIFY(connect(6, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    move_to(accept(5, nullptr, nullptr), 7);
  };
  trip.run();
  const auto named = std::count_if(trip.notes.begin(), trip.notes.end(), [](const std::string& note) {
    return note.find("multipath TCP") != std::string::npos;
  });
  EXPECT_EQ(named, 2);
}

// The capture looks at bytes until all that is in flight has come.
TEST_P(Sockets, OffsetOfPeeksStaysWhileBytesInFlightArrive) {
  constexpr int kPeeks = 2;
  auto offset = [] {
    int value = -1;
    socklen_t length = sizeof(value);
    return getsockopt(7, SOL_SOCKET, SO_PEEK_OFF, &value, &length) == 0 ? value : -1;
  };
  const int probe = socket(AF_INET, SOCK_STREAM, 0), on = kPeeks;
  const bool known = setsockopt(probe, SOL_SOCKET, SO_PEEK_OFF, &on, sizeof(on)) == 0;
  close(probe);
  if (!known) GTEST_SKIP() << "this kernel has no SO_PEEK_OFF of TCP (before 6.9)";
  trip.setup = [&] {
    move_to(socket(AF_INET, SOCK_STREAM, 0), 5);
    const int small = 4096;
    VERIFY(setsockopt(5, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) == 0);
    VERIFY(listen(5, 4) == 0);
    const auto address = loopback(port_of(5));
    move_to(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), 6);
    (void)connect(6, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
    move_to(accept(5, nullptr, nullptr), 7);
    VERIFY(setsockopt(7, SOL_SOCKET, SO_PEEK_OFF, &on, sizeof(on)) == 0);
    // More than the receiver has room for.
    const std::string some(1000, 'x');
    for (int i = 0; i < 100 && write(6, some.data(), some.size()) > 0; ++i) {
    }
  };
  trip.after_stop = [&] { VERIFY_EQ(offset(), kPeeks); };
  trip.verify = [&] { VERIFY_EQ(offset(), kPeeks); };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

}  // namespace
}  // namespace ckpt::test
