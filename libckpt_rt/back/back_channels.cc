// Going back as a member of a job: pipes, sockets and terminals that several members have a part in.
// `ckpt back` names one of them for each thing that is to be done (cli/back/descriptors/channel_plan.h).
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/raii_fd.h"
#include "libckpt_rt/back/back_run.h"
#include "libckpt_rt/back/back_terminal.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

constexpr size_t kScratch = 4096;
constexpr long kSendRoom = 32 << 20;

// A process that can read a pipe can open its writing end too, unless its user has changed.
int open_writing_end(int reading, bool packets) {
  char path[64];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/thread-self/fd/{}", reading).out = '\0';
  const long fd = sys::call(__NR_openat, AT_FDCWD, path, O_WRONLY | O_NONBLOCK | O_CLOEXEC, 0L);
  // open(2) refuses the flag there.
  if (packets && !sys::failed(fd)) sys::call(__NR_fcntl, fd, F_SETFL, O_NONBLOCK | O_DIRECT);
  return static_cast<int>(fd);
}

long refill_pipe(const BackDescriptorOp& op, const std::byte* data) {
  const ScopedFd writing(open_writing_end(op.fd, (op.a & kRefillPacket) != 0));
  if (!writing.valid()) return writing.get();
  std::byte scratch[kScratch];
  const bool empty_it = (op.a & kRefillMore) == 0;
  for (int waiting = 0; empty_it && sys::call(__NR_ioctl, op.fd, FIONREAD, &waiting) == 0 && waiting > 0;) {
    const auto part = std::min(static_cast<size_t>(waiting), sizeof(scratch));
    if (sys::call(__NR_read, op.fd, scratch, part) <= 0) break;
  }
  if (op.b != 0 && sys::call(__NR_fcntl, writing.get(), F_GETPIPE_SZ, 0L) != op.b) {
    const long r = sys::call(__NR_fcntl, writing.get(), F_SETPIPE_SZ, op.b);
    if (sys::failed(r)) return r;
  }
  for (uint64_t done = 0; done < op.bytes;) {
    const long r = sys::call(__NR_write, writing.get(), data + done, op.bytes - done);
    if (r <= 0) return r == 0 ? -EIO : r;
    done += static_cast<uint64_t>(r);
  }
  return 0;
}

// Sends one message, or bytes of a stream, once more.
long send_again(const BackDescriptorOp& op, const std::byte* data) {
  constexpr int kLongestWait = 2000;  // ms, of the kernel for its own loopback
  int room = 0;
  uint32_t length = sizeof(room);
  sys::call(__NR_getsockopt, op.fd, SOL_SOCKET, SO_SNDBUF, &room, &length);
  bool enlarged = false;
  long r = 0;
  for (uint64_t done = 0, sent_once = 0; done < op.bytes || sent_once == 0;) {
    r = sys::call(__NR_sendto, op.fd, data + done, op.bytes - done, MSG_DONTWAIT | MSG_NOSIGNAL, 0L, 0L);
    if (r >= 0) {
      sent_once = 1;
      done += static_cast<uint64_t>(r);
      continue;
    }
    if (r == -EINTR) continue;
    if (r != -EAGAIN) break;
    if (!enlarged) {
      const auto more = static_cast<int>(kSendRoom);
      if (sys::call(__NR_setsockopt, op.fd, SOL_SOCKET, SO_SNDBUFFORCE, &more, sizeof(more)) != 0)
        sys::call(__NR_setsockopt, op.fd, SOL_SOCKET, SO_SNDBUF, &more, sizeof(more));
      enlarged = true;
      continue;
    }
    pollfd writable{op.fd, POLLOUT, 0};
    const timespec longest{kLongestWait / 1000, 0};
    if (sys::call(__NR_ppoll, &writable, 1L, &longest, 0L, 0L) != 1) break;
  }
  if (enlarged) {
    const int half = room / 2;  // the kernel doubles what it is given
    if (sys::call(__NR_setsockopt, op.fd, SOL_SOCKET, SO_SNDBUFFORCE, &half, sizeof(half)) != 0)
      sys::call(__NR_setsockopt, op.fd, SOL_SOCKET, SO_SNDBUF, &half, sizeof(half));
  }
  return r < 0 ? r : 0;
}

long set_foreground(int group) {
  const ScopedFd terminal(static_cast<int>(
      sys::call(__NR_openat, AT_FDCWD, "/dev/tty", O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC, 0L)));
  if (!terminal.valid()) return terminal.get();
  return sys::call(__NR_ioctl, terminal.get(), TIOCSPGRP, &group);
}

}  // namespace

