#include "libckpt_rt/checkpoint/checkpoint.h"

#include "base/clock.h"
#include "image/write/image_directory.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/checkpoint/back_ends/choose.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/loading.h"
#include "libckpt_rt/core/log.h"
#include "libckpt_rt/entry/agent.h"

namespace ckpt {

namespace {

void prune_and_log(const CheckpointCost& cost, const ImageKey* key) {
  auto directory = open_image_directory(library.directory);
  if (!directory.ok()) return;
  // With none to be removed there is no need to look at all there are, which may be thousands.
  // What no restart can use takes nobody's place.
  if (library.settings.keep != 0 && cost.restartable) {
    auto pruned = prune_images(directory->get(), library.run_id, library.settings.keep, key);
    if (!pruned.ok()) log_line(directory->get(), pruned.error().message());
  }
  log_format(directory->get(), "image {} mode {}{} pause {} us, durable after {} ms, {} bytes", cost.image,
             mode_name(cost.mode), cost.parent_sequence == 0 ? "" : ", an increment,", cost.pause_ns / 1000,
             cost.durable_ns / 1'000'000, cost.bytes_written);
}

}  // namespace

Result<CheckpointCost> take_checkpoint() {
  // A program that gives much memory back while it is copied can spoil an attempt. After two, the
  // kernel's own copy-on-write takes the snapshot: slower, but nothing can spoil it.
  constexpr uint32_t kAttempts = 3;
  const int64_t requested = now_ns();
  loading::await_end();
  Way way = choose_way(nullptr);
  if (way.why != nullptr) {
    auto directory = open_image_directory(library.directory);
    if (directory.ok())
      log_format(directory->get(), "CKPT_FAULTS={} is not used: {}",
                 fault_back_end_name(library.settings.faults), way.why);
  }
  if (protects_memory(way.mode) && futex_words::overflow()) way = kUnspoilable;
  for (uint32_t attempts = 1;; ++attempts) {
    CheckpointCost cost;
    cost.attempts = attempts;
    cost.mode = way.mode;
    if (!protects_memory(way.mode)) Watch::end_kept();
    Watch* watch = Watch::take();
    if (watch == nullptr) {
      const Error error = no_memory_for_segments();
      agent::count_failure(error);
      return error;
    }
    Result<void> result;
    Outcome outcome;
    {
      Attempt attempt(requested, cost, *watch);
      result = run_attempt(way, attempt);
      outcome = attempt.outcome;
      if (result.ok()) prune_and_log(cost, attempt.image.key());
    }
    if (outcome.keeps_watch)
      watch->keep();
    else
      watch->end();
    if (result.ok()) {
      agent::count_success(cost);
      return cost;
    }
    auto directory = open_image_directory(library.directory);
    if (directory.ok()) log_line(directory->get(), result.error().message());
    if (outcome.refused) {
      refuse_back_end();
      way = choose_way(nullptr);
      continue;
    }
    if (outcome.memory_vanished && attempts < kAttempts) {
      if (attempts + 1 == kAttempts) way = kUnspoilable;
      continue;
    }
    agent::count_failure(result.error());
    return result.error();
  }
}

}  // namespace ckpt
