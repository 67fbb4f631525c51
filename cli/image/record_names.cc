#include "cli/image/record_names.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "image/format/records/fanotify_records.h"
#include "image/format/records/process_records.h"

namespace ckpt::cli {

const char* mapping_kind_name(uint32_t kind) {
  switch (static_cast<MappingKind>(kind)) {
    case MappingKind::kAnonymous:
      return "anonymous";
    case MappingKind::kFilePrivate:
      return "file";
    case MappingKind::kFileShared:
      return "shared file";
    case MappingKind::kSharedAnonymous:
      return "shared anonymous";
    case MappingKind::kMemfd:
      return "memfd";
    case MappingKind::kSysV:
      return "System V";
    case MappingKind::kDevice:
      return "device";
    case MappingKind::kVdso:
      return "vdso";
    case MappingKind::kLibraryOwned:
      return "library's own";
  }
  return "?";
}

const char* system_v_kind_name(SystemVKind kind) {
  return kind == SystemVKind::kSemaphores ? "semaphore set" : "message queue";
}

std::string system_v_text(const ParsedSystemV& o) {
  std::string text =
      fmt::format("{} {}, key {:#x}, mode {:04o}, user {}: ", system_v_kind_name(o.kind()), o.record.id,
                  static_cast<uint32_t>(o.record.key), o.record.mode, o.record.uid);
  if (o.kind() == SystemVKind::kSemaphores) {
    constexpr size_t kShown = 16;
    text += "values";
    for (size_t i = 0; i < o.values.size() && i < kShown; ++i) text += fmt::format(" {}", o.values[i]);
    return o.values.size() > kShown ? text + " ..." : text;
  }
  uint64_t bytes = 0;
  for (const auto& message : o.messages) bytes += message.second.size();
  return text + fmt::format("{} messages of {} bytes, {} fit", o.messages.size(), bytes, o.record.limit);
}

const char* open_file_kind_name(uint32_t kind) {
  if (static_cast<OpenFileKind>(kind) == kFanotify) return "fanotify";
  switch (static_cast<OpenFileKind>(kind)) {
    case OpenFileKind::kRegular:
      return "file";
    case OpenFileKind::kDirectory:
      return "directory";
    case OpenFileKind::kDevice:
      return "device";
    case OpenFileKind::kTerminal:
      return "terminal";
    case OpenFileKind::kPipe:
      return "pipe";
    case OpenFileKind::kStandard:
      return "standard stream";
    case OpenFileKind::kMemfd:
      return "memfd";
    case OpenFileKind::kEventFd:
      return "eventfd";
    case OpenFileKind::kOther:
      return "cannot be saved";
    case OpenFileKind::kFifo:
      return "fifo";
    case OpenFileKind::kEpoll:
      return "epoll";
    case OpenFileKind::kTimerFd:
      return "timerfd";
    case OpenFileKind::kSignalFd:
      return "signalfd";
    case OpenFileKind::kInotify:
      return "inotify";
    case OpenFileKind::kSocketPair:
      return "socket pair";
    case OpenFileKind::kConnection:
      return "connection";
    case OpenFileKind::kMessageQueue:
      return "message queue";
    case OpenFileKind::kPidFd:
      return "pidfd";
    case OpenFileKind::kSocket:
      return "socket without a connection";
  }
  return "?";
}

std::string protection_text(uint32_t prot, bool shared) {
  return fmt::format("{}{}{}{}", (prot & PROT_READ) != 0 ? 'r' : '-', (prot & PROT_WRITE) != 0 ? 'w' : '-',
                     (prot & PROT_EXEC) != 0 ? 'x' : '-', shared ? 's' : 'p');
}

std::string access_text(uint32_t open_flags) {
  constexpr const char* kAccess[] = {"r", "w", "rw", "none"};
  std::string text = kAccess[open_flags & O_ACCMODE];
  if ((open_flags & O_APPEND) != 0) text += ",append";
  if ((open_flags & O_NONBLOCK) != 0) text += ",nonblock";
  return text;
}

std::string signal_text(int signal) {
  // sigabbrev_np() is of glibc 2.32.
  constexpr const char* kNames[] = {"HUP",  "INT",    "QUIT", "ILL",   "TRAP", "ABRT", "BUS",  "FPE",
                                    "KILL", "USR1",   "SEGV", "USR2",  "PIPE", "ALRM", "TERM", "STKFLT",
                                    "CHLD", "CONT",   "STOP", "TSTP",  "TTIN", "TTOU", "URG",  "XCPU",
                                    "XFSZ", "VTALRM", "PROF", "WINCH", "POLL", "PWR",  "SYS"};
  if (signal >= 1 && signal <= 31) return fmt::format("SIG{}", kNames[signal - 1]);
  return signal >= 34 && signal <= 64 ? fmt::format("SIGRTMIN+{}", signal - 34) : fmt::format("{}", signal);
}

}  // namespace ckpt::cli
