// Calls that a stop ends half-way go on to the end: writes to slow readers, reads with MSG_WAITALL.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <functional>
#include <numeric>
#include <vector>

#include "tests/interpose/blocked_thread.h"

namespace ckpt::test {
namespace {

constexpr size_t kBytes = 600'000;

std::vector<char> pattern() {
  std::vector<char> bytes(kBytes);
  for (size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<char>(i * 31 + i / 251);
  return bytes;
}

struct Channel {
  int in, out;
};
Channel make_pipe() {
  int p[2];
  EXPECT_EQ(pipe(p), 0);
  return {p[0], p[1]};
}
Channel make_unix() {
  int p[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, p), 0);
  return {p[0], p[1]};
}
Channel make_tcp() {
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t n = sizeof(a);
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&a), n), 0);
  EXPECT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&a), &n), 0);
  int out = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(out, reinterpret_cast<sockaddr*>(&a), n), 0);
  int in = accept(listener, nullptr, nullptr);
  close(listener);
  return {in, out};
}

// `put` writes the pattern in one call and returns its result; the reader is slow.
void check_write(const char* name, const std::function<Channel()>& make,
                 const std::function<ssize_t(int, char*)>& put) {
  const int rounds = 12;
  const std::vector<char> bytes = pattern();
  int brief = 0;
  Storm storm(50'000);
  IgnoredSignals signals;
  for (int round = 0; round < rounds; ++round) {
    Channel c = make();
    std::vector<char> copy = bytes, got;
    std::thread reader([&] {
      char buffer[20'000];
      for (;;) {
        ssize_t n = read(c.in, buffer, sizeof(buffer));
        if (n <= 0) {
          EXPECT_EQ(n, 0) << name;
          break;
        }
        got.insert(got.end(), buffer, buffer + n);
        usleep(300);
      }
    });
    // The main thread is the one that the signals are sent to: they wake another while it stands.
    ssize_t r = 0;
    std::thread writer([&] { r = put(c.out, copy.data()); });
    writer.join();
    if (r != static_cast<ssize_t>(kBytes)) ++brief;
    close(c.out);
    reader.join();
    EXPECT_TRUE(got == bytes) << name << ": " << got.size();
    close(c.in);
  }
  EXPECT_EQ(brief, 0) << name;
}

std::vector<iovec> cut(char* p, size_t pieces) {
  std::vector<iovec> v;
  size_t at = 0;
  for (size_t i = 0; i < pieces; ++i) {
    size_t n = i + 1 == pieces ? kBytes - at : (i % 7 == 3 ? 0 : kBytes / pieces - i * 5);
    v.push_back({p + at, n});
    at += n;
  }
  return v;
}

TEST(Partial, WritesAreComplete) {
  install_stop_handler(20'000);
  auto by_write = [](int fd, char* p) { return write(fd, p, kBytes); };
  check_write("write to a pipe", make_pipe, by_write);
  check_write("write to a socket", make_unix, by_write);
  check_write("write to tcp", make_tcp, by_write);
  check_write("send", make_unix, [](int fd, char* p) { return send(fd, p, kBytes, 0); });
  check_write("send to tcp", make_tcp, [](int fd, char* p) { return send(fd, p, kBytes, 0); });
  check_write("syscall(write)", make_pipe, [](int fd, char* p) { return syscall(SYS_write, fd, p, kBytes); });
  for (size_t pieces : {3, 16, 40, 200}) {
    check_write("writev", make_pipe, [=](int fd, char* p) {
      auto v = cut(p, pieces);
      return writev(fd, v.data(), static_cast<int>(v.size()));
    });
    check_write("sendmsg", make_unix, [=](int fd, char* p) {
      auto v = cut(p, pieces);
      msghdr m{};
      m.msg_iov = v.data();
      m.msg_iovlen = v.size();
      ssize_t r = sendmsg(fd, &m, 0);
      EXPECT_EQ(m.msg_iov, v.data());
      return r;
    });
  }
  check_write("sendfile", make_unix, [](int fd, char* p) {
    FILE* f = tmpfile();
    EXPECT_EQ(fwrite(p, 1, kBytes, f), kBytes);
    fflush(f);
    off_t at = 0;
    ssize_t r = sendfile(fd, fileno(f), &at, kBytes);
    EXPECT_EQ(at, static_cast<off_t>(kBytes));
    fclose(f);
    return r;
  });
  check_write("fwrite", make_pipe, [](int fd, char* p) {
    FILE* f = fdopen(dup(fd), "w");
    ssize_t n = static_cast<ssize_t>(fwrite(p, 1, kBytes, f));
    EXPECT_EQ(fclose(f), 0);
    return n;
  });
  for (size_t messages : {1, 5, 50}) {
    check_write("sendmmsg", make_unix, [=](int fd, char* p) {
      auto v = cut(p, messages * 4);
      std::vector<mmsghdr> m(messages);
      for (size_t i = 0; i < messages; ++i) {
        m[i] = {};
        m[i].msg_hdr.msg_iov = &v[i * 4];
        m[i].msg_hdr.msg_iovlen = 4;
      }
      EXPECT_EQ(sendmmsg(fd, m.data(), static_cast<unsigned>(messages), 0), static_cast<int>(messages));
      ssize_t sum = 0;
      for (auto& one : m) sum += one.msg_len;
      return sum;
    });
  }
}

TEST(Partial, NonBlockingWritesStayShort) {
  install_stop_handler(20'000);
  Storm storm(30'000);
  std::vector<char> bytes = pattern();
  for (int i = 0; i < 100; ++i) {
    Channel c = make_pipe();
    fcntl(c.out, F_SETFL, O_NONBLOCK);
    EXPECT_EQ(write(c.out, bytes.data(), kBytes), 65536);
    close(c.in);
    close(c.out);
    c = make_unix();
    EXPECT_LT(send(c.out, bytes.data(), kBytes, MSG_DONTWAIT), static_cast<ssize_t>(kBytes));
    close(c.in);
    close(c.out);
  }
}

TEST(Partial, WaitAllWaitsForAll) {
  install_stop_handler(20'000);
  const std::vector<char> bytes = pattern();
  Storm storm(50'000);
  IgnoredSignals signals;
  for (int kind = 0; kind < 3; ++kind) {
    for (auto make : {make_unix, make_tcp}) {
      for (int round = 0; round < 6; ++round) {
        Channel c = make();
        std::thread writer([&] {
          for (size_t at = 0; at < kBytes; at += 10'000) {
            EXPECT_EQ(write(c.out, bytes.data() + at, 10'000), 10'000);
            usleep(150);
          }
        });
        std::vector<char> got(kBytes);
        ssize_t r = 0;
        if (kind == 0) r = recv(c.in, got.data(), kBytes, MSG_WAITALL);
        if (kind == 1) r = recvfrom(c.in, got.data(), kBytes, MSG_WAITALL, nullptr, nullptr);
        if (kind == 2) {
          auto v = cut(got.data(), 40);
          msghdr m{};
          m.msg_iov = v.data();
          m.msg_iovlen = v.size();
          r = recvmsg(c.in, &m, MSG_WAITALL);
        }
        EXPECT_EQ(r, static_cast<ssize_t>(kBytes)) << kind;
        EXPECT_TRUE(got == bytes) << kind;
        writer.join();
        close(c.in);
        close(c.out);
      }
    }
  }
}

// The stream ends: what came is returned, and the end is seen by the next call.
TEST(Partial, WaitAllEndsWithTheStream) {
  install_stop_handler(20'000);
  Storm storm(30'000);
  for (int i = 0; i < 100; ++i) {
    Channel c = make_unix();
    std::thread writer([&] {
      EXPECT_EQ(write(c.out, "12345", 5), 5);
      usleep(500);
      EXPECT_EQ(write(c.out, "678", 3), 3);
      usleep(500);
      close(c.out);
    });
    char got[100] = {};
    EXPECT_EQ(recv(c.in, got, sizeof(got), MSG_WAITALL), 8);
    EXPECT_STREQ(got, "12345678");
    EXPECT_EQ(recv(c.in, got, sizeof(got), MSG_WAITALL), 0);
    writer.join();
    close(c.in);
  }
}

TEST(Partial, RecvmmsgGetsAllItsMessages) {
  install_stop_handler(20'000);
  Storm storm(30'000);
  for (int round = 0; round < 20; ++round) {
    int p[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_DGRAM, 0, p), 0);
    std::thread writer([&] {
      for (int i = 0; i < 40; ++i) {
        EXPECT_EQ(send(p[1], &i, sizeof(i), 0), 4);
        usleep(200);
      }
    });
    int got[40];
    iovec v[40];
    mmsghdr m[40] = {};
    for (int i = 0; i < 40; ++i) {
      v[i] = {&got[i], sizeof(int)};
      m[i].msg_hdr.msg_iov = &v[i];
      m[i].msg_hdr.msg_iovlen = 1;
    }
    EXPECT_EQ(recvmmsg(p[0], m, 40, 0, nullptr), 40);
    for (int i = 0; i < 40; ++i) {
      EXPECT_EQ(got[i], i);
      EXPECT_EQ(m[i].msg_len, 4u);
    }
    writer.join();
    int error = -1;
    socklen_t n = sizeof(error);
    EXPECT_EQ(getsockopt(p[0], SOL_SOCKET, SO_ERROR, &error, &n), 0);
    EXPECT_EQ(error, 0);
    close(p[0]);
    close(p[1]);
  }
}

TEST(Partial, RandomBytesAndMemoryDevicesAreNotCutShort) {
  install_stop_handler(0);
  Storm storm(20'000);
  std::vector<char> bytes(8 << 20);
  int zero = open("/dev/zero", O_RDONLY), random = open("/dev/urandom", O_RDONLY);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(getrandom(bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(read(random, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(read(zero, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
}

// A handler of the program ends a write half-way, as it would have without us: the count is returned.
TEST(Partial, AHandlerEndsAWriteWithItsCount) {
  install_stop_handler(100'000);
  struct sigaction a {};
  a.sa_handler = [](int) {};
  a.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &a, nullptr);
  std::vector<char> bytes = pattern();
  for (int i = 0; i < 100; ++i) {
    Channel c = make_pipe();
    std::atomic<pid_t> tid{0};
    ssize_t r = 0;
    std::thread writer([&] {
      tid = this_thread();
      r = write(c.out, bytes.data(), kBytes);
    });
    while (tid == 0) sched_yield();
    wait_until_sleeping_in(tid, SYS_write);
    send_stop(tid);
    spin(i * 2000);
    syscall(SYS_tgkill, getpid(), tid.load(), SIGUSR1);
    writer.join();
    EXPECT_EQ(r, 65536);
    close(c.in);
    close(c.out);
  }
}

}  // namespace
}  // namespace ckpt::test
