#include "restart/channels/own_listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <vector>

#include "restart/channels/hosts_plan.h"

namespace ckpt {
namespace {

SocketName loopback_of(int fd) {
  SocketName name;
  name.length = sizeof(name.address);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&name.address), &name.length), 0);
  return name;
}

class OwnListenerTest : public testing::Test {
 protected:
  OwnListenerTest() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
    EXPECT_EQ(listen(listener_.get(), kRoom), 0);
    to_ = loopback_of(listener_.get());
  }

  static constexpr int kRoom = 4;
  ScopedFd listener_;
  SocketName to_;
};

TEST_F(OwnListenerTest, ConnectsThoughOthersHaveFilledTheQueue) {
  // More than the queue takes, so that the kernel drops what comes.
  std::vector<ScopedFd> others;
  for (int i = 0; i < 4 * kRoom; ++i) {
    others.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    (void)connect(others.back().get(), to_.get(), to_.length);
  }
  OwnListener own(listener_.get());
  const ScopedFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(own.connect(client.get(), to_), 0) << errno;
  const ScopedFd server = own.take_other_end();
  ASSERT_TRUE(server.valid());
  char byte = 0;
  EXPECT_EQ(send(client.get(), "x", 1, 0), 1);
  EXPECT_EQ(recv(server.get(), &byte, 1, 0), 1);  // the client blocks again, and so does this
  EXPECT_EQ(byte, 'x');
}

TEST_F(OwnListenerTest, SaysWhyThereIsNoConnection) {
  listener_.reset();
  OwnListener own(-1);
  const ScopedFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(own.connect(client.get(), to_), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  EXPECT_FALSE(own.take_other_end().valid());
}

}  // namespace
}  // namespace ckpt
