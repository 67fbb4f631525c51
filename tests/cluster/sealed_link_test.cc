// Links between hosts (cluster/link/sealed_link.h): who is let in, and how long a stranger can hold the caller.
#include "cluster/link/sealed_link.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <time.h>

#include <array>
#include <cstring>
#include <thread>

namespace ckpt::cluster {
namespace {

struct Ends {
  ScopedFd here, there;
};

Ends make_ends() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {ScopedFd(fds[0]), ScopedFd(fds[1])};
}

TEST(SealedLink, EndsThatKnowTheSecretMeetAndTalk) {
  Ends ends = make_ends();
  const Secret secret = make_secret();
  std::thread other([&] {
    auto link = SealedLink::connect(std::move(ends.there), secret);
    ASSERT_TRUE(link.ok());
    EXPECT_TRUE(link->send("hello"));
  });
  auto link = SealedLink::accept(std::move(ends.here), secret);
  ASSERT_TRUE(link.ok());
  std::vector<std::string> messages;
  EXPECT_TRUE(link->receive(messages, true));
  EXPECT_EQ(messages, std::vector<std::string>{"hello"});
  other.join();
}

// Messages that are encrypted and decrypted where they are come in between others; one that is longer than the room for it
// ends the link.
void messages_in_place(bool sends_by_libcrypto, bool receives_by_libcrypto) {
  Ends ends = make_ends();
  const Secret secret = make_secret();
  const std::string text = "every byte of the message; ";
  std::string large;
  while (large.size() < 300'000) large += text;
  std::thread other([&] {
    auto link = SealedLink::connect(std::move(ends.there), secret);
    ASSERT_TRUE(link.ok());
    if (sends_by_libcrypto) link->use_libcrypto();
    const auto send = [&](const std::string& message) {
      const auto room = link->compose(message.size());
      std::memcpy(room.data(), message.data(), message.size());
      EXPECT_TRUE(link->send_composed());
    };
    send(text);
    EXPECT_TRUE(link->send(large));
    send(large);
    send("");
    EXPECT_TRUE(link->send(text));
    link->compose(large.size());
    link->send_composed();  // nobody reads all of it
  });
  auto link = SealedLink::accept(std::move(ends.here), secret);
  ASSERT_TRUE(link.ok());
  if (receives_by_libcrypto) link->use_libcrypto();
  std::vector<std::string> messages;
  while (messages.empty()) ASSERT_TRUE(link->receive(messages, true));
  // receive() may have read of what follows; nothing of it is lost.
  EXPECT_EQ(messages[0], text);
  std::vector<std::byte> room(large.size());
  const auto next = [&]() -> std::optional<std::string> {
    const auto bytes = link->receive_into(room);
    if (!bytes) return std::nullopt;
    return std::string(reinterpret_cast<const char*>(room.data()), *bytes);
  };
  EXPECT_EQ(next(), large);
  EXPECT_EQ(next(), large);
  EXPECT_EQ(next(), "");
  EXPECT_EQ(next(), text);
  room.resize(large.size() - 1);
  EXPECT_EQ(next(), std::nullopt);
  link->close();
  other.join();
}

TEST(SealedLink, MessagesInPlace) { messages_in_place(false, false); }

// libsodium and libcrypto, where there is one, understand each other.
TEST(SealedLink, EitherLibraryAtEachEnd) {
  messages_in_place(true, false);
  messages_in_place(false, true);
  messages_in_place(true, true);
}

TEST(MessageCipher, OnlyTheNextMessageIsTaken) {
  const MessageCipher::Key key{1, 2, 3};
  for (const bool by_libcrypto : {false, true}) {
    MessageCipher seals(key), opens(key);
    if (by_libcrypto && (!seals.use_libcrypto(true) || !opens.use_libcrypto(false)))
      GTEST_SKIP() << "no libcrypto here";
    const std::array<uint8_t, 2> known{7, 8}, other{7, 9};
    std::array<std::array<uint8_t, 100>, 3> messages{};
    uint8_t tags[3][MessageCipher::kTagBytes];
    std::array<uint8_t, 100> got{};
    for (size_t i = 0; i < messages.size(); ++i) {
      messages[i].fill(static_cast<uint8_t>(i));
      ASSERT_TRUE(seals.seal(known, messages[i], tags[i]));
      EXPECT_NE(messages[i][50], i);
    }
    EXPECT_TRUE(opens.open(known, messages[0], tags[0], got.data()));
    EXPECT_EQ(got[50], 0);
    EXPECT_FALSE(opens.open(known, messages[0], tags[0], got.data()));  // again
    EXPECT_FALSE(opens.open(other, messages[2], tags[2], got.data()));  // with something else
  }
}

TEST(SealedLink, AnotherSecretIsRefused) {
  Ends ends = make_ends();
  std::thread other([&] { EXPECT_FALSE(SealedLink::connect(std::move(ends.there), make_secret()).ok()); });
  auto link = SealedLink::accept(std::move(ends.here), make_secret());
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.error().code, ExitCode::kPermission);
  other.join();
}

// A stranger sends all that the handshake wants, byte by byte, each within the patience. All together take far longer,
// so that the proof, which is wrong, is never looked at, however late the accepting thread gets a processor.
TEST(SealedLink, AStrangerWhoSendsSlowlyIsGivenUp) {
  Ends ends = make_ends();
  constexpr int kPatienceMs = 200;
  constexpr long kPauseNs = 150'000'000;
  std::thread stranger([&] {
    const ScopedFd socket = std::move(ends.there);
    const std::string hello = std::string("ckpthst2") + std::string(32, 'k') + std::string(32, 'm');
    for (char byte : hello) {
      if (send(socket.get(), &byte, 1, MSG_NOSIGNAL) != 1) return;  // given up
      const timespec pause{0, kPauseNs};
      nanosleep(&pause, nullptr);
    }
  });
  auto link = SealedLink::accept(std::move(ends.here), make_secret(), kPatienceMs);
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.error().code, ExitCode::kIo);
  EXPECT_EQ(link.error().sys_errno, ETIMEDOUT);
  stranger.join();
}

}  // namespace
}  // namespace ckpt::cluster
