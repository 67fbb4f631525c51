#include "libckpt_rt/core/request/interval.h"

#include <signal.h>
#include <time.h>

#include <algorithm>

#include "base/clock.h"
#include "base/memory/fork_path.h"
#include "image/write/directory/image_directory.h"
#include "job/identity/own_job.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::interval {

namespace {

// CLOCK_MONOTONIC, ns; 0: none yet. The agent's.
constinit int64_t last_ns = 0;

// Its kernel id; -1: none.
constinit int timer = -1;

// Of CKPT_EVERY=auto; the agent's. Images hold them, so they go on after a restart.
constinit AutoInterval automatic = {};
// How long the program has run, up to an instant of CLOCK_MONOTONIC.
constinit int64_t ran_ns = 0, counted_at_ns = 0;
constinit int64_t failures = 0;  // that it was brought back after

int64_t in_force_ns() { return user_settings().every_auto ? automatic.ns() : user_settings().every_ns; }

int64_t mtbf_ns() {
  if (user_settings().mtbf_ns != 0) return user_settings().mtbf_ns;
  return failures == 0 ? AutoInterval::kMtbfNs : std::max<int64_t>(ran_ns / failures, 1'000'000'000);
}

bool leads() { return job::own_job.identity.root == 0 || job::own_job.identity.root == this_process.pid; }

void set_timer() {
  const int64_t every = in_force_ns();
  const int64_t first = leads() ? every : 2 * every;
  itimerspec when{};
  when.it_value = {first / 1'000'000'000, first % 1'000'000'000};
  when.it_interval = {every / 1'000'000'000, every % 1'000'000'000};
  sys::call(__NR_timer_settime, timer, 0, &when, 0L);
}

}  // namespace

CKPT_FORK_DATA constinit bool wanted = false;

CKPT_START_PATH void arm() {
  last_ns = 0;
  if (counted_at_ns == 0) counted_at_ns = now_ns();
  if (user_settings().every_ns == 0) return;
  wanted = true;
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = own_signal.number;
  int id = -1;
  if (long r = sys::call(__NR_timer_create, CLOCK_MONOTONIC, &event, &id); r != 0) {
    const Error error =
        make_error(ExitCode::kUnavailable, static_cast<int>(r),
                   "no timer for CKPT_EVERY ({}); raise ulimit -i", errno_name(static_cast<int>(r)));
    statistics::count_failure(error);
    if (auto directory = open_image_directory(own_directory::name()); directory.ok())
      log_line(directory->get(), error.message());
    return;
  }
  timer = id;
  set_timer();
}

void suspend() {
  if (timer < 0) return;
  constexpr itimerspec kNever{};
  sys::call(__NR_timer_settime, timer, 0, &kNever, 0L);
}

void resume() {
  if (timer >= 0) set_timer();
}

void renew() {
  if (timer >= 0) sys::call(__NR_timer_delete, timer);
  timer = -1;
  arm();
}

void put_off() {
  last_ns = now_ns();
  if (user_settings().every_ns != 0 && timer >= 0 && !leads()) set_timer();
}

void learn(int64_t pause_ns, int64_t durable_ns) {
  if (!user_settings().every_auto) return;
  const int64_t now = now_ns();
  if (counted_at_ns != 0) ran_ns += now - counted_at_ns;
  counted_at_ns = now;
  automatic.learn(pause_ns, durable_ns, mtbf_ns());
  if (timer >= 0) set_timer();
}

const AutoInterval& learned() { return automatic; }

void came_back() {
  ++failures;
  counted_at_ns = now_ns();
}

bool is_due() {
  // Half: the first process's own checkpoints take their time, and its timer does not wait for them.
  return leads() || last_ns == 0 || now_ns() - last_ns > in_force_ns() / 2;
}

}  // namespace ckpt::interval
