#include "tests/interpose/stop_alone.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>
#include <unistd.h>

#include <new>

#include "base/clock.h"
#include "base/protocol/control_protocol.h"
#include "base/sys.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/signals/handlers.h"
#include "libckpt_rt/interpose/signals/mask.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"
#include "libckpt_rt/stop/tracing/tracee_table.h"

extern "C" const char __restore_rt[];

namespace ckpt {

namespace test {
namespace {
std::atomic<int64_t> pause_for{0};
std::atomic<uint64_t> stop_count{0};
std::atomic<int> release_count{0};
std::atomic<int> child_count{0}, fork_count{0}, forked_count{0}, spawn_count{0}, end_count{0};
Release seen[kMaxReleases];
}  // namespace

[[gnu::visibility("default")]] std::atomic<void (*)()> in_pause{nullptr};

}  // namespace test

namespace tracing {
bool pass_on(int, int) { return false; }
}  // namespace tracing

namespace hooks {
std::atomic<int> checkpoint_signal{kDefaultCheckpointSignal};
std::atomic<uint32_t> copy_under_way{0};
std::atomic<uintptr_t> own_handler{0};
void yield_signal() {}
bool took_late_request(void*, void*) { return false; }
std::atomic<uint32_t> memory_registered{0};
std::atomic<bool> has_forked{false};
void before_fork() { test::fork_count.fetch_add(1); }
void after_fork() { test::forked_count.fetch_add(1); }
std::atomic<bool> has_spawned{false};
void before_spawn() { test::spawn_count.fetch_add(1); }
void before_end() { test::end_count.fetch_add(1); }
void forget(uintptr_t, size_t) {}
void note_mutex(const void*) {}
void note_futex(const void*) {}
void note_exit(const void*) {}
std::atomic<int64_t> monotonic_shift_ns{0};
bool before_connect(int) { return false; }
void before_user(uint32_t) {}
void begin_strict() {}
void begin_deadly_filter() {}
void end_deadly_filter() {}
void note_wait_for_child() {}
void note_keyring() {}
void note_session_key() {}
void note_landlock() {}
RseqArea note_rseq(const RseqArea&) { return {}; }
void note_wait_of_thread() {}
void note_queue_notice() {}
void note_namespaces(int) {}
void end_strict() {}
void before_release(uintptr_t start, size_t length) {
  int i = test::release_count.fetch_add(1);
  if (i < test::kMaxReleases) test::seen[i] = {start, length};
}
void begin_alone() {}
void end_alone() {}
void begin_exec() {}
void end_exec() {}
void in_child_after_fork() { test::child_count.fetch_add(1); }
}  // namespace hooks

namespace test {

namespace {

void on_stop(int, siginfo_t*, void* context) {
  auto* frame = static_cast<ucontext_t*>(context);
  int64_t ns = pause_for.load(std::memory_order_relaxed);
  if (ns > 0) {
    timespec pause{ns / 1'000'000'000, ns % 1'000'000'000};
    sys::call(__NR_nanosleep, &pause, 0L);
  }
  if (auto* also = in_pause.load()) also();
  stop_count.fetch_add(1, std::memory_order_relaxed);
  fix_interrupted_call(frame);
}

}  // namespace

#define API [[gnu::visibility("default")]]

API void install_stop_handler(int64_t pause_ns) {
  pause_for.store(pause_ns);
  KernelSigaction action{reinterpret_cast<uintptr_t>(on_stop),
                         SA_SIGINFO | SA_RESTART | SA_ONSTACK | 0x04000000,
                         reinterpret_cast<uintptr_t>(__restore_rt), ~uint64_t{0}};
  sys::call(__NR_rt_sigaction, kDefaultCheckpointSignal, &action, 0L, 8L);
}

API void send_stop(pid_t tid) { sys::call(__NR_tgkill, sys::getpid(), tid, kDefaultCheckpointSignal); }

API pid_t this_thread() { return sys::gettid(); }

API uint64_t stops() { return stop_count.load(); }

bool takes_stops(int tid) {
  char path[64], line[256];
  unsigned long long blocked = 0;
  snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
  FILE* f = fopen(path, "r");
  while (f != nullptr && fgets(line, sizeof(line), f) != nullptr) sscanf(line, "SigBlk: %llx", &blocked);
  if (f != nullptr) fclose(f);
  return (blocked & checkpoint_bit()) == 0;
}

// The one thread of libc's own (POSIX aio) that has the signal blocked, or 0.
int find_stuck(int self) {
  int found = 0;
  DIR* tasks = opendir("/proc/self/task");
  while (dirent* e = readdir(tasks)) {
    int tid = atoi(e->d_name);
    if (tid > 0 && tid != self && !takes_stops(tid)) found = tid;
  }
  closedir(tasks);
  return found;
}

struct Storm::State {
  std::atomic<bool> over{false};
  int64_t gap_ns;
  pthread_t thread;

