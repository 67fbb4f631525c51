#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tests/programs/churn/churn.h"

namespace churn {

using namespace victim;

namespace {

constexpr uint64_t kPages = 512;

int wait_for(pid_t pid) {
  int status = 0;
  pid_t got = waitpid(pid, &status, 0);
  require_call(got == pid, "waitpid");
  require(WIFEXITED(status), "processes: child {} ended by signal {}", pid, WTERMSIG(status));
  return WEXITSTATUS(status);
}

}  // namespace

std::string processes(uint64_t iterations) {
  std::byte* memory = map_pages(kPages);
  char true_path[] = "/bin/true";
  char* true_arguments[] = {true_path, nullptr};
  char shell[] = "/bin/sh", option[] = "-c", script[] = "exit 7";
  char* shell_arguments[] = {shell, option, script, nullptr};
  for (uint64_t n = 1; n <= iterations; ++n) {
    for (uint64_t i = 0; i < kPages; ++i) word_at(memory + i * kPage).store(n, std::memory_order_relaxed);

    pid_t pid = fork();
    require_call(pid >= 0, "fork");
    if (pid == 0) {
      // The copy is of the instant of the fork; what we write here the parent does not see.
      for (uint64_t i = 0; i < kPages; ++i) {
        if (word_at(memory + i * kPage).load(std::memory_order_relaxed) != n) _exit(1);
        word_at(memory + i * kPage).store(0, std::memory_order_relaxed);
      }
      _exit(42);
    }
    for (uint64_t i = 0; i < kPages; i += 2)
      word_at(memory + i * kPage).store(n + 1, std::memory_order_relaxed);
    int code = wait_for(pid);
    require(code == 42, "processes: the forked child returned {}", code);

    pid = fork();
    require_call(pid >= 0, "fork");
    if (pid == 0) {
      execve(shell, shell_arguments, environ);
      _exit(127);
    }
    code = wait_for(pid);
    require(code == 7, "processes: the shell returned {}", code);

    require_zero(posix_spawn(&pid, true_path, nullptr, nullptr, true_arguments, environ), "posix_spawn");
    code = wait_for(pid);
    require(code == 0, "processes: /bin/true returned {}", code);

    for (uint64_t i = 0; i < kPages; ++i) {
      uint64_t v = word_at(memory + i * kPage).load(std::memory_order_relaxed);
      require(v == n + (i % 2 == 0), "processes: page {} holds {} in round {}", i, v, n);
    }
  }
  return fmt::format("{} children", 3 * iterations);
}

}  // namespace churn
