#include "libckpt_rt/checkpoint/back_ends/choose.h"

#include "base/machine/kernel_caps.h"
#include "libckpt_rt/capture/futex_words.h"
#include "libckpt_rt/checkpoint/back_ends/fork.h"
#include "libckpt_rt/checkpoint/back_ends/guard.h"
#include "libckpt_rt/checkpoint/back_ends/handler.h"
#include "libckpt_rt/checkpoint/back_ends/still.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constinit bool back_end_refused = false;  // the agent's alone

// What `auto` means on this machine, and why.
Mode choose_mode(Mode wanted, Error* why_not_realtime) {
  if (wanted != Mode::kAuto && !CheckpointMethod{wanted, FaultBackEnd::kHandler}.protects_memory())
    return wanted;
  // Its tracer writes to its memory, breakpoints for example, which fails (EIO) where that is protected.
  if (traced::has_tracer()) return Mode::kFork;
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

FaultBackEnd choose_back_end(const Settings& settings, const char*& why) {
  const FaultBackEnd wanted = settings.faults;
  const bool in_thread = wanted == FaultBackEnd::kInThread;
  if (!in_thread && wanted != FaultBackEnd::kMprotect) return FaultBackEnd::kHandler;
  const Mode mode = settings.mode;
  if (mode != Mode::kAuto && !CheckpointMethod{mode, FaultBackEnd::kHandler}.protects_memory()) {
    why = "this mode protects no memory";
  } else if (mode == Mode::kStanding) {
    why = "in mode standing all is copied before a thread could write";
  } else if (settings.dma) {
    why = "CKPT_ENGINE=dma needs the thread that handles faults";
  } else if (in_thread && !probe_userfaultfd().allows_in_thread()) {
    why = "userfaultfd is not allowed here, or cannot raise signals";
  } else if (tracing::traces_anybody() || traced::has_tracer()) {
    why = "the program traces another process (ptrace), or is traced, and that one would see its faults";
  } else if (back_end_refused) {
    why = "a checkpoint of this program was refused by it, see the log";
  }
  return why == nullptr ? wanted : FaultBackEnd::kHandler;
}

// Not inlined: the agent's stack has room for the largest back end, not for all of them.
template <typename Chosen, typename... Arguments>
[[gnu::noinline]] Result<void> run_with(Attempt& attempt, Arguments... arguments) {
  Chosen back_end(attempt, arguments...);
  return run_stages(attempt, back_end);
}

Result<void> run_protecting(Attempt& attempt, FaultBackEnd faults, const HowCopied& how) {
  if (faults == FaultBackEnd::kInThread) return run_with<InThreadBackEnd>(attempt, how);
  if (faults == FaultBackEnd::kMprotect) return run_with<MprotectBackEnd>(attempt, how);
  return run_with<HandlerBackEnd>(attempt, how);
}

}  // namespace

CheckpointMethod choose_method(const Settings& settings, Error* why_not_realtime) {
  CheckpointMethod method;
  method.back_end = choose_back_end(settings, method.why);
  const Mode wanted = settings.mode;
  // The others need no right to full userfaultfd.
  method.mode = method.back_end == FaultBackEnd::kHandler ? choose_mode(wanted, why_not_realtime)
                : wanted == Mode::kAuto                   ? Mode::kRealtime
                                                          : wanted;
  return method;
}

CheckpointMethod choose_method_of_attempt(const Settings& settings) {
  const CheckpointMethod method = choose_method(settings, nullptr);
  // After an overflow it is not known which pages must stay open.
  const bool spoiled = method.protects_memory() && futex_words::overflow();
  return spoiled ? CheckpointMethod{kUnspoilable.mode, kUnspoilable.back_end, method.why} : method;
}

Watch* take_watch(const CheckpointMethod& method) {
  if (!method.protects_memory()) Watch::end_kept();
  return Watch::take();
}

void refuse_back_end() { back_end_refused = true; }

Result<void> run_attempt(const CheckpointMethod& method, Attempt& attempt) {
  switch (method.mode) {
    case Mode::kSequential:
      return run_with<SequentialBackEnd>(attempt);
    case Mode::kConcurrent:
      return run_with<ConcurrentBackEnd>(attempt);
    case Mode::kFork:
      return run_with<ForkBackEnd>(attempt);
    case Mode::kRealtimeLarge:
      return run_protecting(attempt, method.back_end, {.pool = PoolSize::kAllOfMemory});
    case Mode::kStanding:
      return run_protecting(attempt, method.back_end, {.before_go = true});
    default:
      return run_protecting(attempt, method.back_end, {});
  }
}

}  // namespace ckpt
