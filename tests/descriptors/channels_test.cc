// Connections with both ends in the process, and what is in flight in them.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

class Channels : public testing::TestWithParam<bool> {
 protected:
  Channels() { trip.executor = GetParam(); }
  ScratchDirectory dir;
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, Channels, testing::Values(true, false), how_sampled);

struct UnixName {
  sockaddr_un address{};
  socklen_t length;
  explicit UnixName(const std::string& path) {
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + (path[0] == '\0' ? 0 : 1));
  }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&address); }
};

// Of this test's process, and the same in what it forks: tests run side by side.
const pid_t kTest = getpid();

std::string abstract_name(const char* what) {
  return std::string(1, '\0') + fmt::format("ckpt-test-{}-{}", what, kTest);
}

void bound_at(int fd, int type, UnixName name) {
  move_to(socket(AF_UNIX, type, 0), fd);
  VERIFY(bind(fd, name.get(), name.length) == 0);
}

std::string name_of(int fd, bool peer) {
  sockaddr_un address{};
  socklen_t length = sizeof(address);
  auto* to = reinterpret_cast<sockaddr*>(&address);
  if ((peer ? getpeername(fd, to, &length) : getsockname(fd, to, &length)) != 0)
    return fmt::format("errno {}", errno);
  return std::string(address.sun_path, length - offsetof(sockaddr_un, sun_path)).c_str();
}

void connected_at(int client, int server, int listener, UnixName name) {
  int type = 0;
  socklen_t length = sizeof(type);
  getsockopt(listener, SOL_SOCKET, SO_TYPE, &type, &length);
  move_to(socket(AF_UNIX, type, 0), client);
  VERIFY(connect(client, name.get(), name.length) == 0);
  move_to(accept(listener, nullptr, nullptr), server);
}

std::string read_all(int fd, size_t n) {
  std::string all;
  while (all.size() < n) {
    std::string some = read_some(fd, n - all.size());
    if (some.empty() || some.starts_with("errno")) break;
    all += some;
  }
  return all;
}

std::string pattern(size_t n) {
  std::string bytes(n, '\0');
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
  return bytes;
}

