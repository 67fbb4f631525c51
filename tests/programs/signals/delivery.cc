#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/programs/signals/signals.h"

namespace signals {

using namespace victim;

void set_blocked(int signal, bool blocked) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  require_zero(pthread_sigmask(blocked ? SIG_BLOCK : SIG_UNBLOCK, &set, nullptr), "pthread_sigmask");
}

void set_handler(int signal, void (*handler)(int, siginfo_t*, void*), int flags) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | flags;
  require_call(sigaction(signal, &action, nullptr) == 0, "sigaction");
}

namespace {

std::atomic<uint64_t> queue_next{0};  // the value the next signal must carry
std::atomic<uint64_t> queue_wrong{0};

void count_queued(int, siginfo_t* info, void*) {
  uint64_t expected = queue_next.fetch_add(1);
  if (static_cast<uint64_t>(info->si_value.sival_int) != expected || info->si_pid != getpid())
    queue_wrong.fetch_add(1);
}

}  // namespace

// One thread blocks a real-time signal and sleeps, another queues values to it; then the signal is let
// in and all values must arrive in order. Process-directed ones are fetched with sigwaitinfo.
std::string queued(uint64_t iterations) {
  constexpr uint64_t kBatch = 20;
  const int to_thread = SIGRTMIN, to_process = SIGRTMIN + 1;
  set_handler(to_thread, count_queued, SA_RESTART);
  uint64_t sent = 0, fetched = 0;
  for (uint64_t n = 0; n < iterations; ++n) {
    for (uint64_t i = 0; i < kBatch; ++i) {
      sigval value;
      value.sival_int = static_cast<int>(sent++);
      require_zero(pthread_sigqueue(pthread_self(), to_thread, value), "pthread_sigqueue");
      value.sival_int = static_cast<int>(fetched + i);
      require_call(sigqueue(getpid(), to_process, value) == 0, "sigqueue");
    }
    if (n % 8 == 0) usleep(10'000);  // all of them pending
    require(queue_next.load() == n * kBatch, "queued: a blocked signal was delivered");
    set_blocked(to_thread, false);
    set_blocked(to_thread, true);
    require(queue_next.load() == sent && queue_wrong.load() == 0, "queued: {} of {} arrived, {} wrong",
            queue_next.load(), sent, queue_wrong.load());
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, to_process);
    for (uint64_t i = 0; i < kBatch; ++i) {
      siginfo_t info;
      require_call(sigwaitinfo(&set, &info) == to_process, "sigwaitinfo");
      require(static_cast<uint64_t>(info.si_value.sival_int) == fetched, "queued: value {} instead of {}",
              info.si_value.sival_int, fetched);
      ++fetched;
    }
  }
  return fmt::format("{} handled, {} fetched", sent, fetched);
}

namespace {

constexpr size_t kStackBytes = 128 << 10;
thread_local std::byte* handler_stack = nullptr;
thread_local uint64_t outer_calls = 0, inner_calls = 0;

bool on_handler_stack(const void* p) { return p >= handler_stack && p < handler_stack + kStackBytes; }

void inner(int, siginfo_t*, void*) {
  volatile uint64_t here[64];
  here[0] = inner_calls;
  require(on_handler_stack(const_cast<uint64_t*>(here)), "nested: the inner handler is on another stack");
  ++inner_calls;
  errno = 99;
}

void outer(int, siginfo_t*, void*) {
  volatile uint64_t values[256];
  for (uint64_t i = 0; i < 256; ++i) values[i] = mix(outer_calls + i);
  require(on_handler_stack(const_cast<uint64_t*>(values)), "nested: the outer handler is on another stack");
  uint64_t before = inner_calls;
  raise(SIGUSR2);
  require(inner_calls == before + 1, "nested: the inner handler ran {} times", inner_calls - before);
  for (uint64_t i = 0; i < 256; ++i) {
    require(values[i] == mix(outer_calls + i), "nested: a value on the handler's stack changed");
  }
  ++outer_calls;
}

}  // namespace

