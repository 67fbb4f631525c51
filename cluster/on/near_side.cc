#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>

#include "cluster/on/on.h"
#include "cluster/on/window.h"

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
  if (!link->send("c" + command)) return say(make_error(ExitCode::kIo, 0, "{}: went away", host));
  std::vector<std::string> frames;
  SendWindow inputs;
  ReceiveWindow outputs;
  for (bool input = true;;) {
    pollfd polls[2] = {{link->fd(), POLLIN, 0}, {input && inputs.room() != 0 ? STDIN_FILENO : -1, POLLIN, 0}};
    if (poll(polls, 2, -1) < 0 && errno != EINTR)
      return say(make_error(ExitCode::kSystem, errno, "poll fails"));
    if (polls[1].revents != 0) {
      char bytes[kMostInFrame];
      const ssize_t n = read(STDIN_FILENO, bytes, inputs.room());
      if (n > 0) {
        inputs.sent(static_cast<size_t>(n));
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
      if (f[0] == 'o' || f[0] == 'e') {
        const bool is_out = f[0] == 'o';
        // The command is to notice it as it would here.
        if (!write_all(is_out ? STDOUT_FILENO : STDERR_FILENO, bytes)) link->send(is_out ? "O" : "E");
        outputs.took_frame();
        outputs.passed_on(bytes.size());
      }
      if (f[0] == 'w') inputs.heard(bytes);
      if (f[0] == 'x') return atoi(f.c_str() + 1);
    }
    if (const std::string word = outputs.word(); !word.empty()) link->send(word);
    if (!there)
      return say(make_error(ExitCode::kIo, 0, "{}: the connection is broken, and with it the command", host));
  }
}

}  // namespace ckpt::cluster
