// Bytes that the sender's kernel holds back.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/raii_fd.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "tests/descriptors/harness.h"

namespace ckpt::test {
namespace {

// What a program has sent with MSG_MORE, a server its answer's head, waits for more, whatever the options.
// The kernel sends it after 200 ms, for which a checkpoint's threads must not stand.
TEST(HeldBackBytes, AreSentThoughNoOptionHoldsThem) {
  const ScopedFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      sender(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* name = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener.get(), name, length), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  ASSERT_EQ(getsockname(listener.get(), name, &length), 0);
  ASSERT_EQ(connect(sender.get(), name, length), 0);
  const ScopedFd receiver(accept(listener.get(), nullptr, nullptr));
  const int yes = 1;
  ASSERT_EQ(setsockopt(sender.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)), 0);
  int unsent = 0;
  while (unsent == 0) {
    ASSERT_EQ(send(sender.get(), "head", 4, MSG_MORE), 4);
    ASSERT_EQ(ioctl(sender.get(), SIOCOUTQNSD, &unsent), 0);
  }
  HeldBack held_back;
  EXPECT_FALSE(let_sender_send(sender.get(), held_back));  // no option is to be put back
  ASSERT_EQ(ioctl(sender.get(), SIOCOUTQNSD, &unsent), 0);
  EXPECT_EQ(unsent, 0);
}

}  // namespace
}  // namespace ckpt::test
