#include "libckpt_rt/checkpoint/checkpoint.h"

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "image/write/directory/image_directory.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/checkpoint/back_ends/choose.h"
#include "libckpt_rt/checkpoint/preparation.h"
#include "libckpt_rt/checkpoint/stages/memory/mapping_limit.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/process/loading.h"
#include "libckpt_rt/core/process/seccomp/seccomp_state.h"
#include "libckpt_rt/core/process/statistics.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/threads/own_dispatch.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

void prune_and_log(const Settings& settings, const CheckpointCost& cost, const ImageKey* key) {
  auto directory = job::open_log_directory();
  if (!directory.ok()) return;
  // keep 0: none is ever removed, so do not look at all images, which may be thousands.
  // An image that no restart can use displaces none.
  if (settings.images_to_keep != 0 && job::session() == nullptr && cost.restartable()) {
    auto pruned = prune_images(directory->get(), this_process.run_id, settings.images_to_keep, key);
    if (!pruned.ok()) log_line(directory->get(), pruned.error().message());
  }
  log_format(directory->get(), "image {} mode {}{} pause {} us, durable after {} ms, {} bytes", cost.image,
             mode_name(cost.mode), cost.parent_sequence == 0 ? "" : ", an increment,", cost.pause_ns / 1000,
             cost.durable_ns / 1'000'000, cost.bytes_written);
  if (!cost.restartable()) {
    const Error why = not_restartable(cost.image, cost.why_not_restartable);
    log_line(directory->get(), why.message());
  }
}

// Times in us.
void log_account(const CheckpointCost& cost) {
  auto directory = job::open_log_directory();
  if (!directory.ok()) return;
  const Account& a = cost.account;
  auto us = [](int64_t ns) { return ns / 1000; };
  log_format(directory->get(),
             "took processors: agent {}, handler {}, writer {}, helpers {}, child {}; ready without one: {}, "
             "{}, {} us",
             us(a.agent.ran_ns), us(a.handler.ran_ns), us(a.writer.ran_ns), us(a.helpers.ran_ns),
             us(a.child_ns), us(a.agent.delayed_ns), us(a.handler.delayed_ns), us(a.writer.delayed_ns));
  log_format(directory->get(),
             "faults {} ahead, {} while copying, waited {} us, for a buffer {} us; copies in order waited "
             "for one {} us",
             a.faults_ahead, cost.faults, us(a.fault_wait_ns), us(a.buffer_wait_ns), us(a.copier_wait_ns));
}

// Where the next image finds this one.
void name_parent(Watch& watch, const char* name) {
  static_assert(sizeof(watch.parent.name) == sizeof(job::Place::as_parent));
  std::memcpy(watch.parent.name, name, sizeof(watch.parent.name));
}

// Of this program none can be taken as it is now.
Result<void> refuse_unstoppable() {
  if (seccomp_state.strict_thread.load(std::memory_order_relaxed)) {
    return make_error(ExitCode::kUnsupported, 0,
                      "a thread has forbidden itself all but four system calls (strict seccomp): it cannot "
                      "stand still for a checkpoint; none is taken of this program");
  }
  if (own_dispatch::share_a_selector()) {
    return make_error(ExitCode::kUnsupported, 0,
                      "two threads catch their system calls by one selector (PR_SET_SYSCALL_USER_DISPATCH): "
                      "they cannot stand still for a checkpoint; give each its own");
  }
  return {};
}

CheckpointMethod choose_first_method(const Settings& settings) {
  CheckpointMethod method = choose_method_of_attempt(settings);
  if (method.why != nullptr) {
    auto directory = job::open_log_directory();
    if (directory.ok())
      log_format(directory->get(), "CKPT_FAULTS={} is not used: {}", fault_back_end_name(settings.faults),
                 method.why);
  }
  if (job::place() != nullptr && job::place()->by_fork) method = kUnspoilable;
  if (job::place() != nullptr && job::place()->stays) method = kUntilDurable;
  return method;
}

// From the request to the end of the attempt, and of the watch if it is not kept.
Result<void> attempt_once(const CheckpointMethod& method, int64_t requested, Watch& watch,
                          CheckpointCost& cost, Outcome& outcome) {
  Result<void> result;
  {
    Attempt attempt(requested, user_settings(), cost, watch);
    result = run_attempt(method, attempt);
    points::at("checkpoint.run");
    outcome = attempt.outcome;
    if (result.ok()) result = job::written(to_written_message(cost));
    outcome.keeps_watch = outcome.keeps_watch && result.ok();
    if (result.ok()) in_force::remember(attempt.in_force);
    if (result.ok()) prune_and_log(user_settings(), cost, attempt.image.key());
    points::at("checkpoint.pruned");
  }
  if (job::place() != nullptr && outcome.keeps_watch) name_parent(watch, job::place()->as_parent);
  if (outcome.keeps_watch)
    watch.become_kept();
  else
    watch.end();
  points::at(outcome.keeps_watch ? "watch.kept" : "watch.ended");
  return result.ok() ? result : blame_mapping_limit(result.error());
}

void count_success(const CheckpointCost& cost) {
  log_account(cost);
  statistics::count_success(cost.pause_ns, cost.account.processor_ns(), cost.image);
  if (!cost.restartable()) statistics::set_last_error(not_restartable(cost.image, cost.why_not_restartable));
  interval::learn(cost.pause_ns, cost.durable_ns);
}

}  // namespace

Result<CheckpointCost> take_checkpoint() {
  // A program that gives much memory back while it is copied can spoil an attempt. After two, the
  // kernel's own copy-on-write takes the snapshot: slower, but nothing can spoil it.
  constexpr uint32_t kAttempts = 3;
  const int64_t requested = now_ns();
  const Accounting accounting(!is_filtered());
  if (const Result<void> possible = refuse_unstoppable(); !possible.ok()) {
    statistics::count_failure(possible.error());
    return possible.error();
  }
  loading::await_end();
  points::at("checkpoint.asked");
  preparation::Preparation preparation;
  if (const Result<void> prepared = preparation.begin(); !prepared.ok()) {
    if (job::session() == nullptr) statistics::count_failure(prepared.error());
    return prepared.error();
  }
  const Settings& settings = user_settings();
  CheckpointMethod method = choose_first_method(settings);
  for (uint32_t attempts = 1;; ++attempts) {
    CheckpointCost cost;
    cost.attempts = attempts;
    cost.mode = method.mode;
    Watch* watch = take_watch(method);
    if (watch == nullptr) {
      const Error error = no_memory_for_segments();
      statistics::count_failure(error);
      return error;
    }
    Outcome outcome;
    const Result<void> result = attempt_once(method, requested, *watch, cost, outcome);
    if (result.ok()) {
      accounting.end(cost.account);
      count_success(cost);
      preparation.is_durable();
      return cost;
    }
    auto directory = job::open_log_directory();
    if (directory.ok()) log_line(directory->get(), result.error().message());
    if (job::Session* session = job::session()) {
      // All members try again, or none.
      if (outcome.refused) refuse_back_end();
      session->again = session->again || outcome.refused || outcome.spoiled;
      return result.error();
    }
    if (outcome.refused) {
      refuse_back_end();
      method = choose_method_of_attempt(settings);
      continue;
    }
    if (outcome.spoiled && attempts < kAttempts) {
      if (attempts + 1 == kAttempts) method = kUnspoilable;
      continue;
    }
    statistics::count_failure(result.error());
    return result.error();
  }
}

}  // namespace ckpt
