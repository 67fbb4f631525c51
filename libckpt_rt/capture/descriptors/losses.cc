#include "libckpt_rt/capture/descriptors/losses.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/machine/known_devices.h"
#include "libckpt_rt/capture/descriptors/half_read_lists.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

std::string_view path_of(const CapturedDescriptor& d) { return {d.path, d.path_len}; }

// A pidfd of a thread that is not the first of its process (PIDFD_THREAD, Linux 6.9).
bool is_of_other_thread(const CapturedDescriptor& d) {
  if ((d.now.open_flags & O_EXCL) == 0 || static_cast<int64_t>(d.value) <= 0) return false;
  const long first = sys::call(__NR_pidfd_open, static_cast<long>(d.value), 0L);
  if (first >= 0) sys::call(__NR_close, first);
  return first < 0 && first != -ESRCH;
}

}  // namespace

Result<void> DescriptorLosses::note_all() {
  half_read_lists::begin();
  if (files_.is_refused()) {
    CKPT_TRY(
        notes_.add(kChanged,
                   "the kernel refuses kcmp(2): which descriptors share an offset was guessed from equal "
                   "offsets and flags; allow kcmp in the container's seccomp profile"));
  }
  for (const CapturedDescriptor& d : files_.entries()) {
    if (d.shares) continue;
    CKPT_TRY(note_pipe(d));
    // note_lost_mappings() says whether it is made again.
    if (path_of(d) == "anon_inode:[io_uring]") continue;
    if (d.kind == OpenFileKind::kRegular || d.kind == OpenFileKind::kDirectory)
      CKPT_TRY(note_process_file(d));
    if (d.kind == OpenFileKind::kPidFd) CKPT_TRY(note_pidfd(d));
    CKPT_TRY(note_kind(d));
  }
  return {};
}

Result<void> DescriptorLosses::note_pipe(const CapturedDescriptor& d) {
  const bool is_reader = S_ISFIFO(d.now.mode) && (d.flags & kOpenFilePipeReadEnd) != 0;
  if (!is_reader || d.now.queued == 0 ||
      (d.kind != OpenFileKind::kOther && d.kind != OpenFileKind::kStandard))
    return {};
  return notes_.add(kChanged,
                    "descriptor {} ({}): the {} bytes that wait in it come from another process and are lost",
                    d.fd, path_of(d), d.now.queued);
}

Result<void> DescriptorLosses::note_pidfd(const CapturedDescriptor& d) {
  const auto process = static_cast<int64_t>(d.value);
  // Only a restart knows which processes are in the job.
  if (process > 0 && process != sys::getpid() && !partners_.any) {
    return notes_.add(
        kChanged,
        "descriptor {} is a pidfd of process {}, which is not in the image: after a restart it says that "
        "the process has ended",
        d.fd, process);
  }
  if (!partners_.any || !is_of_other_thread(d)) return {};
  constexpr std::string_view kSent = "a descriptor that waits to be received";
  char name[40];
  const auto end = fmt::format_to_n(name, sizeof(name), "descriptor {}", d.fd);
  return notes_.add(kChanged,
                    "{} is a pidfd of thread {}, which is not the first of its process: after a restart it "
                    "says that the thread has ended",
                    d.in_flight ? kSent : std::string_view(name, end.size), process);
}

Result<void> DescriptorLosses::note_kind(const CapturedDescriptor& d) {
  // O_PATH is a place in the file system, and a directory is no device: neither has the device open.
  const bool open_device = S_ISCHR(d.now.mode) && (d.now.open_flags & O_PATH) == 0;
  const KnownDevice* device = open_device ? known_device(path_of(d)) : nullptr;
  if (device != nullptr && device->carries_messages) {
    return notes_.add(kNoRestart, "descriptor {} is {} ({}): {}", d.fd, device->what, path_of(d),
                      device->why);
  }
  if (d.kind != OpenFileKind::kOther) return {};
  return notes_.add(
      kChanged,
      "descriptor {} ({}) cannot be saved; after restart reading gives end of file and writing EPIPE", d.fd,
      path_of(d));
}

// rest: its path behind the process.
Result<void> DescriptorLosses::note_half_read(const CapturedDescriptor& d, std::string_view rest) {
  if (!half_read_lists::is_list(rest) || d.now.offset == 0) return {};
  // Lines that have been read since the attempt prepared were read with our memory in the list, as a rule.
  const auto unseen = d.offset_ahead == d.now.offset ? own_ : std::span<const AddrRange>();
  if (!half_read_lists::add(d.fd, rest, d.now.offset, unseen)) return {};
  return notes_.add(
      kChanged,
      "descriptor {} ({}) may be half read: what the program reads of it after a restart may leave "
      "out mappings, or have some twice",
      d.fd, path_of(d));
}

// What /proc says of another process, or of a thread: neither is there when the descriptor is made again.
Result<void> DescriptorLosses::note_process_file(const CapturedDescriptor& d) {
  std::string_view path(d.path, d.path_len);
  constexpr std::string_view kProc = "/proc/", kTask = "/task/";
  if (!path.starts_with(kProc)) return {};
  const long self = sys::getpid();
  auto number = [&] {
    long n = 0;
    for (; !path.empty() && path[0] >= '0' && path[0] <= '9'; path.remove_prefix(1))
      n = n * 10 + (path[0] - '0');
    return n;
  };
  path.remove_prefix(kProc.size());
  const long process = number();
  long thread = process;
  if (path.starts_with(kTask)) {
    path.remove_prefix(kTask.size());
    if (const long n = number(); n != 0) thread = n;
  }
  if (process == self && thread == self) return note_half_read(d, path);
  if (process == 0) return {};
  if (partners_.any && thread == process) return {};  // it may be in the job
  return notes_.add(
      kChanged,
      "descriptor {} ({}) is about {} {}: after a restart it is about what has that number then, or reads as "
      "of one that has ended",
      d.fd, path_of(d), process == self ? "thread" : "process", thread);
}

}  // namespace ckpt
