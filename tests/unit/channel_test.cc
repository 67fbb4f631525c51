// Messages between the agents of a job, from a member that sends a byte now and then.
#include "job/capture/channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.h"

namespace ckpt::job {

namespace {

class Trickle {
 public:
  // bytes: of the message that is begun; it is never whole.
  explicit Trickle(uint32_t bytes) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends_), 0);
    thread_ = std::thread([this, bytes] {
      const MessageHead head{static_cast<uint32_t>(Step::kSampled), bytes};
      send(ends_[1], &head, sizeof(head), MSG_NOSIGNAL);
      for (uint32_t sent = 0; !done_ && sent + 1 < bytes; ++sent) {
        send(ends_[1], "x", 1, MSG_NOSIGNAL);
        usleep(1000);  // between two bytes
      }
    });
  }
  ~Trickle() {
    done_ = true;
    // Nobody reads any more: once there is no room it would wait in send for ever.
    shutdown(ends_[0], SHUT_RDWR);
    thread_.join();
    close(ends_[0]);
    close(ends_[1]);
  }
  int socket() const { return ends_[0]; }

 private:
  int ends_[2] = {-1, -1};
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

TEST(Channel, TheDeadlineIsOfTheWholeMessage) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(8 << 20));
  const Trickle member(4 << 20);
  Message message;
  EXPECT_EQ(receive_message(member.socket(), now_ns() + 50'000'000, arena, message), Received::kTimeout);
}

TEST(Channel, AMessageOfManyBytesComesWhole) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(8 << 20));
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const std::string text(3 << 20, 'a');
  std::thread member([&] { EXPECT_TRUE(send_message(ends[1], Step::kSampled, text.data(), text.size())); });
  Message message;
  EXPECT_EQ(receive_message(ends[0], now_ns() + 60'000'000'000, arena, message), Received::kMessage);
  member.join();
  EXPECT_EQ(message.payload.size(), text.size());
  close(ends[1]);
  EXPECT_EQ(receive_message(ends[0], 0, arena, message), Received::kClosed);
  close(ends[0]);
}

}  // namespace

}  // namespace ckpt::job
