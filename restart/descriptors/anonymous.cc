#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>

#include "base/memory/bytes.h"
#include "restart/descriptors/builder.h"
#include "restart/restorer/clone.h"

// Open files without a file behind them: eventfd, timerfd, signalfd, epoll, pidfd, and the stand-in for all
// that cannot be saved.

namespace ckpt {
namespace {

constexpr uint32_t kPidfdThread = 0200;                      // PIDFD_THREAD, Linux 6.9
constexpr unsigned long kSetTicks = _IOW('T', 0, uint64_t);  // TFD_IOC_SET_TICKS, linux/timerfd.h

timespec to_timespec(int64_t ns) { return {ns / 1'000'000'000, ns % 1'000'000'000}; }

Error cannot_make(const ParsedOpenFile& file) {
  return make_error(ExitCode::kSystem, errno, "{} cannot be made again ({})", file.path, errno_name(errno));
}

// The last argument of timerfd_settime(2) and its flags.
std::pair<itimerspec, int> setting_of(const TimerDetail& t) {
  itimerspec spec{to_timespec(t.interval_ns), to_timespec(t.remaining_ns)};
  const bool wall_clock = t.clock == CLOCK_REALTIME || t.clock == CLOCK_REALTIME_ALARM;
  if (!wall_clock || (t.flags & TFD_TIMER_ABSTIME) == 0 || t.remaining_ns == 0) return {spec, 0};
  // A moment of the day stays that moment, also when it has passed since.
  spec.it_value = to_timespec(t.clock_ns + t.remaining_ns);
  return {spec, static_cast<int>(t.flags)};
}

int nonblocking(const ParsedOpenFile& file) { return static_cast<int>(file.record.open_flags) & O_NONBLOCK; }

}  // namespace

// Reading gives the end of the file, writing EPIPE: as if the other side had gone.
Result<ScopedFd> DescriptorBuilder::make_placeholder(const ParsedOpenFile& file) {
  int pair[2];
  const uint32_t mode = file.record.open_flags & O_ACCMODE;
  if (S_ISFIFO(file.record.mode) && mode != O_RDWR) {
    if (pipe2(pair, O_CLOEXEC) != 0) return cannot_make(file);
    ScopedFd read(pair[0]), write(pair[1]);
    fcntl(mode == O_RDONLY ? read.get() : write.get(), F_SETFL, nonblocking(file));
    return mode == O_RDONLY ? std::move(read) : std::move(write);
  }
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return cannot_make(file);
  ScopedFd made(pair[0]), other(pair[1]);
  shutdown(made.get(), SHUT_RDWR);
  fcntl(made.get(), F_SETFL, nonblocking(file));
  return made;
}

Result<ScopedFd> DescriptorBuilder::make_eventfd(const ParsedOpenFile& file) {
  static_assert(EFD_NONBLOCK == O_NONBLOCK);
  const int flags =
      EFD_CLOEXEC | EFD_NONBLOCK | ((file.record.flags & kOpenFileSemaphore) != 0 ? EFD_SEMAPHORE : 0);
  ScopedFd made(eventfd(0, flags));
  if (!made.valid()) return cannot_make(file);
  const uint64_t count = file.record.value;
  if (count != 0 && write(made.get(), &count, sizeof(count)) != sizeof(count)) return cannot_make(file);
  fcntl(made.get(), F_SETFL, nonblocking(file));
  return made;
}

Result<ScopedFd> DescriptorBuilder::make_timerfd(const ParsedOpenFile& file) {
  ScopedFd made;
  bool failed = false;
  for_each_detail<TimerDetail>(file, OpenFileDetail::kTimer, [&](const TimerDetail& t, Blob) {
    made.reset(timerfd_create(t.clock, TFD_CLOEXEC | nonblocking(file)));
    if (!made.valid()) return;
    const auto [spec, flags] = setting_of(t);
    if (t.remaining_ns != 0 || t.interval_ns != 0)
      failed = timerfd_settime(made.get(), flags, &spec, nullptr) != 0;
    if (t.ticks != 0 && !failed && ioctl(made.get(), kSetTicks, &t.ticks) != 0) {
      say("{}: {} expirations that were not read yet are lost ({})", describe(file, first_descriptor(file)),
          t.ticks, errno_name(errno));
    }
  });
  if (!made.valid() || failed) return cannot_make(file);
  return made;
}

void DescriptorBuilder::add_timers(const ParsedOpenFile& file, int fd, RestoredDescriptors& result) {
  for_each_detail<TimerDetail>(file, OpenFileDetail::kTimer, [&](const TimerDetail& t, Blob) {
    const auto [spec, flags] = setting_of(t);
    if (t.remaining_ns != 0) result.timers.push_back({fd, flags, spec, t.ticks});
  });
}

Result<ScopedFd> DescriptorBuilder::make_signalfd(const ParsedOpenFile& file) {
  sigset_t mask;
  sigemptyset(&mask);
  for (int s = 1; s <= 64; ++s) {
    // glibc's sigaddset refuses the two signals it keeps to itself; a program cannot have them here.
    if ((file.record.value >> (s - 1) & 1) != 0) sigaddset(&mask, s);
  }
  ScopedFd made(signalfd(-1, &mask, SFD_CLOEXEC | nonblocking(file)));
  if (!made.valid()) return cannot_make(file);
  return made;
}

// Of the program itself, of another process of its job, or of a child of it, which exists again as one that
// was killed. Any other is not what it was: one of a process that has ended and is gone. So is one of a
// thread that is not the first of its process: there are no other threads yet.
Result<ScopedFd> DescriptorBuilder::make_pidfd(const ParsedOpenFile& file) {
  const auto pid = static_cast<int>(file.record.value);
  const auto of_thread = file.record.open_flags & kPidfdThread;
  bool known = pid == meta_.process.record.pid;
  for (const auto& child : meta_.children) known = known || child.record.pid == pid;
  known = known || (options_.processes != nullptr && options_.processes->count(pid) != 0);
  // A process alone has been told when the checkpoint was taken.
  if (!known && pid > 0 && options_.inherited != nullptr)
    say("{}: {} {} {}: it counts as ended", describe(file, first_descriptor(file)),
        of_thread != 0 ? "thread" : "process", pid,
        of_thread != 0 ? "is not the first of a process of the job" : "is not one of the job");
  ScopedFd made;
  if (known) made.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, nonblocking(file) | of_thread)));
  if (made.valid()) return made;
  const CloneResult gone = clone_process(0, 0, 0);
  if (gone.pid == 0) _exit(0);
  if (gone.pid < 0) {
    errno = static_cast<int>(-gone.pid);
    return cannot_make(file);
  }
  made.reset(gone.pidfd);
  while (waitpid(static_cast<pid_t>(gone.pid), nullptr, __WALL) < 0 && errno == EINTR) {
  }
  fcntl(made.get(), F_SETFL, nonblocking(file));
  return made;
}

