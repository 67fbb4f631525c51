// A program that makes processes and waits for them, one way at a time; bench/process/process_cost.py runs it
// with and without the library.
//
//   makes MILLISECONDS WAY...
//
// Writes a line for each way: its name, and the nanoseconds that each process took, median over groups of it;
// then the same of processor time, of parent and child together, which others on the machine disturb less.
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

char* kCommand[] = {const_cast<char*>("/bin/true"), nullptr};

void await(pid_t pid) {
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) abort();
}

void by_fork() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  await(pid);
}

// As a shell's subshell: the child does some work of its own, and ends by exit().
void by_fork_with_work() {
  const pid_t pid = fork();
  if (pid == 0) {
    std::vector<std::string> words;
    for (int i = 0; i < 200; ++i) words.push_back(std::to_string(i));
    _exit(words.size() == 200 ? 0 : 1);
  }
  await(pid);
}

void by_fork_and_exec() {
  const pid_t pid = fork();
  if (pid == 0) {
    execv(kCommand[0], kCommand);
    _exit(127);
  }
  await(pid);
}

void by_vfork_and_exec() {
  const pid_t pid = vfork();
  if (pid == 0) {
    execv(kCommand[0], kCommand);
    _exit(127);
  }
  await(pid);
}

void by_posix_spawn() {
  pid_t pid = -1;
  if (posix_spawn(&pid, kCommand[0], nullptr, nullptr, kCommand, environ) != 0) abort();
  await(pid);
}

void by_system() {
  if (system("exit 0") != 0) abort();
}

void by_popen() {
  FILE* from = popen("exit 0", "r");
  if (from == nullptr || pclose(from) != 0) abort();
}

struct ProcessMaker {
  const char* name;
  void (*make)();
  int group;  // processes between two looks at the clock
};
constexpr ProcessMaker kProcessMakers[] = {
    {"fork", by_fork, 8},
    {"fork-work", by_fork_with_work, 8},
    {"fork-exec", by_fork_and_exec, 2},
    {"vfork-exec", by_vfork_and_exec, 2},
    {"posix_spawn", by_posix_spawn, 2},
    {"system", by_system, 2},
    {"popen", by_popen, 2},
};

double seconds(const timeval& t) {
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
}

// ns.
double processor_time() {
  rusage own{}, children{};
  getrusage(RUSAGE_SELF, &own);
  getrusage(RUSAGE_CHILDREN, &children);
  return 1e9 * (seconds(own.ru_utime) + seconds(own.ru_stime) + seconds(children.ru_utime) +
                seconds(children.ru_stime));
}

double median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double now() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  const double budget = atof(argv[1]) * 1e6;
  for (int i = 2; i < argc; ++i) {
    const ProcessMaker* maker = nullptr;
    for (const ProcessMaker& m : kProcessMakers) {
      if (strcmp(m.name, argv[i]) == 0) maker = &m;
    }
    if (maker == nullptr) return 64;
    for (int k = 0; k < maker->group; ++k) maker->make();
    std::vector<double> took, worked;
    took.reserve(1 << 16);
    worked.reserve(1 << 16);
    const double begin = now();
    double worked_at = processor_time();
    for (double at = begin; at - begin < budget && took.size() < 1 << 16;) {
      for (int k = 0; k < maker->group; ++k) maker->make();
      const double end = now(), worked_end = processor_time();
      took.push_back((end - at) / maker->group);
      worked.push_back((worked_end - worked_at) / maker->group);
      at = end;
      worked_at = worked_end;
    }
    printf("%s %.0f %.0f\n", maker->name, median(took), median(worked));
    fflush(stdout);
  }
  return 0;
}
