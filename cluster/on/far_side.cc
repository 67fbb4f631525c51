#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "cluster/on/on.h"
#include "cluster/on/unaccepted.h"
#include "cluster/on/window.h"

namespace ckpt::cluster {

namespace {

int status_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

void on_child(int) {}

struct Command {
  pid_t pid = -1;
  ScopedFd in, out, err;
};

bool start(const std::string& text, Command& c) {
  int pipes[3][2];
  for (auto& p : pipes) {
    if (pipe2(p, O_CLOEXEC) != 0) return false;
  }
  c.pid = fork();
  if (c.pid == 0) {
    // The mask and the handler of this process are not the command's.
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    dup2(pipes[0][0], 0);
    dup2(pipes[1][1], 1);
    dup2(pipes[2][1], 2);
    execl("/bin/sh", "sh", "-c", text.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  c.in.reset(pipes[0][1]);
  c.out.reset(pipes[1][0]);
  c.err.reset(pipes[2][0]);
  close(pipes[0][0]);
  close(pipes[1][1]);
  close(pipes[2][1]);
  fcntl(c.in.get(), F_SETFL, O_NONBLOCK);
  return c.pid > 0;
}

// Sends what the pipe holds as one frame. False: the pipe has ended, or the link has.
bool pass_on(SealedLink& link, SendWindow& window, int fd, char what) {
  char bytes[kMostInFrame];
  const ssize_t n = read(fd, bytes, window.room());
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  window.sent(static_cast<size_t>(n));
  return n > 0 && link.send(what + std::string(bytes, static_cast<size_t>(n)));
}

// Serves one connection, in a process of its own: one command. unknown: closed as soon as the other end has
// proved that it knows the key.
int handle(ScopedFd socket, ScopedFd unknown) {
  signal(SIGPIPE, SIG_IGN);
  auto table = read_on_table();
  if (!table.ok()) return 1;
  auto met = SealedLink::accept(std::move(socket), table->secret);
  if (!met.ok()) return 1;
  unknown.reset();
  SealedLink link = std::move(*met);
  link.allow_silence(table->silence_ms);
  std::vector<std::string> frames;
  if (!link.receive(frames, true) || frames.empty() || frames[0].empty() || frames[0][0] != 'c') return 1;
  Command command;
  if (!start(frames[0].substr(1), command)) {
    link.send("eckpt-on: no process for the command\n");
    link.send("x71");
    return 1;
  }
  frames.erase(frames.begin());
  std::string input;  // received, not read by the command yet
  bool input_ends = false;
  SendWindow outputs;
  ReceiveWindow inputs;
  int status = 0;
  constexpr int kLookMs = 20;  // for the end of the command
  for (;;) {
    for (const std::string& f : frames) {
      if (f.empty()) continue;
      if (f[0] == 'i') {
        input.append(f, 1);
        inputs.took_frame();
      }
      if (f[0] == 'I') input_ends = true;
      if (f[0] == 'O') command.out.reset();
      if (f[0] == 'E') command.err.reset();
      if (f[0] == 'w') outputs.heard(std::string_view(f).substr(1));
    }
    frames.clear();
    while (!input.empty() && command.in.valid()) {
      const ssize_t n = write(command.in.get(), input.data(), input.size());
      if (n > 0) {
        input.erase(0, static_cast<size_t>(n));
        inputs.passed_on(static_cast<size_t>(n));
      } else {
        if (errno != EAGAIN && errno != EINTR) command.in.reset();
        if (errno != EINTR) break;
      }
    }
    if (!command.in.valid()) {
      inputs.passed_on(input.size());
      input.clear();
    }
    if (const std::string word = inputs.word(); !word.empty()) link.send(word);
    if (input.empty() && input_ends) command.in.reset();
    // The command may read on when it has closed both outputs. The caller is heard until the command has
    // ended.
    const bool silent = !command.out.valid() && !command.err.valid();
    if (silent && waitpid(command.pid, &status, WNOHANG) == command.pid) break;
    const bool room = outputs.room() != 0;
    pollfd polls[4] = {{link.fd(), POLLIN, 0},
                       {room && command.out.valid() ? command.out.get() : -1, POLLIN, 0},
                       {room && command.err.valid() ? command.err.get() : -1, POLLIN, 0},
                       {!input.empty() ? command.in.get() : -1, POLLOUT, 0}};
    if (poll(polls, 4, silent ? kLookMs : -1) < 0 && errno != EINTR) return 1;
    if (polls[1].revents != 0 && !pass_on(link, outputs, command.out.get(), 'o')) command.out.reset();
    if (polls[2].revents != 0 && outputs.room() != 0 && !pass_on(link, outputs, command.err.get(), 'e'))
      command.err.reset();
    if (polls[0].revents != 0 && !link.receive(frames, false)) {
      kill(-command.pid, SIGHUP);  // the process that waits for the command is gone
      return 1;
    }
  }
  link.send("x" + std::to_string(status_of(status)));
  return 0;
}

}  // namespace

constexpr size_t kMostUnknown = 16;

int serve(int fd, char** program) {
  // A process whose parent ends (a daemon of mpirun) becomes a child of this one, and so stays in the job.
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  struct sigaction action {};
  action.sa_handler = on_child;
  sigaction(SIGCHLD, &action, nullptr);
  sigset_t child, before;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, &before);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  fcntl(fd, F_SETFL, O_NONBLOCK);
  Unaccepted unaccepted;
  if (const char* hosts = getenv("CKPT_HOSTS"); hosts == nullptr || !unaccepted.listen(hosts))
    std::fprintf(stderr,
                 "ckpt-on: connections that are not accepted yet cannot be kept for a checkpoint (%s)\n",
                 hosts == nullptr ? "CKPT_HOSTS is not set" : errno_name(errno));
  std::vector<ScopedFd> unknown;  // one for each process that does not know yet who has connected
  pid_t pid = -1;
  if (program != nullptr) {
    pid = fork();
    if (pid == 0) {
      sigprocmask(SIG_SETMASK, &before, nullptr);
      signal(SIGCHLD, SIG_DFL);
      execvp(program[0], program);
      std::fprintf(stderr, "ckpt: %s: cannot be started (%s)\n", program[0], errno_name(errno));
      _exit(127);
    }
  }
  bool is_full = false;  // no descriptor, or no memory, for one more connection: it would be ready for ever
  for (;;) {
    for (int status = 0;;) {
      const pid_t ended = waitpid(-1, &status, WNOHANG);
      if (ended <= 0) break;
      if (ended == pid) return status_of(status);
    }
    // Anybody may connect: others wait until some have proved who they are, or have not.
    is_full = is_full || unaccepted.is_full();
    std::vector<pollfd> polls{{unknown.size() < kMostUnknown && !is_full ? fd : -1, POLLIN, 0}};
    unaccepted.add_polls(polls);
    const size_t first = polls.size();
    for (const ScopedFd& one : unknown) polls.push_back({one.get(), POLLIN, 0});
    constexpr timespec kAgain{0, 100'000'000};
    const int ready = ppoll(polls.data(), polls.size(), is_full ? &kAgain : nullptr, &before);
    is_full = false;
    if (ready <= 0) continue;
    for (size_t i = polls.size(); i-- > first;) {
      if (polls[i].revents != 0) unknown.erase(unknown.begin() + static_cast<std::ptrdiff_t>(i - first));
    }
    polls.resize(first);
    unaccepted.serve(polls);
    if (polls[0].revents == 0) continue;
    int ends[2] = {-1, -1};
    is_full = pipe2(ends, O_CLOEXEC) != 0;
    ScopedFd ours(ends[0]), theirs(ends[1]);
    if (is_full) continue;
    ScopedFd peer(accept4(fd, nullptr, nullptr, SOCK_CLOEXEC));
    is_full = !peer.valid() && has_no_room(errno);
    if (!peer.valid()) continue;
    if (fork() == 0) {
      close(fd);
      ours.reset();
      unknown.clear();
      unaccepted.forget();
      sigprocmask(SIG_SETMASK, &before, nullptr);
      _exit(handle(std::move(peer), std::move(theirs)));
    }
    unknown.push_back(std::move(ours));
  }
}

}  // namespace ckpt::cluster
