// Numbered bytes between two hosts, both ways at full speed, checked at both ends.
//   numbers server PORT TOTAL GO | numbers client HOST PORT TOTAL GO
// The last number is held back until there is a file GO: how fast they are does not say when they end. Each
// end sends TOTAL 64-bit numbers in order and checks those that it gets. When nothing is left but the last
// one it makes the file GO.server-waits or GO.client-waits. At the end it says "sum N".
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int fail(const char* what) {
  std::fprintf(stderr, "numbers: %s (%s)\n", what, std::strerror(errno));
  return 1;
}

int serve(const char* port) {
  int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(atoi(port)));
  if (bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof(at)) != 0 || listen(listener, 1) != 0)
    return -1;
  return accept(listener, nullptr, nullptr);
}

int call(const char* host, const char* port) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_family = AF_INET;
  wanted.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host, port, &wanted, &found) != 0) return -1;
  for (;;) {  // the server may not listen yet
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) return fd;
    if (errno != ECONNREFUSED) return -1;
    close(fd);
    poll(nullptr, 0, 10);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool server = argc == 5 && std::strcmp(argv[1], "server") == 0;
  if (!server && !(argc == 6 && std::strcmp(argv[1], "client") == 0))
    return fail("server PORT TOTAL GO | client HOST PORT TOTAL GO");
  const int fd = server ? serve(argv[2]) : call(argv[2], argv[3]);
  if (fd < 0) return fail("no connection");
  const uint64_t total = strtoull(argv[argc - 2], nullptr, 10);
  const char* go = argv[argc - 1];
  bool may_end = false, said = false;
  constexpr size_t kBlock = 8192;
  static uint64_t out[kBlock], in[kBlock];
  uint64_t sent = 0, got = 0, sum = 0;         // whole numbers made, checked
  size_t out_at = 0, out_end = 0, in_end = 0;  // bytes
  while (got < total || sent < total || out_at < out_end) {
    if (out_at == out_end && sent < total) {
      out_at = out_end = 0;
      if (sent == total - 1) may_end = access(go, F_OK) == 0;
      const uint64_t until = may_end ? total : total - 1;
      for (; out_end < sizeof(out) && sent < until; out_end += 8) out[out_end / 8] = sent++;
    }
    // From here on nothing of its memory changes until GO is there.
    if (!said && !may_end && sent == total - 1 && got == total - 1 && out_at == out_end) {
      char name[4096];
      std::snprintf(name, sizeof(name), "%s.%s-waits", go, argv[1]);
      close(open(name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
      said = true;
    }
    pollfd wait{fd, static_cast<short>((got < total ? POLLIN : 0) | (out_at < out_end ? POLLOUT : 0)), 0};
    if (poll(&wait, 1, sent == total - 1 && !may_end ? 20 : -1) < 0) continue;
    if ((wait.revents & POLLOUT) != 0) {
      const ssize_t n =
          send(fd, reinterpret_cast<char*>(out) + out_at, out_end - out_at, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return fail("send");
      if (n > 0) out_at += static_cast<size_t>(n);
    }
    if ((wait.revents & ~POLLOUT) == 0) continue;
    const ssize_t n = recv(fd, reinterpret_cast<char*>(in) + in_end, sizeof(in) - in_end, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return fail("recv");
    if (n < 0) continue;
    in_end += static_cast<size_t>(n);
    size_t whole = in_end / 8;
    for (size_t i = 0; i < whole; ++i) {
      if (in[i] != got) {
        std::fprintf(stderr, "numbers: %llu instead of %llu\n", static_cast<unsigned long long>(in[i]),
                     static_cast<unsigned long long>(got));
        return 2;
      }
      sum += in[i];
      ++got;
    }
    std::memmove(in, in + whole, in_end - whole * 8);
    in_end -= whole * 8;
  }
  std::printf("%s: sum %llu\n", argv[1], static_cast<unsigned long long>(sum));
  return 0;
}
