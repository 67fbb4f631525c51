#include "restart/tree/stage_text.h"

#include <errno.h>

#include <initializer_list>

#include "base/protocol/library_notes.h"
#include "restart/restorer/restorer_args.h"

namespace ckpt {

const char* stage_name(RestartStage stage) {
  switch (stage) {
    case RestartStage::kStart:
      return "start";
    case RestartStage::kNamespaces:
      return "namespaces";
    case RestartStage::kProcess:
      return "process";
    case RestartStage::kDescriptors:
      return "descriptors";
    case RestartStage::kUnmapped:
      return "unmapped";
    case RestartStage::kMemory:
      return "memory";
    case RestartStage::kMm:
      return "mm";
    case RestartStage::kSignals:
      return "signals";
    case RestartStage::kTimers:
      return "timers";
    case RestartStage::kThreads:
      return "threads";
    case RestartStage::kThreadState:
      return "thread state";
    case RestartStage::kGo:
      return "go";
  }
  return "unknown";
}

namespace {

const char* memory_remedy(int error) {
  switch (error) {
    case ENOMEM:
      return "not enough memory, or a limit on it (ulimit -v, vm.overcommit_memory, vm.max_map_count)";
    case EEXIST:
      return "something of ours is in the way, which is a bug";
    case EPERM:
      return "an address below vm.mmap_min_addr, or memory locked by this kernel";
    case EIO:
      return "the image or its file cannot be read to the end; run `ckpt verify` on it";
    case EACCES:
      return "the file's permissions do not allow this mapping";
    case ENODEV:
      return "the file's file system does not allow mapping";
    case EFAULT:
      return "the image has pages where it has no mapping: it is damaged";
    default:
      return "see mmap(2)";
  }
}

Error restorer_error(const RestartStatus& s, const std::function<std::string(uint32_t)>& mapping_name) {
  const char* name = errno_name(s.error);
  switch (static_cast<RestorerStep>(s.tid)) {
    case RestorerStep::kMoveVdso:
      return make_error(ExitCode::kUnavailable, s.error,
                        "the vdso cannot be moved ({}): a kernel with sealed system mappings "
                        "(CONFIG_MSEAL_SYSTEM_MAPPINGS) forbids restarts",
                        name);
    case RestorerStep::kUnmap:
      return make_error(ExitCode::kSystem, s.error, "ckpt-restart cannot unmap itself ({})", name);
    case RestorerStep::kMapMemory:
      return make_error(ExitCode::kSystem, s.error, "cannot map {} ({}): {}", mapping_name(s.detail), name,
                        memory_remedy(s.error));
    case RestorerStep::kFill:
      return make_error(ExitCode::kIo, s.error, "cannot load the memory of {} ({}): {}",
                        mapping_name(s.detail), name, memory_remedy(s.error));
    case RestorerStep::kFillOrders:
      return make_error(
          ExitCode::kIo, s.error,
          "the image's memory does not arrive in the new process ({}): was ckpt-restart killed?", name);
    case RestorerStep::kProtect:
      return make_error(ExitCode::kSystem, s.error, "cannot protect {} as it was ({}): {}",
                        mapping_name(s.detail), name, memory_remedy(s.error));
    case RestorerStep::kCredentials:
      return make_error(ExitCode::kPermission, s.error,
                        "cannot become the saved user and groups ({}): restart as that user, or as root",
                        name);
    case RestorerStep::kRegister:
      return make_error(ExitCode::kSystem, s.error,
                        "cannot register {} with userfaultfd ({}); restart with --eager",
                        mapping_name(s.detail), name);
    case RestorerStep::kFirstPages:
      return make_error(ExitCode::kSystem, s.error,
                        "the process that loads the memory has ended ({}); restart with --eager", name);
    case RestorerStep::kTogether:
      return make_error(ExitCode::kSystem, s.error,
                        "ckpt-restart was killed, or another process of the job ({})", name);
    case RestorerStep::kTimers:
      return make_error(ExitCode::kSystem, s.error, "a timerfd cannot be set ({})", name);
    case RestorerStep::kNone:
      break;
  }
  return make_error(ExitCode::kInternal, s.error, "stage {} failed ({})",
                    stage_name(static_cast<RestartStage>(s.stage)), name);
}

}  // namespace

Error stage_error(const RestartStatus& s, const std::function<std::string(uint32_t)>& mapping_name) {
  auto stage = static_cast<RestartStage>(s.stage);
  if (stage >= RestartStage::kUnmapped && stage <= RestartStage::kMm) return restorer_error(s, mapping_name);
  const char* name = errno_name(s.error);
  if (stage == RestartStage::kThreads) {
    if (s.error == EEXIST) {
      return make_error(
          ExitCode::kUnavailable, s.error,
          "thread id {} was taken while the program came back: restart again, or with --namespaces=always",
          s.tid);
    }
    return make_error(
        ExitCode::kUnavailable, s.error,
        "thread {} cannot be made ({}): a limit on processes (ulimit -u, pids cgroup), or no right to "
        "choose thread ids",
        s.tid, name);
  }
  if (stage == RestartStage::kThreadState && s.detail == kDetailSemaphores) {
    return make_error(
        ExitCode::kUnavailable, s.error,
        "what the kernel is to undo on System V semaphores when the program ends (SEM_UNDO) cannot be "
        "said again ({}): did others change them meanwhile?",
        name);
  }
  if (stage == RestartStage::kThreadState && s.detail == kDetailSockets) {
    return make_error(ExitCode::kUnavailable, s.error,
                      "memory into which a TCP socket maps what it receives cannot be mapped again ({}): "
                      "does this kernel know "
                      "TCP_ZEROCOPY_RECEIVE?",
                      name);
  }
  if (stage == RestartStage::kThreadState && s.detail == kDetailAio) {
    return make_error(ExitCode::kUnavailable, s.error,
                      "a context of asynchronous I/O (io_setup) cannot be made again ({}): raise "
                      "fs.aio-max-nr; on a machine with more processors the kernel makes larger ones",
                      name);
  }
  if (stage == RestartStage::kThreadState && s.detail == kDetailRings) {
    const char* hint =
        s.error == EPERM ? "sysctl kernel.io_uring_disabled=0, or allow it in the container's seccomp profile"
        : s.error == ENOMEM ? "raise the limit on locked memory (ulimit -l)"
        : s.error == EADDRNOTAVAIL
            ? "the kernel does not map it where it was; is the size of memory limited (ulimit -v)?"
        : s.error == EXDEV ? "this kernel lays rings out in another way"
                           : "does this kernel know all that the one of the checkpoint knew?";
    return make_error(ExitCode::kUnavailable, s.error, "an io_uring cannot be made again ({}): {}", name,
                      hint);
  }
  if (stage == RestartStage::kThreadState && s.detail == kDetailDirectory) {
    return make_error(ExitCode::kFileChanged, s.error,
                      "thread {} had a working directory of its own (unshare), which cannot be entered "
                      "({}): make it again",
                      s.tid, name);
  }
  if (stage == RestartStage::kThreadState && s.detail == kDetailThreadUser) {
    return make_error(ExitCode::kUnavailable, s.error,
                      "thread {} cannot become the user that it was ({}), other than the first thread's: a "
                      "limit on processes of that user (ulimit -u)?",
                      s.tid, name);
  }
  return make_error(ExitCode::kInternal, s.error, "stage \"{}\" failed ({}), thread {}, detail {}",
                    stage_name(stage), name, s.tid, s.detail);
}

namespace {

struct NoteText {
  uint32_t bit;
  const char* text;
};

std::vector<std::string> lines_of(uint32_t notes, std::initializer_list<NoteText> texts) {
  std::vector<std::string> lines;
  for (const NoteText& t : texts) {
    if ((notes & t.bit) != 0) lines.emplace_back(t.text);
  }
  return lines;
}

}  // namespace

std::vector<std::string> restorer_note_lines(uint32_t notes) {
  return lines_of(
      notes,
      {{kNoteMmRefused,
        "the kernel refused the memory description: ps and /proc/PID/cmdline show ckpt-restart"},
       {kNoteMmExeRefused,
        "/proc/PID/exe shows ckpt-restart (changing it needs CAP_CHECKPOINT_RESTORE and the program's file)"},
       {kNoteAdviceRefused, "this kernel refused advice on memory (madvise) that the program had given"},
       {kNoteLockRefused, "memory that was locked is not: raise ulimit -l"},
       {kNoteLimitRefused, "a resource limit could not be set as it was"},
       {kNoteTimeRefused, "CLOCK_MONOTONIC jumps: the time namespace could not be entered"},
       {kNoteDumpableRefused, "the program's dumpable flag could not be set as it was"},
       {kNoteCapabilitiesRefused, "capabilities could not be limited as they were"},
       {kNoteSealRefused, "a memory file could not be sealed as it was"},
       {kNoteFileLockLost,
        "a lock of a file (fcntl) that the program held was taken by another process while its memory came "
        "back: the program goes on without it"}});
}

std::vector<std::string> library_note_lines(uint32_t notes) {
  std::vector<std::string> lines;
  for (const LibraryNoteText& t : kLibraryNoteTexts) {
    if ((notes & t.note) != 0) lines.emplace_back(t.line);
  }
  return lines;
}

}  // namespace ckpt
