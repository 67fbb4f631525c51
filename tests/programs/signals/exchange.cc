#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tests/programs/signals/signals.h"

namespace signals {

using namespace victim;

namespace {

struct Game {
  std::atomic<uint64_t> thrown[2], caught[2], wrong{0};
  std::atomic<pthread_t> players[2];
  std::atomic<int> ready{0};
};

struct Seat {
  Game* game;
  int me;
};
thread_local Seat seat;

void on_ball(int, siginfo_t* info, void*) {
  auto& [game, me] = seat;
  const auto carried = static_cast<uint32_t>(info->si_value.sival_int);
  if (carried != static_cast<uint32_t>(game->thrown[1 - me].load())) game->wrong.fetch_add(1);
  game->caught[me].fetch_add(1);
}

void throw_ball(int signal, uint64_t n) {
  auto& [game, me] = seat;
  game->thrown[me].store(n);
  sigval value;
  value.sival_int = static_cast<int>(n);
  require_zero(pthread_sigqueue(game->players[1 - me].load(), signal, value), "pthread_sigqueue");
}

// Past libc, and past whatever stands between the program and it.
long set_mask_by_instruction(uint64_t mask) {
  long result = SYS_rt_sigprocmask;
  register long size asm("r10") = sizeof(mask);
  asm volatile("syscall"
               : "+a"(result)
               : "D"(SIG_SETMASK), "S"(&mask), "d"(0L), "r"(size)
               : "rcx", "r11", "memory");
  return result;
}

// Lets others run. Beside programs that never rest a yield lasts until each has had its time, thousands of
// times as long as alone: then it naps for a while, from which it comes back at once.
void let_others_run() {
  constexpr int64_t kLong = 1'000'000;  // ns
  constexpr timespec kNap{0, 20'000};
  thread_local int naps = 0;
  if (naps > 0) {
    --naps;
    nanosleep(&kNap, nullptr);
    return;
  }
  const int64_t before = now_ns();
  sched_yield();
  if (now_ns() - before > kLong) naps = 100;
}

void await_ball(uint64_t n) {
  auto& [game, me] = seat;
  while (game->caught[me].load() < n) let_others_run();
  require(game->caught[me].load() == n && game->wrong.load() == 0, "pingpong: {} of {} caught, {} wrong",
          game->caught[me].load(), n, game->wrong.load());
}

}  // namespace

// Pairs of threads throw a signal to and fro, without rest: one that is lost ends the game, one that comes
// twice is seen. In every other pair one only throws: it takes no signals at all, but libc's own, and throws
// on for a while when its partner stands still already.
std::string pingpong(uint64_t iterations) {
  constexpr unsigned kGames = 4;
  const int ball = SIGRTMIN + 8;
  set_handler(ball, on_ball, SA_RESTART);
  Game games[kGames]{};
  run_threads(2 * kGames, [&](unsigned number) {
    seat = {&games[number / 2], static_cast<int>(number % 2)};
    Game& game = *seat.game;
    const bool one_way = number / 2 % 2 == 1, throws_only = one_way && seat.me == 1;
    game.players[seat.me].store(pthread_self());
    game.ready.fetch_add(1);
    while (game.ready.load() < 2) sched_yield();
    // Libc's two are free.
    if (throws_only) require(set_mask_by_instruction(~(3ull << 31)) == 0, "pingpong: rt_sigprocmask");
    for (uint64_t n = 1; n <= iterations; ++n) {
      if (throws_only || (seat.me == 0 && !one_way)) throw_ball(ball, n);
      if (throws_only) {
        while (game.thrown[0].load() < n) let_others_run();
        for (int i = 0; i < 10; ++i) let_others_run();  // its partner waits most of the time
        continue;
      }
      await_ball(n);
      if (one_way) game.thrown[0].store(n);
      if (seat.me == 1) throw_ball(ball, n);
    }
    // Its partner's last signal must find it.
    game.ready.fetch_add(1);
    while (game.ready.load() < 4) sched_yield();
  });
  return fmt::format("{} to and fro in each of {} games", iterations, kGames);
}

namespace {

std::atomic<uint64_t> shots[2];

void on_shot(int signal, siginfo_t*, void*) { shots[signal == SIGRTMIN + 5 ? 0 : 1].fetch_add(1); }

}  // namespace

// Timers that expire once and soon, armed again as soon as they have: one of them expires in nearly every
// stop.
std::string one_shots(uint64_t iterations) {
  const int to_process = SIGRTMIN + 5, to_thread = SIGRTMIN + 9;
  timer_t timers[2];
  for (int i = 0; i < 2; ++i) {
    sigevent event{};
    event.sigev_notify = i == 0 ? SIGEV_SIGNAL : SIGEV_THREAD_ID;
    event.sigev_signo = i == 0 ? to_process : to_thread;
    event._sigev_un._tid = gettid();
    set_handler(event.sigev_signo, on_shot, SA_RESTART);
    require_call(timer_create(CLOCK_MONOTONIC, &event, &timers[i]) == 0, "timer_create");
  }
  set_blocked(to_process, false);
  for (uint64_t n = 1; n <= iterations; ++n) {
    for (timer_t timer : timers) {
      const itimerspec soon{{0, 0}, {0, 20'000 + static_cast<long>(n * 7919 % 300'000)}};
      require_call(timer_settime(timer, 0, &soon, nullptr) == 0, "timer_settime");
    }
    while (shots[0].load() < n || shots[1].load() < n) let_others_run();
    require(shots[0].load() == n && shots[1].load() == n, "oneshots: {} and {} expirations of {}",
            shots[0].load(), shots[1].load(), n);
  }
  set_blocked(to_process, true);
  for (timer_t timer : timers) require_call(timer_delete(timer) == 0, "timer_delete");
  return fmt::format("{} expirations of two kinds", 2 * iterations);
}

}  // namespace signals
