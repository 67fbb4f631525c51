// A client on another host: a network namespace, to which a process carries the packets.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

constexpr char kHere[] = "10.77.0.1", kThere[] = "10.77.0.2";

sockaddr_in name_at(const char* address, uint16_t port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  inet_pton(AF_INET, address, &name.sin_addr);
  return name;
}

// A namespace with one interface, which has that address: the descriptor for its packets. -1: no right.
int host_at(const char* address) {
  if (unshare(CLONE_NEWNET) != 0) return -1;
  const int tun = open("/dev/net/tun", O_RDWR), control = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "far0");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  bool ok = ioctl(tun, TUNSETIFF, &request) == 0 && ioctl(tun, TUNSETPERSIST, 1L) == 0;
  auto set = [&](unsigned long what, const char* to) {
    const sockaddr_in name = name_at(to, 0);
    std::memcpy(&request.ifr_addr, &name, sizeof(name));
    ok = ok && ioctl(control, what, &request) == 0;
  };
  set(SIOCSIFADDR, address);
  set(SIOCSIFNETMASK, "255.255.255.0");
  request.ifr_flags = IFF_UP;
  ok = ok && ioctl(control, SIOCSIFFLAGS, &request) == 0;
  close(control);
  return ok ? tun : -1;
}

void carry_packets(int a, int b) {
  char packet[4096];
  for (;;) {
    pollfd ready[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
    if (poll(ready, 2, -1) < 0) _exit(1);
    for (int i = 0; i < 2; ++i) {
      const ssize_t n = (ready[i].revents & POLLIN) != 0 ? read(ready[i].fd, packet, sizeof(packet)) : 0;
      if (n > 0 && write(ready[1 - i].fd, packet, static_cast<size_t>(n)) != n) _exit(2);
    }
  }
}

// In a host of its own: connects, says so, and stays.
void client_of(uint16_t port, int here, int told) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int there = host_at(kThere);
  if (there < 0) _exit(1);
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int client = socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in to = name_at(kHere, port);
    const bool connected = connect(client, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
    if (write(told, connected ? "1" : "0", 1) != 1) _exit(1);
    pause();
  }
  carry_packets(here, there);
}

class FarClient : public testing::TestWithParam<bool> {
 protected:
  FarClient() { trip.executor = GetParam(); }
  RoundTrip trip;
};
INSTANTIATE_TEST_SUITE_P(Sampled, FarClient, testing::Values(true, false), how_sampled);

// The client is there, only not on this host: its connection leads out, as those that are accepted.
TEST_P(FarClient, ThatWaitsToBeAcceptedDoesNotForbidTheRestart) {
  const pid_t child = fork();
  if (child == 0) _exit(host_at(kHere) >= 0 ? 0 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0)
    GTEST_SKIP() << "needs the right to make a network namespace with an interface (/dev/net/tun)";
  trip.setup = [] {
    const int here = host_at(kHere);
    move_to(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), 50);
    const sockaddr_in at = name_at(kHere, 4000);
    VERIFY(bind(50, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0 && listen(50, 4) == 0);
    int told[2];
    VERIFY(pipe(told) == 0);
    if (fork() == 0) client_of(4000, here, told[1]);
    close(told[1]);
    VERIFY_EQ(read_some(told[0], 1), "1");
    close(told[0]);
    close(here);
    VERIFY(await_input(50));
  };
  trip.before_restore = [] { close(host_at(kHere)); };
  trip.verify = [] {
    VERIFY_EQ(accept(50, nullptr, nullptr), -1);
    VERIFY_EQ(errno, EAGAIN);
  };
  trip.run();
  ASSERT_EQ(trip.notes.size(), 1u);
  EXPECT_NE(trip.notes[0].find("on another host"), std::string::npos) << trip.notes[0];
  EXPECT_EQ(trip.notes[0].find("ask again"), std::string::npos) << trip.notes[0];
}

}  // namespace
}  // namespace ckpt::test
