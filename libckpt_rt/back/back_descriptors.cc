// Going back: descriptors. A parked thread changes them, for it has the program's descriptor table; the agent
// has its own. The limit on descriptors is the process's: the agent sets it.
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "libckpt_rt/back/back_run.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {
constexpr uint32_t kAtOnce = 64;  // descriptors in one message

// Sets the size of the checkpoint. The kernel makes no pipe smaller than what it holds.
long set_pipe_size(const BackDescriptorOp& op) {
  const long now = sys::call(__NR_fcntl, op.fd, F_GETPIPE_SZ, 0L);
  if (op.b == 0 || now == op.b) return 0;
  const long r = sys::call(__NR_fcntl, op.fd, F_SETPIPE_SZ, op.b);
  return sys::failed(r) ? r : 0;
}

long set_timer(const BackDescriptorOp& op, const std::byte* data) {
  constexpr long kSetTicks = _IOW('T', 0, uint64_t);  // TFD_IOC_SET_TICKS, linux/timerfd.h
  const long r = sys::call(__NR_timerfd_settime, op.fd, op.a, data, 0L);
  const auto ticks = static_cast<uint64_t>(op.b);
  if (sys::failed(r) || ticks == 0 || !sys::failed(sys::call(__NR_ioctl, op.fd, kSetTicks, &ticks))) return r;
  // This kernel has no such ioctl: a timer that has expired and does not run any more expires once more.
  itimerspec once;
  std::memcpy(&once, data, sizeof(once));
  if (once.it_value.tv_sec != 0 || once.it_value.tv_nsec != 0) return 0;
  once.it_value.tv_nsec = 1;
  return sys::call(__NR_timerfd_settime, op.fd, 0L, &once, 0L);
}

long set_event(const BackDescriptorOp& op) {
  uint64_t value = 0;
  // A semaphore gives one at a time.
  const long status = sys::call(__NR_fcntl, op.fd, F_GETFL, 0L);
  sys::call(__NR_fcntl, op.fd, F_SETFL, status | O_NONBLOCK);
  while (sys::call(__NR_read, op.fd, &value, sizeof(value)) == sizeof(value)) {
  }
  value = static_cast<uint64_t>(op.a);
  const long r = value != 0 ? sys::call(__NR_write, op.fd, &value, sizeof(value)) : 0;
  sys::call(__NR_fcntl, op.fd, F_SETFL, status);
  return std::min(r, 0L);
}

// What waits in the pipe is taken out, and what waited in it is put there.
long fill_pipe(const BackDescriptorOp& op, const std::byte* data) {
  char scratch[4096];
  for (int waiting = 0; sys::call(__NR_ioctl, op.a, FIONREAD, &waiting) == 0 && waiting > 0;) {
    if (sys::call(__NR_read, op.a, scratch, std::min(static_cast<size_t>(waiting), sizeof(scratch))) <= 0)
      break;
  }
  set_pipe_size(op);
  // Bytes that do not fit are an error: nobody would ever read them, for all threads are parked.
  const long status = sys::call(__NR_fcntl, op.fd, F_GETFL, 0L);
  sys::call(__NR_fcntl, op.fd, F_SETFL, status | O_NONBLOCK);
  long r = 0;
  for (uint64_t done = 0; done < op.bytes && r >= 0;) {
    r = sys::call(__NR_write, op.fd, data + done, op.bytes - done);
    if (r > 0) done += static_cast<uint64_t>(r);
  }
  sys::call(__NR_fcntl, op.fd, F_SETFL, status);
  return std::min(r, 0L);
}

long write_content(const BackDescriptorOp& op, const std::byte* data) {
  long r = 0;
  for (uint64_t done = 0; done < op.bytes && r >= 0;) {
    r = sys::call(__NR_pwrite64, op.fd, data + done, op.bytes - done, op.a + static_cast<int64_t>(done));
    if (r > 0) done += static_cast<uint64_t>(r);
  }
  return std::min(r, 0L);
}

}  // namespace

// The program may have lowered its limit since. A limit that cannot be raised again must be known before
// there is no way back.
Result<void> BackRun::check_descriptor_limit() {
  for (const BackDescriptorOp& op : list<BackDescriptorOp>(head_.descriptors, head_.descriptor_count)) {
    const auto kind = static_cast<BackDescriptor>(op.kind);
    if (kind == BackDescriptor::kDup || kind == BackDescriptor::kPlace)
      most_descriptors_ = std::max(most_descriptors_, static_cast<uint64_t>(op.fd) + 1);
  }
  rlimit64 now{};
  if (sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, 0L, &now) != 0 || most_descriptors_ <= now.rlim_max)
    return {};
  const rlimit64 more{now.rlim_cur, most_descriptors_};
  const long r = sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, &more, 0L);
  if (r == 0) sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, &now, 0L);
  if (r == 0) return {};
  return make_error(
      ExitCode::kUnavailable, static_cast<int>(r),
      "its limit on descriptors (ulimit -Hn) is {} now, and descriptor {} was in use; the program "
      "goes on as it was",
      now.rlim_max, most_descriptors_ - 1);
}

