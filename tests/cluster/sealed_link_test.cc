// Links between hosts (cluster/link/sealed_link.h): who is let in, and how long a stranger can hold the
// caller.
#include "cluster/link/sealed_link.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
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

// Messages that are encrypted and decrypted where they are come in between others; one that is longer than
// the room for it ends the link.
void messages_in_place(bool sends_by_libcrypto, bool receives_by_libcrypto) {
  Ends ends = make_ends();
  const Secret secret = make_secret();
  const std::string text = "every byte of the message; ";
  std::string large;
  while (large.size() < 300'000) large += text;
  std::thread other([&] {
    auto link = SealedLink::connect(std::move(ends.there), secret);
    ASSERT_TRUE(link.ok());
    EXPECT_TRUE(!sends_by_libcrypto || link->use_libcrypto());
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
  EXPECT_TRUE(!receives_by_libcrypto || link->use_libcrypto());
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

// libsodium and libcrypto understand each other.
TEST(SealedLink, EitherLibraryAtEachEnd) {
  if (!MessageCipher(MessageCipher::Key{}).use_libcrypto(true)) GTEST_SKIP() << "no libcrypto here";
  messages_in_place(true, false);
  messages_in_place(false, true);
  messages_in_place(true, true);
}

// The length of a message is known before it is received, also of one of which receive() has read something.
TEST(SealedLink, TheLengthComesFirst) {
  Ends ends = make_ends();
  const Secret secret = make_secret();
  std::thread other([&] {
    auto link = SealedLink::connect(std::move(ends.there), secret);
    ASSERT_TRUE(link.ok());
    EXPECT_TRUE(link->send("one"));
    EXPECT_TRUE(link->send("three"));
    EXPECT_TRUE(link->send(""));
  });
  auto link = SealedLink::accept(std::move(ends.here), secret);
  ASSERT_TRUE(link.ok());
  other.join();
  EXPECT_EQ(link->wait_for_length(), 3);
  EXPECT_EQ(link->wait_for_length(), 3);  // it is still to be received
  std::array<std::byte, 5> room{};
  EXPECT_EQ(link->receive_into(room), 3);
  EXPECT_EQ(link->wait_for_length(), 5);
  std::vector<std::string> messages;
  ASSERT_TRUE(link->receive(messages, true));
  EXPECT_EQ(messages, (std::vector<std::string>{"three", ""}));
  EXPECT_EQ(link->wait_for_length(), std::nullopt);
}

TEST(SealedLink, DoesNotHoldTheRoomOfALongMessage) {
  Ends ends = make_ends();
  const Secret secret = make_secret();
  std::thread other([&] {
    auto link = SealedLink::connect(std::move(ends.there), secret);
    ASSERT_TRUE(link.ok());
    EXPECT_TRUE(link->send(std::string(3 << 20, 'x')));
    EXPECT_EQ(link->room_held(), 0);
    EXPECT_TRUE(link->send("short"));
  });
  auto link = SealedLink::accept(std::move(ends.here), secret);
  ASSERT_TRUE(link.ok());
  std::vector<std::string> messages;
  while (messages.size() < 2) ASSERT_TRUE(link->receive(messages, true));
  EXPECT_EQ(messages[1], "short");
  other.join();
}

struct Sealed {
  std::array<uint8_t, 100> message{};
  uint8_t seal[MessageCipher::kSealBytes];
};

// Of each library.
template <typename Test>
void with_ciphers(const Test& test) {
  const MessageCipher::Key key{1, 2, 3};
  for (const bool by_libcrypto : {false, true}) {
    SCOPED_TRACE(by_libcrypto ? "libcrypto" : "libsodium");
    MessageCipher seals(key), too(key), opens(key);
    if (by_libcrypto &&
        (!seals.use_libcrypto(true) || !too.use_libcrypto(true) || !opens.use_libcrypto(false)))
      GTEST_SKIP() << "no libcrypto here";
    test(seals, too, opens);
  }
}

TEST(MessageCipher, OnlyTheNextMessageIsTaken) {
  with_ciphers([](MessageCipher& seals, MessageCipher&, MessageCipher& opens) {
    std::array<Sealed, 4> all;
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].message.fill(static_cast<uint8_t>(i));
      ASSERT_TRUE(seals.seal(all[i].message, all[i].seal));
      EXPECT_NE(std::count(all[i].message.begin(), all[i].message.end(), i), 100);
    }
    Sealed again = all[0];
    EXPECT_TRUE(opens.open(all[0].message, all[0].seal));
    EXPECT_EQ(all[0].message, (std::array<uint8_t, 100>{}));
    EXPECT_FALSE(opens.open(again.message, again.seal));
    EXPECT_FALSE(opens.open(std::span(all[2].message).first(99), all[2].seal));
    all[3].seal[0] ^= 1;
    EXPECT_FALSE(opens.open(all[3].message, all[3].seal));
  });
}

// A program that goes back has the key and the number of then once more, and says something else: whoever has
// recorded both messages learns nothing by comparing them.
TEST(MessageCipher, ALinkThatWentBackEncryptsAnotherMessageOtherwise) {
  with_ciphers([](MessageCipher& seals, MessageCipher& gone_back, MessageCipher& opens) {
    // Zeros encrypted are the key stream.
    Sealed first, second;
    ASSERT_TRUE(seals.seal(first.message, first.seal));
    ASSERT_TRUE(gone_back.seal(second.message, second.seal));
    EXPECT_NE(memcmp(first.seal, second.seal, MessageCipher::kNonceBytes), 0);
    EXPECT_NE(first.message, second.message);
    // Either is the next one for the other end, whichever life it is.
    EXPECT_TRUE(opens.open(second.message, second.seal));
    EXPECT_EQ(second.message, (std::array<uint8_t, 100>{}));
  });
}

TEST(SealedLink, AnotherSecretIsRefused) {
  Ends ends = make_ends();
  std::thread other([&] { EXPECT_FALSE(SealedLink::connect(std::move(ends.there), make_secret()).ok()); });
  auto link = SealedLink::accept(std::move(ends.here), make_secret());
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.error().code, ExitCode::kPermission);
  other.join();
}

// A stranger sends all that the handshake wants, byte by byte, each within the patience. All together take
// far longer, so that the proof, which is wrong, is never looked at, however late the accepting thread gets a
// processor.
TEST(SealedLink, AStrangerWhoSendsSlowlyIsGivenUp) {
  Ends ends = make_ends();
  constexpr int kPatienceMs = 200;
  constexpr long kPauseNs = 150'000'000;
  std::thread stranger([&] {
    const ScopedFd socket = std::move(ends.there);
    const std::string hello = std::string("ckpthst3") + std::string(32, 'k') + std::string(32, 'm');
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
  EXPECT_NE(link.error().message().find("said nothing for 200 ms"), std::string_view::npos);
  stranger.join();
}

// Whoever looks for the cause has to know it from an end that is only slow.
TEST(SealedLink, AnEndThatGoesAwayIsToldFromASilentOne) {
  Ends ends = make_ends();
  // What is sent to it arrives, and the end is seen in reading, which is no error of a call.
  ASSERT_EQ(shutdown(ends.there.get(), SHUT_WR), 0);
  auto link = SealedLink::accept(std::move(ends.here), make_secret());
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.error().code, ExitCode::kIo);
  EXPECT_EQ(link.error().sys_errno, 0);
  EXPECT_NE(link.error().message().find("closed the connection"), std::string_view::npos);
}

}  // namespace
}  // namespace ckpt::cluster