  static void* run(void* s) {
    auto& state = *static_cast<State*>(s);
    const int self = sys::gettid();
    unsigned random = 12345;
    int stuck = 0;
    while (!state.over.load()) {
      const uint64_t before = stop_count.load();
      uint64_t sent = 0;
      DIR* tasks = opendir("/proc/self/task");
      while (dirent* e = readdir(tasks)) {
        int tid = atoi(e->d_name);
        if (tid > 0 && tid != self && tid != stuck && rand_r(&random) % 4 != 0) {
          send_stop(tid);
          ++sent;
        }
      }
      closedir(tasks);
      // As a checkpoint does: not again before all have stood. A thread may have ended meanwhile.
      const int64_t give_up = now_ns() + 50'000'000;
      while (stop_count.load() < before + sent && now_ns() < give_up) sched_yield();
      if (stop_count.load() < before + sent) stuck = find_stuck(self);
      int64_t ns = static_cast<int64_t>(rand_r(&random)) % (2 * state.gap_ns);
      timespec gap{ns / 1'000'000'000, ns % 1'000'000'000};
      sys::call(__NR_nanosleep, &gap, 0L);
    }
    return nullptr;
  }
};

API Storm::Storm(int64_t mean_gap_ns) : state_(static_cast<State*>(malloc(sizeof(State)))) {
  new (state_) State{.over = false, .gap_ns = mean_gap_ns, .thread = {}};
  pthread_create(&state_->thread, nullptr, State::run, state_);
}

API Storm::~Storm() {
  state_->over.store(true);
  pthread_join(state_->thread, nullptr);
  free(state_);
}

struct IgnoredSignals::State {
  std::atomic<bool> over{false};
  pthread_t thread;

  static void* run(void* s) {
    auto& state = *static_cast<State*>(s);
    unsigned random = 54321;
    for (int signals[] = {SIGCHLD, SIGWINCH, SIGURG}; !state.over.load();) {
      kill(sys::getpid(), signals[rand_r(&random) % 3]);
      timespec gap{0, static_cast<int64_t>(rand_r(&random)) % 100'000};
      sys::call(__NR_nanosleep, &gap, 0L);
    }
    return nullptr;
  }
};

API IgnoredSignals::IgnoredSignals() : state_(static_cast<State*>(malloc(sizeof(State)))) {
  new (state_) State{.over = false, .thread = {}};
  // None of them is to be given to this thread.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_create(&state_->thread, nullptr, State::run, state_);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

API IgnoredSignals::~IgnoredSignals() {
  state_->over.store(true);
  pthread_join(state_->thread, nullptr);
  free(state_);
}

API void set_registered(bool on) { hooks::memory_registered = on ? 1 : 0; }

API void set_copying(bool on) {
  if (on) release_count.store(0);
  hooks::copy_under_way.store(on ? 1 : 0);
}
API int releases() { return release_count.load() < kMaxReleases ? release_count.load() : kMaxReleases; }
API Release release(int i) { return seen[i]; }
API bool was_released(uintptr_t start, size_t length) {
  for (int i = 0; i < releases(); ++i) {
    if (seen[i].start <= start && start + length <= seen[i].start + seen[i].length) return true;
  }
  return false;
}
API int forks_in_child() { return child_count.load(); }
API int forks_begun() { return fork_count.load(); }
API int forks_made() { return forked_count.load(); }
API int spawns() { return spawn_count.load(); }
API int ends_announced() { return end_count.load(); }
API void set_monotonic_shift(int64_t ns) { hooks::monotonic_shift_ns.store(ns); }

}  // namespace test
}  // namespace ckpt