// Until restore_rest() sets what it was.
void BackRun::raise_descriptor_limit() {
  rlimit64 now{};
  if (sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, 0L, &now) != 0) return;
  const uint64_t hard = std::max(now.rlim_max, most_descriptors_);
  const rlimit64 more{std::max(now.rlim_cur, most_descriptors_), hard};
  sys::call(__NR_prlimit64, 0L, RLIMIT_NOFILE, &more, 0L);
}

// Enlarges a pipe that was larger now, before the commit, since the kernel may refuse it. (If the program
// does not go back after all, a larger pipe does not harm it.)
void BackRun::enlarge_pipes_on_thread(void* self) {
  auto& run = *static_cast<BackRun*>(self);
  for (const BackDescriptorOp& op :
       run.list<BackDescriptorOp>(run.head_.descriptors, run.head_.descriptor_count)) {
    if (static_cast<BackDescriptor>(op.kind) != BackDescriptor::kPipe) continue;
    // The number may still be that of another file: then the pipe is a new one, of full size.
    const long now = sys::call(__NR_fcntl, op.fd, F_GETPIPE_SZ, 0L);
    if (sys::failed(now) || now >= op.b) continue;
    const long r = set_pipe_size(op);
    if (r == 0) continue;
    run.descriptor_error_ = r;
    run.descriptor_at_ = static_cast<uint64_t>(op.fd);
    return;
  }
}

Result<void> BackRun::receive_descriptors() {
  threads_.run_on(*threads_.executor(), &enlarge_pipes_on_thread, this);
  if (descriptor_error_ != 0) {
    return make_error(
        ExitCode::kUnavailable, static_cast<int>(descriptor_error_),
        "pipe {} was larger and cannot be made so again ({}): see /proc/sys/fs/pipe-max-size; the "
        "program goes on as it was",
        descriptor_at_, errno_name(static_cast<int>(descriptor_error_)));
  }
  if (head_.received == 0) return {};
  received_ = static_cast<int*>(arena_.allocate(head_.received * sizeof(int)));
  if (received_ == nullptr)
    return make_error(ExitCode::kInternal, ENOMEM, "no memory for the list of descriptors");
  threads_.run_on(*threads_.executor(), &receive_on_thread, this);
  if (descriptor_error_ == 0) return {};
  return make_error(
      ExitCode::kUnavailable, static_cast<int>(descriptor_error_),
      "descriptors that were closed since cannot be handed over ({}): raise ulimit -n; the program goes "
      "on as it was",
      errno_name(static_cast<int>(descriptor_error_)));
}

