#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>

#include "cluster/on/on.h"

namespace ckpt::cluster {

namespace {

int say(const Error& error) {
  std::fprintf(stderr, "ckpt-on: %.*s\n", static_cast<int>(error.message().size()), error.message().data());
  return static_cast<int>(error.code);
}

}  // namespace

int run_on(const std::string& host, const std::string& command) {
  signal(SIGPIPE, SIG_IGN);
  auto table = read_on_table();
  if (!table.ok()) return say(table.error());
  const OnTable::Host* found = nullptr;
  std::string names;
  for (const OnTable::Host& h : table->hosts) {
    if (h.name == host || h.address == host) found = &h;
    names += " " + h.name;
  }
  if (found == nullptr)
    return say(make_error(ExitCode::kNotFound, 0, "{}: is no host of this job, which has{}", host, names));
  auto socket = connect_to(found->address, found->port, 10'000);
  if (!socket.ok()) return say(socket.error());
  auto link = SealedLink::connect(std::move(*socket), table->secret);
  if (!link.ok()) return say(link.error());
  link->allow_silence(table->silence_ms);
  if (!link->send("r" + command)) return say(make_error(ExitCode::kIo, 0, "{}: went away", host));
  std::vector<std::string> frames;
  for (bool input = true;;) {
    pollfd polls[2] = {{link->fd(), POLLIN, 0}, {input ? STDIN_FILENO : -1, POLLIN, 0}};
    if (poll(polls, 2, -1) < 0 && errno != EINTR)
      return say(make_error(ExitCode::kSystem, errno, "poll fails"));
    if (polls[1].revents != 0) {
      char bytes[64 << 10];
      const ssize_t n = read(STDIN_FILENO, bytes, sizeof(bytes));
      if (n > 0) {
        if (!link->send("i" + std::string(bytes, static_cast<size_t>(n)))) input = false;
      } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
        input = false;
        link->send("I");
      }
    }
    if (polls[0].revents == 0) continue;
    frames.clear();
    const bool there = link->receive(frames, false);
    for (const std::string& f : frames) {
      if (f.empty()) continue;
      const std::string_view bytes = std::string_view(f).substr(1);
      if (f[0] == 'o') write_all(STDOUT_FILENO, bytes);
      if (f[0] == 'e') write_all(STDERR_FILENO, bytes);
      if (f[0] == 'x') return atoi(f.c_str() + 1);
    }
    if (!there)
      return say(make_error(ExitCode::kIo, 0, "{}: the connection is broken, and with it the command", host));
  }
}

}  // namespace ckpt::cluster
