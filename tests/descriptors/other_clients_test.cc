// Clients that are not of the program try to connect to it all the time, as those of a server that was killed
// do. The program's own connections lead where they led, and nobody waits for room.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

class OtherClients : public testing::TestWithParam<bool> {
 protected:
  OtherClients() { trip.executor = GetParam(); }
  ~OtherClients() override {
    for (pid_t child : children_) {
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
    }
  }

  // From now on two processes connect to `to` as often as they can, and keep what they get.
  template <typename Address>
  void connect_without_end(const Address& to, const sockaddr_in* from) {
    for (int i = 0; i < 2; ++i) {
      const pid_t child = fork();
      if (child != 0) {
        children_.push_back(child);
        continue;
      }
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      constexpr int kOpen = 64;
      for (int fds[kOpen] = {}, n = 0;; n = (n + 1) % kOpen) {
        const auto* address = reinterpret_cast<const sockaddr*>(&to);
        if (fds[n] > 0) close(fds[n]);
        fds[n] = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (from != nullptr) (void)bind(fds[n], reinterpret_cast<const sockaddr*>(from), sizeof(*from));
        (void)connect(fds[n], address, sizeof(to));
      }
    }
  }

  // Client and server of each: descriptors 10 and 11, 12 and 13, ...
  static constexpr int kFirst = 10, kPairs = 40;
  template <typename Connect>
  static void connect_pairs(Connect connect) {
    for (int fd = kFirst; fd < kFirst + 2 * kPairs; fd += 2) connect(fd, fd + 1);
  }
  static void check_pairs() {
    connect_pairs([](int client, int server) {
      const std::string text = fmt::format("of {}", client);
      VERIFY_EQ(write(client, text.data(), text.size()), static_cast<ssize_t>(text.size()));
      fcntl(server, F_SETFL, O_NONBLOCK);
      VERIFY(await_input(server));
      VERIFY_EQ(read_some(server, 100), text);
    });
  }

  ScratchDirectory dir;
  RoundTrip trip;

 private:
  std::vector<pid_t> children_;
};
INSTANTIATE_TEST_SUITE_P(Sampled, OtherClients, testing::Values(true, false), how_sampled);

TEST_P(OtherClients, OfTcp) {
  trip.setup = [&] {
    listening_tcp(5);
    connect_pairs([](int client, int server) { connected_tcp(client, server, 5); });
    write_file(dir / "port", fmt::format("{}", ntohs(ends_of(5, false).sin_port)));
  };
  trip.meanwhile = [&] {
    // Another address, so that none of them is connected to itself.
    sockaddr_in from = loopback(0);
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
    connect_without_end(loopback(static_cast<uint16_t>(std::stoi(read_file(dir / "port")))), &from);
  };
  trip.verify = check_pairs;
  trip.run();
}

TEST_P(OtherClients, OfUnix) {
  sockaddr_un at{};
  at.sun_family = AF_UNIX;
  std::strcpy(at.sun_path, (dir / "s").c_str());
  const auto connected = [&](int fd) {
    move_to(socket(AF_UNIX, SOCK_STREAM, 0), fd);
    VERIFY(connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0);
  };
  trip.setup = [&] {
    move_to(socket(AF_UNIX, SOCK_STREAM, 0), 5);
    VERIFY(bind(5, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0 && listen(5, 0) == 0);
    connect_pairs([&](int client, int server) {
      connected(client);
      move_to(accept(5, nullptr, nullptr), server);
    });
    connected(6);  // waits to be accepted: all that the queue has room for
  };
  trip.meanwhile = [&] { connect_without_end(at, nullptr); };
  trip.verify = [&] {
    check_pairs();
    VERIFY(write(6, "x", 1) == 1);
  };
  trip.run();
}

}  // namespace
}  // namespace ckpt::test