void BackRun::receive_on_thread(void* self) {
  auto& run = *static_cast<BackRun*>(self);
  const long fd = sys::call(__NR_socket, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0L);
  uint32_t got = 0;
  auto receive_all = [&]() -> long {
    if (sys::failed(fd)) return fd;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    auto end = fmt::format_to_n(address.sun_path + 1, sizeof(address.sun_path) - 1, "ckpt_back.{:016x}",
                                run.head_.cookie);
    const size_t length = offsetof(sockaddr_un, sun_path) + 1 + end.size;
    // An asker that is stopped: the threads are not to stand for ever.
    const timeval patience{120, 0};
    sys::call(__NR_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (long r = sys::call(__NR_connect, fd, &address, length); r != 0) return r;
    // Another user may have taken the name of an asker that has died.
    struct {
      int32_t pid;
      uint32_t uid, gid;
    } peer{};
    socklen_t size = sizeof(peer);
    if (long r = sys::call(__NR_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &size); r != 0) return r;
    if (peer.uid != 0 && peer.uid != static_cast<uint32_t>(sys::call(__NR_geteuid))) return -EPERM;
    while (got < run.head_.received) {
      char byte = 0;
      iovec part{&byte, 1};
      alignas(cmsghdr) char control[CMSG_SPACE(kAtOnce * sizeof(int))];
      msghdr message{};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      const long n = sys::call(__NR_recvmsg, fd, &message, MSG_CMSG_CLOEXEC);
      if (n == -EINTR) continue;
      if (n <= 0) return n == 0 ? -EPIPE : n;
      const cmsghdr* c = CMSG_FIRSTHDR(&message);
      if (c == nullptr || c->cmsg_type != SCM_RIGHTS) return -EMFILE;
      const auto count = static_cast<uint32_t>((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      long error = 0;
      for (uint32_t i = 0; i < count; ++i) {
        int low;
        std::memcpy(&low, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        // Out of the way of the numbers that are to be filled.
        const long high =
            error != 0 || got == run.head_.received
                ? -EMFILE
                : sys::call(__NR_fcntl, low, static_cast<long>(F_DUPFD_CLOEXEC), long{run.head_.first_free});
        sys::call(__NR_close, low);
        if (sys::failed(high)) {
          error = error != 0 ? error : high;
          continue;
        }
        run.received_[got++] = static_cast<int>(high);
      }
      if (error != 0) return error;
    }
    return 0;
  };
  run.descriptor_error_ = receive_all();
  run.received_count_ = got;
  if (!sys::failed(fd)) sys::call(__NR_close, fd);
}

// The program goes on as it was: what it has received must not stay open in it.
void BackRun::close_received() {
  if (received_count_ == 0) return;
  threads_.run_on(
      *threads_.executor(),
      [](void* self) {
        auto& run = *static_cast<BackRun*>(self);
        for (uint32_t i = 0; i < run.received_count_; ++i) sys::call(__NR_close, run.received_[i]);
      },
      this);
}

void BackRun::change_descriptors() {
  descriptor_error_ = 0;
  raise_descriptor_limit();
  threads_.run_on(*threads_.executor(), &change_on_thread, this);
  if (descriptor_error_ != 0) die("changing a descriptor", descriptor_error_, descriptor_at_);
}

// Pages behind the end of a file cannot be written. What the program has made shorter since gets its length
// before memory is put back; if it cannot, putting back says so.
void BackRun::lengthen_files() {
  threads_.run_on(
      *threads_.executor(),
      [](void* self) {
        const auto& run = *static_cast<BackRun*>(self);
        for (const BackDescriptorOp& op :
             run.list<BackDescriptorOp>(run.head_.descriptors, run.head_.descriptor_count)) {
          struct stat now {};
          if (op.kind == static_cast<uint32_t>(BackDescriptor::kSize) && op.b >= 0 &&
              sys::call(__NR_fstat, op.b, &now) == 0 && now.st_size < op.a)
            sys::call(__NR_ftruncate, op.b, op.a);
        }
      },
      this);
}

void BackRun::change_on_thread(void* self) {
  auto& run = *static_cast<BackRun*>(self);
  for (const BackDescriptorOp& op :
       run.list<BackDescriptorOp>(run.head_.descriptors, run.head_.descriptor_count)) {
    if (op.part != run.part_ || run.change_descriptor(op)) continue;
    run.descriptor_at_ = static_cast<uint64_t>(op.fd);
    break;
  }
  // All that was sent has arrived before the first barrier, and draining has gone on until then. Bytes that
  // came last are taken out here, in the second part.
  if (run.part_ == 1) run.drain_all();
  for (uint32_t i = 0; run.part_ == 0 && i < run.head_.received; ++i) sys::call(__NR_close, run.received_[i]);
}

bool BackRun::change_descriptor(const BackDescriptorOp& op) {
  const std::byte* data = plan_ + op.data;
  auto flags = [&] { return op.b != 0 ? O_CLOEXEC : 0; };
  long r = 0;
  switch (static_cast<BackDescriptor>(op.kind)) {
    case BackDescriptor::kClose:
      sys::call(__NR_close, op.fd);
      return true;
    case BackDescriptor::kDup:
      r = sys::call(__NR_dup3, op.a, op.fd, flags());
      break;
    case BackDescriptor::kPlace:
      r = sys::call(__NR_dup3, received_[op.a], op.fd, flags());
      break;
    case BackDescriptor::kFlags:
      r = sys::call(__NR_fcntl, op.fd, F_SETFD, op.a);
      break;
    case BackDescriptor::kStatus:
      r = sys::call(__NR_fcntl, op.fd, F_SETFL, op.a);
      break;
    case BackDescriptor::kSeek:
      r = sys::call(__NR_lseek, op.fd, op.a, SEEK_SET);
      if (r >= 0) r = 0;
      break;
    case BackDescriptor::kEvent:
      r = set_event(op);
      break;
    case BackDescriptor::kTimer:
      r = set_timer(op, data);
      break;
    case BackDescriptor::kSignals: {
      const auto mask = static_cast<uint64_t>(op.a);
      r = sys::call(__NR_signalfd4, op.fd, &mask, 8L, 0L);
      if (r >= 0) r = 0;
      break;
    }
    case BackDescriptor::kPipe:
      r = fill_pipe(op, data);
      break;
    case BackDescriptor::kEpoll:
      r = sys::call(__NR_epoll_ctl, op.fd, op.a, op.b, data);
      // The kernel has removed the watch already, if the last descriptor of the watched file was closed.
      if (op.a == EPOLL_CTL_DEL) r = 0;
      break;
    case BackDescriptor::kSize:
      r = sys::call(__NR_ftruncate, op.fd, op.a);
      break;
    case BackDescriptor::kContent:
      r = write_content(op, data);
      break;
    case BackDescriptor::kDirectory:
      r = sys::call(__NR_chdir, data);
      break;
    case BackDescriptor::kEnter:
      r = sys::call(__NR_fchdir, received_[op.a]);
      break;
    case BackDescriptor::kUmask:
      sys::call(__NR_umask, op.a);
      break;
    case BackDescriptor::kLock:
      sys::call(__NR_fcntl, op.fd, F_SETLK, data);
      break;
    case BackDescriptor::kRefill:
    case BackDescriptor::kDrain:
    case BackDescriptor::kSend:
    case BackDescriptor::kGroup:
    case BackDescriptor::kForeground:
    case BackDescriptor::kFlush:
      r = change_channel(op);
      break;
    default:
      r = -EINVAL;
  }
  descriptor_error_ = r < 0 ? r : 0;
  return r >= 0;
}

}  // namespace ckpt
