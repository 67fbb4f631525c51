#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

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
    pollfd p{5, POLLIN, 0};
    poll(&p, 1, -1);
    close(accept(5, nullptr, nullptr));
    close(client);
  };
  trip.verify = [&] {
    VERIFY_EQ(port_of(5), std::stoi(read_file(dir / "port")));
    int client = socket(AF_INET, SOCK_STREAM, 0);
    auto address = loopback(port_of(5));
    VERIFY(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    pollfd p{5, POLLIN, 0};
    VERIFY_EQ(poll(&p, 1, 1000), 1);
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
    pollfd p{20, POLLIN, 0};
    poll(&p, 1, -1);
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

}  // namespace
}  // namespace ckpt::test
