#include "libckpt_rt/checkpoint/checkpoint.h"

#include "base/clock.h"
#include "base/kernel_caps.h"
#include "image/write/image_directory.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/checkpoint/run.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/loading.h"
#include "libckpt_rt/core/log.h"
#include "libckpt_rt/entry/agent.h"

namespace ckpt {

namespace {

// What `auto` means on this machine, and why.
Mode choose_mode(Mode wanted, Error* why_not_realtime) {
  if (wanted != Mode::kAuto && !protects_memory(wanted)) return wanted;
  UserfaultfdProbe probe = probe_userfaultfd();
  if (probe.allows_realtime()) return wanted == Mode::kAuto ? Mode::kRealtime : wanted;
  if (why_not_realtime != nullptr && probe.access == UserfaultfdAccess::kFull) {
    *why_not_realtime =
        make_error(ExitCode::kUnavailable, 0,
                   "this kernel's userfaultfd cannot write-protect all memory: using mode fork; "
                   "Linux 5.19 or newer can");
  } else if (why_not_realtime != nullptr) {
    *why_not_realtime = make_error(
        ExitCode::kUnavailable, probe.syscall_error,
        "full userfaultfd is not allowed here ({}): using mode fork; `ckpt check` says how to change that",
        errno_name(probe.syscall_error));
  }
  return Mode::kFork;
}

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

// An attempt has found the back end that is set unfit for this process. The agent's alone.
bool back_end_refused = false;

FaultBackEnd choose_back_end(const char*& why) {
  const FaultBackEnd wanted = library.settings.faults;
  const bool in_thread = wanted == FaultBackEnd::kInThread;
  if (!in_thread && wanted != FaultBackEnd::kMprotect) return FaultBackEnd::kHandler;
  const Mode mode = library.settings.mode;
  if (mode != Mode::kAuto && !protects_memory(mode)) {
    why = "this mode protects no memory";
  } else if (library.settings.dma) {
    why = "CKPT_ENGINE=dma needs the thread that handles faults";
  } else if (in_thread && !probe_userfaultfd().allows_in_thread()) {
    why = "userfaultfd is not allowed here, or cannot raise signals";
  } else if (back_end_refused) {
    why = "a checkpoint of this program was refused by it, see the log";
  }
  return why == nullptr ? wanted : FaultBackEnd::kHandler;
}

}  // namespace

Way choose_way(Error* why_not_realtime) {
  Way way;
  way.back_end = choose_back_end(way.why);
  const Mode wanted = library.settings.mode;
  // The others need no right to full userfaultfd.
  way.mode = way.back_end == FaultBackEnd::kHandler ? choose_mode(wanted, why_not_realtime)
             : wanted == Mode::kAuto                ? Mode::kRealtime
                                                    : wanted;
  return way;
}

Result<CheckpointCost> take_checkpoint() {
  // A program that gives much memory back while it is copied can spoil an attempt. After two, the
  // kernel's own copy-on-write takes the snapshot: slower, but nothing can spoil it.
  constexpr uint32_t kAttempts = 3;
  const int64_t requested = now_ns();
  loading::await_end();
  auto [mode, back_end, why] = choose_way(nullptr);
  if (why != nullptr) {
    auto directory = open_image_directory(library.directory);
    if (directory.ok())
      log_format(directory->get(), "CKPT_FAULTS={} is not used: {}",
                 fault_back_end_name(library.settings.faults), why);
  }
  if (protects_memory(mode) && futex_words::overflow()) mode = Mode::kFork;
  for (uint32_t attempt = 1;; ++attempt) {
    CheckpointCost cost;
    cost.attempts = attempt;
    cost.mode = mode;
    if (!protects_memory(mode)) Watch::end_kept();
    Watch* watch = Watch::take();
    if (watch == nullptr) {
      const Error error = no_memory_for_segments();
      agent::count_failure(error);
      return error;
    }
    Result<void> result;
    bool vanished, keeps_watch, refused;
    {
      if (!protects_memory(mode)) back_end = FaultBackEnd::kHandler;
      CheckpointRun run(mode, back_end, requested, cost, *watch);
      result = run.run();
      vanished = run.memory_vanished();
      keeps_watch = run.keeps_watch();
      refused = run.refused();
      if (result.ok()) prune_and_log(cost, run.key());
    }
    if (keeps_watch)
      watch->keep();
    else
      watch->end();
    if (result.ok()) {
      agent::count_success(cost);
      return cost;
    }
    auto directory = open_image_directory(library.directory);
    if (directory.ok()) log_line(directory->get(), result.error().message());
    if (refused) {
      back_end_refused = true;
      const Way next = choose_way(nullptr);
      back_end = next.back_end;
      mode = next.mode;
      continue;
    }
    if (vanished && attempt < kAttempts) {
      if (attempt + 1 == kAttempts) mode = Mode::kFork;
      continue;
    }
    agent::count_failure(result.error());
    return result.error();
  }
}

}  // namespace ckpt