Result<ScopedFd> DescriptorBuilder::make_epoll(const ParsedOpenFile& file) {
  ScopedFd made(epoll_create1(EPOLL_CLOEXEC));
  if (!made.valid()) return cannot_make(file);
  if (nonblocking(file) != 0) fcntl(made.get(), F_SETFL, O_NONBLOCK);
  return made;
}

// A watch that has reported once (EPOLLONESHOT) reports nothing until it is set again, not even that the
// other end is gone. Only the kernel brings it into that state: by reporting something. False: nothing is
// ready there; it would report errors.
bool DescriptorBuilder::add_spent_watch(int epoll, const EpollWatchDetail& w) {
  epoll_event event{};
  event.events = w.events | EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP | EPOLLRDNORM | EPOLLWRNORM;
  event.data.u64 = w.data;
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, w.fd, &event) != 0) return false;
  epoll_event reported;
  if (epoll_wait(epoll, &reported, 1, 0) == 1) return true;
  epoll_ctl(epoll, EPOLL_CTL_DEL, w.fd, nullptr);
  return false;
}

// When every descriptor is at its number.
Result<void> DescriptorBuilder::add_watches(const ParsedOpenFile& file, int fd) {
  Result<void> result;
  constexpr uint32_t kBehaviour = EPOLLWAKEUP | EPOLLONESHOT | EPOLLET | EPOLLEXCLUSIVE;
  auto is_spent = [](const EpollWatchDetail& w) { return (w.events & ~kBehaviour) == 0 && w.events != 0; };
  // First, while the epoll has nothing else to report.
  std::set<int> spent;
  for_each_detail<EpollWatchDetail>(file, OpenFileDetail::kEpollWatch, [&](const EpollWatchDetail& w, Blob) {
    if (is_spent(w) && add_spent_watch(fd, w)) spent.insert(w.fd);
  });
  for_each_detail<EpollWatchDetail>(file, OpenFileDetail::kEpollWatch, [&](const EpollWatchDetail& w, Blob) {
    if (spent.count(w.fd) != 0) return;
    epoll_event event{};
    event.events = w.events;
    event.data.u64 = w.data;
    if (epoll_ctl(fd, EPOLL_CTL_ADD, w.fd, &event) == 0) return;
    say("{}: the watch on descriptor {} cannot be added again ({})", describe(file, fd), w.fd,
        errno_name(errno));
  });
  for_each_detail<MovedWatchDetail>(file, OpenFileDetail::kMovedWatch, [&](const MovedWatchDetail& m, Blob) {
    // For the time of the call the open file has the number that it was registered under.
    ScopedFd aside(fcntl(m.watch.fd, F_DUPFD_CLOEXEC, options_.working->first()));
    const int aside_flags = aside.valid() ? fcntl(m.watch.fd, F_GETFD) : 0;
    // The epoll itself may have that number by now.
    const int epoll = m.watch.fd == fd ? aside.get() : fd;
    epoll_event event{};
    event.events = m.watch.events;
    event.data.u64 = m.watch.data;
    const bool added =
        dup2(m.now, m.watch.fd) == m.watch.fd && epoll_ctl(epoll, EPOLL_CTL_ADD, m.watch.fd, &event) == 0;
    const int error = errno;
    if (!aside.valid())
      close(m.watch.fd);
    else
      dup3(aside.get(), m.watch.fd, (aside_flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
    if (!added)
      say("{}: the watch on what was descriptor {} cannot be added again ({})", describe(file, fd),
          m.watch.fd, errno_name(error));
  });
  return result;
}

}  // namespace ckpt
