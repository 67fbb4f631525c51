#include <fcntl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/programs/calls/calls.h"

namespace calls {

using namespace victim;

// One side writes numbers with pauses, the other waits for them; then the pipe is filled up, so that
// the writer waits.
std::string pipes(uint64_t iterations) {
  int ends[2];
  require_call(pipe2(ends, O_CLOEXEC) == 0, "pipe2");
  constexpr uint64_t kBurst = 40'000;  // 64-bit words; the pipe holds 8192
  run_threads(2, [&](unsigned t) {
    std::vector<uint64_t> words(1000);
    for (uint64_t n = 0; n < iterations; ++n) {
      if (t == 0) {
        usleep(static_cast<useconds_t>(wait_length(n) / 4000));
        require_call(write(ends[1], &n, sizeof(n)) == sizeof(n), "write to a pipe");
        continue;
      }
      uint64_t got = 0;
      require_call(read(ends[0], &got, sizeof(got)) == sizeof(got), "read from a pipe");
      require(got == n, "pipes: {} instead of {}", got, n);
    }
    for (uint64_t n = 0; n < kBurst; n += words.size()) {
      if (t == 0) {
        for (uint64_t i = 0; i < words.size(); ++i) words[i] = mix(n + i);
        auto bytes = static_cast<ssize_t>(words.size() * sizeof(uint64_t));
        require_call(write(ends[1], words.data(), static_cast<size_t>(bytes)) == bytes,
                     "write to a full pipe");
        continue;
      }
      usleep(3000);
      for (uint64_t i = 0; i < words.size(); ++i) {
        uint64_t got = 0;
        require_call(read(ends[0], &got, sizeof(got)) == sizeof(got), "read from a full pipe");
        require(got == mix(n + i), "pipes: word {} is {:x}", n + i, got);
      }
    }
  });
  close(ends[0]);
  close(ends[1]);
  return fmt::format("{} messages, {} words", iterations, kBurst);
}

std::string sysv(uint64_t iterations) {
  int semaphores = semget(IPC_PRIVATE, 2, IPC_CREAT | 0600);
  require_call(semaphores >= 0, "semget");
  int queue = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
  require_call(queue >= 0, "msgget");
  struct Message {
    long type;
    uint64_t number;
  };
  run_threads(4, [&](unsigned t) {
    for (uint64_t n = 0; n < iterations; ++n) {
      auto pause = static_cast<useconds_t>(wait_length(n + t) / 2000);
      if (t == 0) {
        usleep(pause);
        sembuf up{0, 1, 0};
        require_call(semop(semaphores, &up, 1) == 0, "semop up");
      } else if (t == 1) {
        sembuf down{0, -1, 0};
        require_call(semop(semaphores, &down, 1) == 0, "semop down");
        sembuf never{1, -1, 0};
        int64_t ns = wait_length(n) / 4;
        timespec ts = to_timespec(ns);
        takes_at_least(ns, "semtimedop", [&] {
          int got = semtimedop(semaphores, &never, 1, &ts);
          require(got == -1 && errno == EAGAIN, "sysv: semtimedop gives {}, {}", got, std::strerror(errno));
        });
      } else if (t == 2) {
        usleep(pause);
        Message message{1, n};
        require_call(msgsnd(queue, &message, sizeof(message.number), 0) == 0, "msgsnd");
      } else {
        Message message{};
        require_call(msgrcv(queue, &message, sizeof(message.number), 0, 0) == sizeof(message.number),
                     "msgrcv");
        require(message.number == n, "sysv: message {} instead of {}", message.number, n);
      }
    }
  });
  semctl(semaphores, 0, IPC_RMID);
  msgctl(queue, IPC_RMID, nullptr);
  return fmt::format("{} semaphore operations, {} messages", 2 * iterations, iterations);
}

std::string sockets(uint64_t iterations) {
  int pair[2];
  require_call(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require_call(listener >= 0, "socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // an autobind address: the kernel chooses an abstract name
  require_call(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) == 0, "bind");
  require_call(listen(listener, 4) == 0, "listen");
  run_threads(4, [&](unsigned t) {
    for (uint64_t n = 0; n < iterations; ++n) {
      int64_t ns = (wait_length(n) / 4'000'000 + 1) * 4'000'000;  // socket time limits count in ticks
      if (t == 0) {
        usleep(static_cast<useconds_t>(ns / 1000));
        require_call(send(pair[0], &n, sizeof(n), 0) == sizeof(n), "send");
      } else if (t == 1) {
        uint64_t got = 0;
        require_call(recv(pair[1], &got, sizeof(got), MSG_WAITALL) == sizeof(got), "recv");
        require(got == n, "sockets: {} instead of {}", got, n);
      } else {
        int fd = t == 2 ? pair[0] : listener;
        timeval tv{0, static_cast<suseconds_t>(ns / 1000)};
        require_call(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) == 0, "setsockopt");
        takes_at_least(
            ns, t == 2 ? "recv" : "accept",
            [&] {
              char byte;
              long got = t == 2 ? recv(fd, &byte, 1, 0) : accept(fd, nullptr, nullptr);
              require(got == -1 && errno == EAGAIN, "sockets: {} gives {}, {}", t == 2 ? "recv" : "accept",
                      got, std::strerror(errno));
            },
            4'000'000);
      }
    }
  });
  close(pair[0]);
  close(pair[1]);
  close(listener);
  return fmt::format("{} messages, {} full waits", iterations, 2 * iterations);
}

std::string children(uint64_t iterations) {
  for (uint64_t n = 0; n < iterations; ++n) {
    pid_t pid = fork();
    require_call(pid >= 0, "fork");
    if (pid == 0) {
      usleep(static_cast<useconds_t>(wait_length(n) / 1000));
      _exit(static_cast<int>(n % 100));
    }
    int status = 0;
    require_call(waitpid(pid, &status, 0) == pid, "waitpid");
    require(WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(n % 100), "children: status {:x}",
            status);
  }
  return fmt::format("{} children", iterations);
}

}  // namespace calls