// Steps that may fail are tried before the commit.
Result<void> BackRun::check_channels() {
  if (!gate_.is_open()) return {};
  opened_ = static_cast<OpenedConnection*>(
      arena_.allocate((head_.descriptor_count + 1) * sizeof(OpenedConnection)));
  if (opened_ == nullptr)
    return make_error(ExitCode::kInternal, ENOMEM, "no memory for the list of connections");
  descriptor_error_ = 0;
  threads_.run_on(
      *threads_.executor(),
      [](void* self) {
        auto& run = *static_cast<BackRun*>(self);
        for (const BackDescriptorOp& op :
             run.list<BackDescriptorOp>(run.head_.descriptors, run.head_.descriptor_count)) {
          if (static_cast<BackDescriptor>(op.kind) != BackDescriptor::kRefill) continue;
          const ScopedFd writing(open_writing_end(op.fd, false));
          long r = writing.get();
          if (writing.valid()) {
            r = sys::call(__NR_fcntl, writing.get(), F_GETPIPE_SZ, 0L);
            if (r < op.b) r = sys::call(__NR_fcntl, writing.get(), F_SETPIPE_SZ, op.b);
          }
          if (!sys::failed(r)) continue;
          run.descriptor_error_ = r;
          run.descriptor_at_ = static_cast<uint64_t>(op.fd);
        }
      },
      this);
  if (descriptor_error_ == 0) return {};
  return make_error(
      ExitCode::kUnsupported, static_cast<int>(descriptor_error_),
      "what was in the pipe of descriptor {} cannot be written into it again ({}); the job goes on as it was",
      descriptor_at_, errno_name(static_cast<int>(descriptor_error_)));
}

long BackRun::change_channel(const BackDescriptorOp& op) {
  const std::byte* data = plan_ + op.data;
  switch (static_cast<BackDescriptor>(op.kind)) {
    case BackDescriptor::kRefill:
      return refill_pipe(op, data);
    case BackDescriptor::kDrain:
      return drain(op);
    case BackDescriptor::kSend:
      return send_again(op, data);
    case BackDescriptor::kGroup:
      return sys::call(__NR_setpgid, 0L, op.a);
    case BackDescriptor::kForeground:
      return set_foreground(static_cast<int>(op.a));
    case BackDescriptor::kFlush:
      return back_terminal::empty(op.fd, {data, op.bytes});
    default:
      return -EINVAL;
  }
}

// Descriptors that came with a message are dropped with it.
long BackRun::drain(const BackDescriptorOp& op) const {
  std::byte scratch[kScratch];
  constexpr size_t kMuch = 1 << 20;
  const bool tcp = op.a != 0;
  // Of TCP the bytes are dropped, not copied.
  const size_t at_once = tcp ? kMuch : sizeof(scratch);
  const int flags = MSG_DONTWAIT | (tcp ? MSG_TRUNC : 0);
  for (uint32_t empty = 0; empty < 4096;) {
    const long r = sys::call(__NR_recvfrom, op.fd, scratch, at_once, flags, 0L, 0L);
    if (r < 0 && r != -EINTR) return 0;
    // The end of a stream, or a message without a byte.
    if (r == 0) ++empty;
    if (r == 0 && tcp) return 0;
  }
  return 0;
}

void BackRun::drain_all() {
  for (const BackDescriptorOp& op : list<BackDescriptorOp>(head_.descriptors, head_.descriptor_count)) {
    if (static_cast<BackDescriptor>(op.kind) == BackDescriptor::kDrain) drain(op);
  }
}

// A receiver with a small buffer takes little at a time, and a corked sender waits for more bytes. Where
// draining takes long, both are changed until close_connections(). Not without need: a sender that has once
// seen a large window later waits for more room than a small buffer ever has.
void BackRun::open_connections() {
  for (const BackDescriptorOp& op : list<BackDescriptorOp>(head_.descriptors, head_.descriptor_count)) {
    if (static_cast<BackDescriptor>(op.kind) != BackDescriptor::kDrain || op.a == 0) continue;
    OpenedConnection& c = opened_[opened_count_++];
    c = {op.fd, ReceiveRoom(op.fd), {}};
    c.room.enlarge();
    c.held_back = send_at_once(op.fd);
  }
}

void BackRun::close_connections() {
  for (uint32_t i = 0; i < opened_count_; ++i) {
    opened_[i].room.put_back();
    hold_back_again(opened_[i].fd, opened_[i].held_back);
  }
}

// All that was sent has arrived where it is taken out.
bool BackRun::all_sent() {
  bool all = true;
  struct Look {
    BackRun& run;
    bool& all;
  } look{*this, all};
  threads_.run_on(
      *threads_.executor(),
      [](void* l) {
        auto& [run, sent] = *static_cast<Look*>(l);
        for (const BackDescriptorOp& op :
             run.list<BackDescriptorOp>(run.head_.descriptors, run.head_.descriptor_count)) {
          if (static_cast<BackDescriptor>(op.kind) != BackDescriptor::kDrain || op.a == 0) continue;
          int waiting = 0;
          if (sys::call(__NR_ioctl, op.fd, SIOCOUTQ, &waiting) == 0 && waiting != 0) sent = false;
        }
      },
      &look);
  return all;
}

}  // namespace ckpt