TEST_P(Channels, ByPathAndByAbstractName) {
  const std::string path = dir / "s", hidden = abstract_name("stream");
  trip.setup = [&] {
    bound_at(5, SOCK_STREAM, UnixName(path));
    bound_at(6, SOCK_SEQPACKET, UnixName(hidden));
    VERIFY(listen(5, 4) == 0 && listen(6, 4) == 0);
    connected_at(7, 8, 5, UnixName(path));
    connected_at(9, 10, 6, UnixName(hidden));
    VERIFY(write(7, "to server", 9) == 9 && write(8, "to client", 9) == 9);
    VERIFY(write(9, "a", 1) == 1 && write(9, "bc", 2) == 2);
    shutdown(7, SHUT_WR);
  };
  trip.verify = [&] {
    VERIFY_EQ(name_of(7, true), path);
    VERIFY_EQ(name_of(8, false), path);
    VERIFY_EQ(read_some(8, 100), "to server");
    VERIFY_EQ(read_some(8, 100), "");
    VERIFY_EQ(read_some(7, 100), "to client");
    VERIFY_EQ(read_some(10, 100), "a");
    VERIFY_EQ(read_some(10, 100), "bc");
    connected_at(11, 12, 5, UnixName(path));
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
  EXPECT_TRUE(trip.lines.empty());
}

TEST_P(Channels, ListenerGoneAndItsFileToo) {
  const std::string path = dir / "s";
  trip.setup = [&] {
    bound_at(5, SOCK_STREAM, UnixName(path));
    VERIFY(listen(5, 4) == 0);
    connected_at(7, 8, 5, UnixName(path));
    close(5);
    unlink(path.c_str());
    VERIFY(write(7, "x", 1) == 1);
  };
  trip.verify = [&] {
    VERIFY_EQ(name_of(7, true), path);
    VERIFY_EQ(read_some(8, 100), "x");
    struct stat st;
    VERIFY(stat(path.c_str(), &st) != 0);
  };
  trip.run();
  EXPECT_TRUE(trip.lines.empty());
}

TEST_P(Channels, NotAcceptedYet) {
  const std::string path = dir / "s";
  trip.setup = [&] {
    bound_at(5, SOCK_STREAM, UnixName(path));
    VERIFY(listen(5, 4) == 0);
    UnixName name(path);
    for (int fd : {7, 8}) {
      move_to(socket(AF_UNIX, SOCK_STREAM, 0), fd);
      VERIFY(connect(fd, name.get(), name.length) == 0);
    }
    listening_tcp(9);
    auto address = ends_of(9, false);
    move_to(socket(AF_INET, SOCK_STREAM, 0), 10);
    VERIFY(connect(10, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  };
  trip.verify = [&] {
    for (auto [client, listener] : {std::pair{7, 5}, {8, 5}, {10, 9}}) {
      VERIFY(write(client, "me", 2) == 2);
      int accepted = accept(listener, nullptr, nullptr);
      VERIFY_EQ(read_some(accepted, 10), "me");
      VERIFY(write(accepted, "you", 3) == 3);
      VERIFY_EQ(read_some(client, 10), "you");
    }
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

void send_files(int socket, const std::string& text, std::vector<int> files) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  std::vector<char> control(CMSG_SPACE(files.size() * sizeof(int)));
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  cmsghdr* c = CMSG_FIRSTHDR(&header);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), files.data(), files.size() * sizeof(int));
  VERIFY(sendmsg(socket, &header, 0) == static_cast<ssize_t>(text.size()));
}

std::string receive_files(int socket, std::vector<int>& files) {
  char text[100];
  alignas(cmsghdr) char control[512];
  iovec part{text, sizeof(text)};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t n = recvmsg(socket, &header, MSG_DONTWAIT);
  files.clear();
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_type != SCM_RIGHTS) continue;
    files.resize((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(files.data(), CMSG_DATA(c), files.size() * sizeof(int));
  }
  return n < 0 ? fmt::format("errno {}", errno) : std::string(text, static_cast<size_t>(n));
}

TEST_P(Channels, DescriptorsInFlight) {
  trip.setup = [&] {
    int pair[2], pipe_ends[2], inner[2];
    VERIFY(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    move_to(fcntl(pair[0], F_DUPFD, 60), 40);
    move_to(fcntl(pair[1], F_DUPFD, 60), 41);
    close(pair[0]);
    close(pair[1]);
    write_file(dir / "file", "contents");
    int file = open((dir / "file").c_str(), O_RDONLY);
    lseek(file, 3, SEEK_SET);
    VERIFY(pipe(pipe_ends) == 0);
    VERIFY(write(pipe_ends[1], "in the pipe", 11) == 11);
    VERIFY(socketpair(AF_UNIX, SOCK_DGRAM, 0, inner) == 0);
    send_files(inner[0], "deep", {pipe_ends[0], inner[0]});  // inside a socket that is itself in flight
    send_files(40, "one", {file, 40});                       // the sender itself: a cycle
    send_files(40, "two", {inner[1]});
    VERIFY(write(40, "three", 5) == 5);
    move_to(pipe_ends[1], 42);
    for (int fd : {file, pipe_ends[0], inner[0], inner[1]}) close(fd);
  };
  trip.after_stop = [&] {  // and all is still there for the program
    std::vector<int> files;
    VERIFY_EQ(receive_files(41, files), "one");
    VERIFY_EQ(files.size(), 2u);
  };
  trip.verify = [&] {
    std::vector<int> files, more;
    VERIFY_EQ(receive_files(41, files), "one");
    VERIFY_EQ(files.size(), 2u);
    if (files.size() == 2) {
      VERIFY_EQ(read_some(files[0], 100), "tents");
      VERIFY(write(files[1], "four", 4) == 4);
    }
    VERIFY_EQ(receive_files(41, files), "two");
    VERIFY_EQ(files.size(), 1u);
    if (files.size() == 1) {
      VERIFY_EQ(receive_files(files[0], more), "deep");
      VERIFY_EQ(more.size(), 2u);
      if (more.size() == 2) VERIFY_EQ(read_some(more[0], 100), "in the pipe");
    }
    VERIFY_EQ(read_some(41, 100), "threefour");
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Channels, DatagramsOfSeveralSenders) {
  const std::string to = dir / "to", from = dir / "from";
  trip.setup = [&] {
    bound_at(5, SOCK_DGRAM, UnixName(to));
    bound_at(6, SOCK_DGRAM, UnixName(from));
    move_to(socket(AF_UNIX, SOCK_DGRAM, 0), 7);
    UnixName name(to);
    VERIFY(connect(6, name.get(), name.length) == 0);
    VERIFY(write(6, "first", 5) == 5);
    VERIFY(sendto(7, "second", 6, 0, name.get(), name.length) == 6);
    bound_at(8, SOCK_DGRAM, UnixName(dir / "gone"));
    VERIFY(sendto(8, "", 0, 0, name.get(), name.length) == 0);
    VERIFY(sendto(8, "fourth", 6, 0, name.get(), name.length) == 6);
    close(8);
  };
  trip.verify = [&] {
    for (auto [text, sender] : {std::pair<std::string, std::string>{"first", from},
                                {"second", ""},
                                {"", dir / "gone"},
                                {"fourth", dir / "gone"}}) {
      char bytes[100];
      sockaddr_un address{};
      socklen_t length = sizeof(address);
      ssize_t n =
          recvfrom(5, bytes, sizeof(bytes), MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&address), &length);
      VERIFY_EQ(n < 0 ? fmt::format("errno {}", errno) : std::string(bytes, static_cast<size_t>(n)), text);
      VERIFY_EQ(std::string(length > 2 ? address.sun_path : ""), sender);
    }
    VERIFY(write(6, "again", 5) == 5);
    VERIFY_EQ(read_some(5, 100), "again");
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Channels, CredentialsAndPeekOffset) {
  trip.setup = [&] {
    int pair[2], yes = 1, offset = 2;
    VERIFY(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    move_to(pair[0], 40);
    move_to(pair[1], 41);
    VERIFY(setsockopt(41, SOL_SOCKET, SO_PASSCRED, &yes, sizeof(yes)) == 0);
    VERIFY(setsockopt(41, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof(offset)) == 0);
    VERIFY(write(40, "abcd", 4) == 4);
  };
  trip.verify = [&] {
    char bytes[10];
    VERIFY(recv(41, bytes, 10, MSG_PEEK) == 2 && bytes[0] == 'c');
    alignas(cmsghdr) char control[100];
    iovec part{bytes, sizeof(bytes)};
    msghdr header{nullptr, 0, &part, 1, control, sizeof(control), 0};
    VERIFY(recvmsg(41, &header, 0) == 4);
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    VERIFY(c != nullptr && c->cmsg_type == SCM_CREDENTIALS);
  };
  trip.run();
}

TEST_P(Channels, TcpEstablishedBothWays) {
  const std::string much = pattern(3'000'000);
  trip.setup = [&] {
    listening_tcp(5);
    int small = 8192;
    setsockopt(5, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    connected_tcp(7, 8, 5);
    auto mine = ends_of(7, false);
    write_file(dir / "ends", std::string(reinterpret_cast<char*>(&mine), sizeof(mine)));
    int yes = 1;
    setsockopt(7, IPPROTO_TCP, TCP_CORK, &yes, sizeof(yes));
    fcntl(7, F_SETFL, O_NONBLOCK);
    size_t sent = 0;
    for (pollfd p{7, POLLOUT, 0}; sent < much.size() && poll(&p, 1, 300) == 1;) {
      ssize_t n = write(7, much.data() + sent, much.size() - sent);
      if (n > 0) sent += static_cast<size_t>(n);
    }
    write_file(dir / "sent", std::to_string(sent));
    VERIFY(write(8, "back", 4) == 4);
    connected_tcp(9, 10, 5);
    VERIFY(write(10, "last", 4) == 4);
    shutdown(10, SHUT_WR);
  };
  trip.after_stop = [&] {
    const size_t sent = std::stoul(read_file(dir / "sent"));
    VERIFY(read_all(8, sent) == much.substr(0, sent));
  };
  trip.verify = [&] {
    const size_t sent = std::stoul(read_file(dir / "sent"));
    VERIFY(sent > 100'000);
    VERIFY(read_all(8, sent) == much.substr(0, sent));
    VERIFY_EQ(read_some(7, 100), "back");
    auto mine = ends_of(7, false);
    VERIFY(read_file(dir / "ends") == std::string(reinterpret_cast<char*>(&mine), sizeof(mine)));
    VERIFY_EQ(ends_of(8, true).sin_port, mine.sin_port);
    VERIFY_EQ(read_some(9, 100), "last");
    VERIFY_EQ(read_some(9, 100), "");
    VERIFY(write(9, "on", 2) == 2);
    VERIFY_EQ(read_some(10, 100), "on");
    connected_tcp(11, 12, 5);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
  EXPECT_TRUE(trip.lines.empty()) << trip.lines[0];
}

TEST_P(Channels, TcpClosedAndUrgent) {
  trip.setup = [&] {
    listening_tcp(5);
    connected_tcp(7, 8, 5);
    VERIFY(write(8, "left behind", 11) == 11);
    close(8);
    connected_tcp(9, 10, 5);
    VERIFY(send(9, "ab!", 3, MSG_OOB) == 3 && send(9, "cd", 2, 0) == 2);
    connected_tcp(12, 13, 5);
    VERIFY(write(12, "unread", 6) == 6);
    VERIFY(await_input(13));
    VERIFY(write(13, "x", 1) == 1);
    close(13);  // with an unread byte: a reset
    close(5);
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(7, 100), "left behind");
    VERIFY_EQ(read_some(7, 100), "");
    char byte = 0;
    VERIFY_EQ(read_some(10, 100), "ab");
    VERIFY(recv(10, &byte, 1, MSG_OOB) == 1 && byte == '!');
    VERIFY_EQ(read_some(10, 100), "cd");
    VERIFY_EQ(read_some(12, 100), "x");
    VERIFY_EQ(read_some(12, 100), fmt::format("errno {}", ECONNRESET));
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

TEST_P(Channels, TcpOfIpv6AndMapped) {
  trip.setup = [&] {
    move_to(socket(AF_INET6, SOCK_STREAM, 0), 5);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    VERIFY(bind(5, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 && listen(5, 4) == 0);
    socklen_t length = sizeof(address);
    getsockname(5, reinterpret_cast<sockaddr*>(&address), &length);
    address.sin6_addr = in6addr_loopback;
    move_to(socket(AF_INET6, SOCK_STREAM, 0), 6);
    VERIFY(connect(6, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    move_to(accept(5, nullptr, nullptr), 7);
    auto four = loopback(ntohs(address.sin6_port));
    move_to(socket(AF_INET, SOCK_STREAM, 0), 8);
    VERIFY(connect(8, reinterpret_cast<sockaddr*>(&four), sizeof(four)) == 0);
    move_to(accept(5, nullptr, nullptr), 9);
    VERIFY(write(6, "six", 3) == 3 && write(8, "four", 4) == 4);
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(7, 100), "six");
    VERIFY_EQ(read_some(9, 100), "four");
    VERIFY(write(9, "back", 4) == 4);
    VERIFY_EQ(read_some(8, 100), "back");
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
  EXPECT_TRUE(trip.lines.empty());
}

TEST_P(Channels, UdpWithWhatWaits) {
  trip.setup = [&] {
    for (int fd : {5, 6, 7, 8, 9}) {
      move_to(socket(AF_INET, SOCK_DGRAM, 0), fd);
      auto address = loopback(0);
      VERIFY(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    }
    auto to = ends_of(5, false);
    VERIFY(connect(6, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
    VERIFY(write(6, "from six", 8) == 8);
    VERIFY(sendto(7, "from seven", 10, 0, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 10);
    write_file(dir / "port", std::to_string(ntohs(ends_of(7, false).sin_port)));
    close(7);
    for (int fd : {8, 9}) {
      VERIFY(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
      VERIFY(shutdown(fd, fd == 8 ? SHUT_WR : SHUT_RD) == 0);
    }
  };
  trip.verify = [&] {
    VERIFY(send(8, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    for (int fd : {8, 9}) {
      pollfd ended{fd, POLLRDHUP, 0};
      VERIFY_EQ(poll(&ended, 1, 0), fd == 8 ? 0 : 1);
    }
    auto check = [](const std::string& text, int port) {
      VERIFY(await_input(5));
      char bytes[100];
      sockaddr_in from{};
      socklen_t length = sizeof(from);
      ssize_t n = recvfrom(5, bytes, 100, MSG_DONTWAIT, reinterpret_cast<sockaddr*>(&from), &length);
      VERIFY_EQ(n < 0 ? fmt::format("errno {}", errno) : std::string(bytes, static_cast<size_t>(n)), text);
      VERIFY_EQ(ntohs(from.sin_port), port);
    };
    check("from six", ntohs(ends_of(6, false).sin_port));
    check("from seven", std::stoi(read_file(dir / "port")));
    VERIFY(write(6, "more", 4) == 4);
    check("more", ntohs(ends_of(6, false).sin_port));
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
  EXPECT_TRUE(trip.lines.empty());
}

TEST_P(Channels, NetlinkGroups) {
  trip.setup = [&] {
    move_to(socket(AF_NETLINK, SOCK_RAW, 0), 5);
    sockaddr address{};
    struct {
      sa_family_t family;
      unsigned short pad;
      uint32_t pid, groups;
    } name{AF_NETLINK, 0, 0, 1};
    (void)address;
    VERIFY(bind(5, reinterpret_cast<sockaddr*>(&name), sizeof(name)) == 0);
  };
  trip.verify = [&] {
    struct {
      sa_family_t family;
      unsigned short pad;
      uint32_t pid, groups;
    } name{};
    socklen_t length = sizeof(name);
    VERIFY(getsockname(5, reinterpret_cast<sockaddr*>(&name), &length) == 0);
    VERIFY_EQ(name.groups, 1u);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

}  // namespace
}  // namespace ckpt::test
