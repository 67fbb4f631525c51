// What the capture costs in the stop: descriptor_cost [files] [pipes] [eventfds] [rounds].
// Files are plain ones, half of them duplicates. Prints microseconds, the median of the rounds.
#include <fcntl.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"

namespace {

// The thread with the program's table does the work when asked; here the main thread, by a spin, as
// waking costs the same with one descriptor or a thousand.
struct Spin {
  std::atomic<int> state{0};
  void (*work)(void*) = nullptr;
  void* argument = nullptr;
};

void start(void* context, void (*work)(void*), void* argument) {
  auto* s = static_cast<Spin*>(context);
  s->work = work;
  s->argument = argument;
  s->state = 1;
}

void await(void* context) {
  while (static_cast<Spin*>(context)->state == 1) std::this_thread::yield();
}

}  // namespace

int main(int argc, char** argv) {
  auto number = [&](int i, int otherwise) { return argc > i ? std::atoi(argv[i]) : otherwise; };
  const int files = number(1, 1000), pipes = number(2, 0), events = number(3, 0), rounds = number(4, 21);
  rlimit limit{65536, 65536};
  setrlimit(RLIMIT_NOFILE, &limit);
  char name[64];
  for (int i = 0; i < files; ++i) {
    std::snprintf(name, sizeof(name), "/tmp/ckpt-cost-%d-%d", getpid(), i);
    int fd = i % 2 == 0 ? open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : dup(3 + i - 1);
    if (fd < 0) return 1;
  }
  int ends[2];
  for (int i = 0; i < pipes; ++i) {
    if (pipe(ends) != 0 || write(ends[1], "x", 1) != 1) return 1;
  }
  for (int i = 0; i < events; ++i) (void)!eventfd(1, 0);

  std::vector<double> prepare_us, stop_us;
  size_t count = 0;
  for (int round = 0; round < rounds; ++round) {
    Spin spin;
    std::thread agent([&] {
      unshare(CLONE_FILES);
      close_range(0, ~0u, 0);
      ckpt::Arena arena;
      if (!arena.reserve(256u << 20)) std::abort();
      ckpt::DescriptorCapture capture;
      int64_t t0 = ckpt::now_ns();
      if (!capture.prepare(arena, getpid())) std::abort();
      int64_t t1 = ckpt::now_ns();
      if (!capture.recheck_stopped(getpid(), {&spin, &start, &await})) std::abort();
      int64_t t2 = ckpt::now_ns();
      prepare_us.push_back(static_cast<double>(t1 - t0) / 1e3);
      stop_us.push_back(static_cast<double>(t2 - t1) / 1e3);
      count = capture.descriptor_count();
      spin.state = 3;
    });
    while (spin.state != 3) {
      if (spin.state == 1) {
        spin.work(spin.argument);
        spin.state = 2;
      }
      std::this_thread::yield();
    }
    agent.join();
  }
  std::sort(prepare_us.begin(), prepare_us.end());
  std::sort(stop_us.begin(), stop_us.end());
  std::printf("%zu descriptors: prepare %.0f us, in the stop %.0f us (fastest %.0f)\n", count,
              prepare_us[prepare_us.size() / 2], stop_us[stop_us.size() / 2], stop_us[0]);
  for (int i = 0; i < files; i += 2) {
    std::snprintf(name, sizeof(name), "/tmp/ckpt-cost-%d-%d", getpid(), i);
    unlink(name);
  }
}
