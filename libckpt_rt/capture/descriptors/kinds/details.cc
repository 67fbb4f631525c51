#include <fmt/core.h>
#include <sys/timerfd.h>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "libckpt_rt/capture/descriptors/kinds/classifier.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

// What fdinfo says of one descriptor, as details of its record.

namespace ckpt {
namespace {

// "lock:\t1: POSIX  ADVISORY  WRITE 123 fe:00:456 0 EOF". One that waits for another is none.
void put_lock(CapturedDescriptor& d, std::string_view line, ByteWriter& out) {
  LockDetail lock{};
  if (line.find("->") != std::string_view::npos) return;
  lock.kind =
      static_cast<uint32_t>(line.find("LEASE") != std::string_view::npos    ? FileLockKind::kLease
                            : line.find("FLOCK") != std::string_view::npos  ? FileLockKind::kFlock
                            : line.find("OFDLCK") != std::string_view::npos ? FileLockKind::kOpenFileLock
                                                                            : FileLockKind::kPosix);
  d.has_lease = d.has_lease || lock.kind == static_cast<uint32_t>(FileLockKind::kLease);
  lock.write = line.find(" WRITE ") != std::string_view::npos;
  const size_t last = line.rfind(' ');
  const size_t before = last == std::string_view::npos ? last : line.rfind(' ', last - 1);
  uint64_t first = 0, end = 0;
  if (before == std::string_view::npos || !number_after(line.substr(before), " ", 10, first)) return;
  lock.start = first;
  if (number_after(line.substr(last), " ", 10, end)) lock.length = end - first + 1;
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kLock), sizeof(lock)});
  out.put(lock);
}

// True: the line is the first that fdinfo has of a timer.
bool read_timer(std::string_view line, TimerDetail& timer) {
  uint64_t a = 0, b = 0;
  if (number_after(line, "clockid:", 10, a)) {
    timer.clock = static_cast<int32_t>(a);
    timer.clock_ns = now_ns(timer.clock == CLOCK_REALTIME_ALARM   ? CLOCK_REALTIME
                            : timer.clock == CLOCK_BOOTTIME_ALARM ? CLOCK_BOOTTIME
                                                                  : timer.clock);
    return true;
  }
  if (number_after(line, "ticks:", 10, a)) {
    timer.ticks = a;
  } else if (number_after(line, "settime flags:", 8, a)) {
    timer.flags = static_cast<uint32_t>(a);
  } else if (number_after(line, "it_value: (", 10, a) && number_after(line, ",", 10, b)) {
    timer.remaining_ns = static_cast<int64_t>(a * 1'000'000'000 + b);
  } else if (number_after(line, "it_interval: (", 10, a) && number_after(line, ",", 10, b)) {
    timer.interval_ns = static_cast<int64_t>(a * 1'000'000'000 + b);
  }
  return false;
}

}  // namespace

Result<void> Classifier::read_details(CapturedDescriptor& d, const FdInfo& info) {
  d.has_locks = info.has_locks;
  d.has_lease = false;
  if (d.kind == OpenFileKind::kEventFd) {
    d.value = info.eventfd_count;
    d.flags &= ~static_cast<uint32_t>(kOpenFileSemaphore);
    if (info.eventfd_semaphore > 0) d.flags |= kOpenFileSemaphore;
    d.details = nullptr;
    d.details_len = 0;
    return {};
  }
  if (d.kind == OpenFileKind::kPidFd) {
    d.value = static_cast<uint64_t>(info.pidfd);
    return {};
  }
  if (watches_files(d.kind)) return watches_.keep(d, info.text);
  ByteWriter out(files_.arena());
  TimerDetail timer{};
  bool has_timer = false;
  std::string_view text = info.text, line;
  while (next_line(text, line)) {
    if (line.starts_with("lock:")) {
      put_lock(d, line, out);
      continue;
    }
    const size_t at = static_cast<size_t>(line.data() - info.text.data());
    auto is_watch = epolls_.put(d, line, info.text.substr(0, at), out);
    if (!is_watch.ok()) return is_watch.error();
    if (!*is_watch && read_timer(line, timer)) has_timer = true;
  }
  if (has_timer) {
    take_up_timer(d, timer);
    out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kTimer), sizeof(timer)});
    out.put(timer);
  }
  if (!out.ok()) return arena_full(files_.arena());
  d.details = out.span().data();
  d.details_len = static_cast<uint32_t>(out.size());
  if (d.kind == OpenFileKind::kSignalFd) d.value = info.signal_mask;
  return {};
}

// A periodic timer that has expired, of which nothing was read yet, does not run: fdinfo says that nothing is
// left of its time. Asked for it, the kernel counts what has gone by since, and starts it again, as at a
// read.
void Classifier::take_up_timer(const CapturedDescriptor& d, TimerDetail& timer) {
  if (timer.ticks == 0 || timer.interval_ns == 0 || timer.remaining_ns != 0) return;
  const ScopedFd own(access_.borrow(d));
  itimerspec left{};
  if (!own.valid() || sys::call(__NR_timerfd_gettime, own.get(), &left) != 0) return;
  timer.remaining_ns = left.it_value.tv_sec * 1'000'000'000L + left.it_value.tv_nsec;
  char path[64], text[512];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/thread-self/fdinfo/{}", own.get()).out = '\0';
  const long n = read_small_file(path, text, sizeof(text));
  uint64_t ticks = 0;
  if (n > 0 && number_after(line_of({text, static_cast<size_t>(n)}, "\nticks:"), "", 10, ticks))
    timer.ticks = ticks;
}

}  // namespace ckpt