std::string nested(uint64_t iterations) {
  set_handler(SIGUSR1, outer, SA_ONSTACK);
  set_handler(SIGUSR2, inner, SA_ONSTACK);
  constexpr unsigned kThreads = 2;
  run_threads(kThreads, [&](unsigned) {
    handler_stack = map_pages(kStackBytes / kPage);
    stack_t stack{handler_stack, 0, kStackBytes};
    require_call(sigaltstack(&stack, nullptr) == 0, "sigaltstack");
    set_blocked(SIGUSR1, false);
    set_blocked(SIGUSR2, false);
    for (uint64_t n = 0; n < iterations; ++n) {
      raise(SIGUSR1);
      require(outer_calls == n + 1 && inner_calls == n + 1, "nested: {} and {} calls after {}", outer_calls,
              inner_calls, n + 1);
      stack_t now;
      require_call(sigaltstack(nullptr, &now) == 0, "sigaltstack");
      require(now.ss_sp == handler_stack && now.ss_size == kStackBytes && now.ss_flags == 0,
              "nested: the alternate stack is {} of {}", now.ss_sp, now.ss_size);
    }
    set_blocked(SIGUSR1, true);
    set_blocked(SIGUSR2, true);
  });
  return fmt::format("{} handlers in handlers", kThreads * iterations);
}

std::string masks(uint64_t iterations) {
  constexpr unsigned kThreads = 3;
  run_threads(kThreads, [&](unsigned t) {
    Random random(800 + t);
    sigset_t mine;
    pthread_sigmask(SIG_SETMASK, nullptr, &mine);
    for (uint64_t n = 0; n < iterations; ++n) {
      // Signals that nobody sends.
      for (int signal : {SIGWINCH, SIGURG, SIGRTMIN + 6, SIGRTMIN + 7}) {
        if (random.below(2) == 0)
          sigaddset(&mine, signal);
        else
          sigdelset(&mine, signal);
      }
      require_zero(pthread_sigmask(SIG_SETMASK, &mine, nullptr), "pthread_sigmask");
      for (int look = 0; look < 4; ++look) {
        sigset_t now;
        require_zero(pthread_sigmask(SIG_SETMASK, nullptr, &now), "pthread_sigmask");
        for (int signal = 1; signal < 32; ++signal) {
          require(sigismember(&now, signal) == sigismember(&mine, signal), "masks: signal {} is {}", signal,
                  sigismember(&now, signal) != 0 ? "blocked" : "let in");
        }
        for (int signal = SIGRTMIN; signal < SIGRTMIN + 8; ++signal) {
          require(sigismember(&now, signal) == sigismember(&mine, signal), "masks: signal {} is {}", signal,
                  sigismember(&now, signal) != 0 ? "blocked" : "let in");
        }
      }
    }
  });
  return fmt::format("{} masks", kThreads * iterations);
}

namespace {
std::atomic<uint64_t> suspended_calls{0};
void count_suspended(int, siginfo_t*, void*) { suspended_calls.fetch_add(1); }
}  // namespace

// One thread waits in sigsuspend, then in sigwait; the other sends one signal for each wait.
std::string suspends(uint64_t iterations) {
  const int wake = SIGRTMIN + 2;
  set_handler(wake, count_suspended, 0);
  std::atomic<uint64_t> asked{0};
  std::atomic<bool> ready{false};
  pthread_t waiter{};
  run_threads(2, [&](unsigned t) {
    if (t == 0) {
      waiter = pthread_self();
      ready.store(true);
      sigset_t waiting, one;
      pthread_sigmask(SIG_SETMASK, nullptr, &waiting);
      sigdelset(&waiting, wake);
      sigemptyset(&one);
      sigaddset(&one, wake);
      for (uint64_t n = 0; n < iterations; ++n) {
        asked.store(2 * n + 1);
        require(sigsuspend(&waiting) == -1 && errno == EINTR, "suspends: sigsuspend gives {}",
                std::strerror(errno));
        require(suspended_calls.load() == n + 1, "suspends: {} handler calls after {}",
                suspended_calls.load(), n + 1);
        asked.store(2 * n + 2);
        int got = 0;
        require_zero(sigwait(&one, &got), "sigwait");
        require(got == wake, "suspends: signal {}", got);
      }
    } else {
      while (!ready.load()) std::this_thread::yield();
      for (uint64_t n = 1; n <= 2 * iterations; ++n) {
        while (asked.load() != n) std::this_thread::yield();
        if (n % 100 == 0) usleep(3000);
        require_zero(pthread_kill(waiter, wake), "pthread_kill");
      }
    }
  });
  return fmt::format("{} waits", 2 * iterations);
}

}  // namespace signals
