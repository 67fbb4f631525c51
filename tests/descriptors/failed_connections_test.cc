// TCP sockets in which an error waits: refused, timed out, reset.
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

class FailedConnections : public testing::TestWithParam<bool> {
 protected:
  FailedConnections() { trip.executor = GetParam(); }
  ScratchDirectory dir;
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, FailedConnections, testing::Values(true, false), how_sampled);

short events_of(int fd) {
  pollfd p{fd, POLLIN | POLLOUT | POLLRDHUP, 0};
  poll(&p, 1, 0);
  return p.revents;
}

int error_of(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  VERIFY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
  return error;
}

// A connect that does not wait, to a port that is taken and at which nobody listens.
void refused_tcp(int fd, bool bound) {
  const int nobody = socket(AF_INET, SOCK_STREAM, 0);
  auto address = loopback(0);
  VERIFY(bind(nobody, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  socklen_t length = sizeof(address);
  getsockname(nobody, reinterpret_cast<sockaddr*>(&address), &length);
  move_to(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), fd);
  auto any = loopback(0);
  if (bound) VERIFY(bind(fd, reinterpret_cast<sockaddr*>(&any), sizeof(any)) == 0);
  VERIFY(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) < 0 && errno == EINPROGRESS);
  pollfd p{fd, POLLOUT, 0};
  poll(&p, 1, -1);
  close(nobody);
}

TEST_P(FailedConnections, Refused) {
  trip.setup = [&] {
    listening_tcp(5);
    for (int fd : {7, 8, 9}) refused_tcp(fd, fd == 8);
    VERIFY_EQ(error_of(9), ECONNREFUSED);
    std::string ports;
    for (int fd : {7, 8}) ports += fmt::format("{} ", ends_of(fd, false).sin_port);
    write_file(dir / "ports", ports);
  };
  trip.after_stop = [] { VERIFY_EQ(error_of(7), ECONNREFUSED); };  // still there
  trip.verify = [&] {
    constexpr short kFailed = POLLIN | POLLOUT | POLLHUP | POLLRDHUP;
    for (int fd : {7, 8}) VERIFY_EQ(events_of(fd), kFailed | POLLERR);
    VERIFY_EQ(events_of(9), kFailed);
    VERIFY_EQ(fmt::format("{} {} ", ends_of(7, false).sin_port, ends_of(8, false).sin_port),
              read_file(dir / "ports"));
    VERIFY_EQ(error_of(7), ECONNREFUSED);
    VERIFY_EQ(error_of(7), 0);
    VERIFY_EQ(read_some(7, 1), "");
    VERIFY_EQ(read_some(8, 1), fmt::format("errno {}", ECONNREFUSED));
    VERIFY(send(8, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE);
    // The next connect(2) says that the first has failed, the one after it works.
    const auto there = ends_of(5, false);
    for (int fd : {7, 9}) {
      VERIFY(connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) < 0 &&
             errno == ECONNABORTED);
      VERIFY(connect(fd, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) == 0 ||
             errno == EINPROGRESS);
      const int accepted = accept(5, nullptr, nullptr);
      VERIFY(write(accepted, "in", 2) == 2);
      pollfd p{fd, POLLIN, 0};
      poll(&p, 1, -1);
      VERIFY_EQ(read_some(fd, 100), "in");
      close(accepted);
    }
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
  EXPECT_TRUE(trip.lines.empty()) << trip.lines[0];
}

TEST_P(FailedConnections, RefusedDatagram) {
  const auto same = [](const sockaddr_in& a, const sockaddr_in& b) {
    return a.sin_port == b.sin_port && a.sin_addr.s_addr == b.sin_addr.s_addr;
  };
  static sockaddr_in own, peer;
  trip.setup = [&] {
    const int nobody = socket(AF_INET, SOCK_DGRAM, 0);
    auto address = loopback(0);
    VERIFY(bind(nobody, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    address = ends_of(nobody, false);
    // Takes what it sends itself, and nothing else. Without it, the kernel might give its port to the other
    // socket.
    VERIFY(connect(nobody, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    move_to(socket(AF_INET, SOCK_DGRAM, 0), 7);
    VERIFY(connect(7, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    VERIFY(send(7, "x", 1, 0) == 1);
    pollfd p{7, 0, 0};
    poll(&p, 1, -1);
    VERIFY_EQ(p.revents, POLLERR);
    close(nobody);
    own = ends_of(7, false);
    peer = ends_of(7, true);
    write_file(dir / "names", std::string(reinterpret_cast<char*>(&own), sizeof(own)) +
                                  std::string(reinterpret_cast<char*>(&peer), sizeof(peer)));
  };
  trip.after_stop = [] { VERIFY_EQ(error_of(7), ECONNREFUSED); };  // still there
  trip.verify = [&] {
    const std::string names = read_file(dir / "names");
    std::memcpy(&own, names.data(), sizeof(own));
    std::memcpy(&peer, names.data() + sizeof(own), sizeof(peer));
    VERIFY(same(ends_of(7, false), own) && same(ends_of(7, true), peer));
    VERIFY_EQ(events_of(7), POLLERR | POLLOUT);
    VERIFY_EQ(error_of(7), ECONNREFUSED);
    VERIFY_EQ(error_of(7), 0);
    VERIFY(send(7, "x", 1, 0) == 1);
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
  EXPECT_TRUE(trip.lines.empty()) << trip.lines[0];
}

TEST_P(FailedConnections, TimedOutOrResetAfterTheEnd) {
  // Everything that arrives is dropped: neither a SYN nor a byte has an answer.
  auto drop_all = [](int fd) {
    sock_filter none{BPF_RET | BPF_K, 0, 0, 0};
    const sock_fprog program{1, &none};
    VERIFY(setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0);
  };
  auto wait_for_error = [](int fd) {
    pollfd p{fd, 0, 0};
    poll(&p, 1, -1);
  };
  const int at_once = 1;
  trip.setup = [&] {
    listening_tcp(5);
    connected_tcp(7, 8, 5);
    drop_all(8);
    VERIFY(setsockopt(7, IPPROTO_TCP, TCP_USER_TIMEOUT, &at_once, sizeof(at_once)) == 0);
    VERIFY(write(7, "x", 1) == 1);
    wait_for_error(7);
    close(8);
    connected_tcp(9, 10, 5);
    close(10);
    VERIFY(write(9, "x", 1) == 1);
    wait_for_error(9);
    listening_tcp(11);
    drop_all(11);
    move_to(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), 12);
    VERIFY(setsockopt(12, IPPROTO_TCP, TCP_USER_TIMEOUT, &at_once, sizeof(at_once)) == 0);
    const auto there = ends_of(11, false);
    VERIFY(connect(12, reinterpret_cast<const sockaddr*>(&there), sizeof(there)) < 0);
    wait_for_error(12);
    close(11);
  };
  trip.verify = [&] {
    VERIFY_EQ(read_some(7, 1), fmt::format("errno {}", ETIMEDOUT));
    VERIFY_EQ(read_some(9, 1), "");
    VERIFY_EQ(error_of(9), EPIPE);
    VERIFY_EQ(error_of(12), ETIMEDOUT);
    for (int fd : {7, 12}) {
      int timeout = 0;
      socklen_t length = sizeof(timeout);
      VERIFY(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &length) == 0);
      VERIFY_EQ(timeout, 1);
    }
  };
  trip.run();
  EXPECT_TRUE(trip.notes.empty());
}

}  // namespace
}  // namespace ckpt::test
