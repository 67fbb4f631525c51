// Calls that move bytes and were cut short by the checkpoint's signal, or by one that nobody handles: without
// us they would have gone on. Used in the handler: raw system calls only.
//
// A result is a part only if the kernel would have waited for all: writes to a blocking pipe, socket or
// terminal; reads of a socket with MSG_WAITALL; reads of a memory device. On these the kernel returns less
// only after a signal, the end of the stream, or a socket's time-out, or after an error that the next call
// reports. The next attempt meets the same error or end; then the part is returned, as it would have been. A
// socket reports an error only once, so a socket that has one is left alone.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/time.h>

#include "base/sys.h"
#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/waits/interrupted_call.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::progress {
namespace {

constexpr long kMaxTransfer = 0x7ffff000;  // MAX_RW_COUNT: the kernel moves no more at once

int message_flags(const InterruptibleCall& call) {
  switch (call.nr) {
    case __NR_sendto:
    case __NR_recvfrom:
    case __NR_sendmmsg:
    case __NR_recvmmsg:
      return static_cast<int>(call.args[3]);
    case __NR_sendmsg:
    case __NR_recvmsg:
      return static_cast<int>(call.args[2]);
    default:
      return 0;
  }
}

bool receives(const InterruptibleCall& call) {
  return call.nr == __NR_recvfrom || call.nr == __NR_recvmsg || call.nr == __NR_recvmmsg;
}

bool socket_time_is_up(const InterruptibleCall& call) {
  bool in = call.timeout_kind == Timeout::kSocketReceive;
  if (!in && call.timeout_kind != Timeout::kSocketSend) return false;
  timeval limit{};
  uint32_t size = sizeof(limit);
  if (sys::call(__NR_getsockopt, call.args[0], SOL_SOCKET, in ? SO_RCVTIMEO : SO_SNDTIMEO, &limit, &size) !=
      0) {
    return false;
  }
  int64_t ns = (int64_t{limit.tv_sec} * 1'000'000 + limit.tv_usec) * 1000;
  return ns != 0 && program_time_in_handler(CLOCK_MONOTONIC) >= begin_in_handler(call.begin) + ns;
}

bool socket_has_error(int fd) {
  pollfd p{fd, 0, 0};
  timespec now{};
  return sys::call(__NR_ppoll, &p, 1L, &now, 0L, 8L) == 1 && (p.revents & POLLERR) != 0;
}

// recvmmsg that is interrupted after some messages leaves the interruption as the socket's error.
void forget_interruption(int fd) {
  int error = 0;
  uint32_t size = sizeof(error);
  sys::call(__NR_getsockopt, static_cast<long>(fd), SOL_SOCKET, SO_ERROR, &error, &size);
}

// Would the kernel have waited on this descriptor until all was written, or read?
bool waits_for_all(const InterruptibleCall& call, int fd) {
  const int message = message_flags(call);
  if ((message & MSG_DONTWAIT) != 0) return false;
  if (receives(call)) {
    if ((message & MSG_PEEK) != 0) return false;
    if (call.nr == __NR_recvmmsg ? (message & MSG_WAITFORONE) != 0 : (message & MSG_WAITALL) == 0)
      return false;
  }
  struct stat st;
  if (sys::call(__NR_fstat, static_cast<long>(fd), &st) != 0) return false;
  if (call.progress == Progress::kMemoryDevice) return S_ISCHR(st.st_mode) && major(st.st_rdev) == 1;
  if (!S_ISFIFO(st.st_mode) && !S_ISSOCK(st.st_mode) && !S_ISCHR(st.st_mode)) return false;
  long flags = sys::call(__NR_fcntl, static_cast<long>(fd), F_GETFL, 0L);
  if (flags < 0 || (flags & O_NONBLOCK) != 0) return false;
  return !S_ISSOCK(st.st_mode) || !socket_time_is_up(call);
}

size_t total(const iovec* v, size_t n) {
  size_t sum = 0;
  for (size_t i = 0; i < n; ++i) sum += v[i].iov_len;
  return sum;
}

// sendmmsg counts a message of which a part was sent.
bool sent_in_part(const InterruptibleCall& call, long count) {
  const mmsghdr& last = reinterpret_cast<const mmsghdr*>(call.args[1])[count - 1];
  return last.msg_len < total(last.msg_hdr.msg_iov, last.msg_hdr.msg_iovlen);
}

// The call's arguments are already those for the messages behind it.
void send_rest_of_message(InterruptibleCall& call) {
  const mmsghdr& last = reinterpret_cast<const mmsghdr*>(call.args[1])[-1];
  call.scratch->message = last.msg_hdr;
  call.scratch->all = last.msg_hdr.msg_iov;
  call.scratch->all_count = last.msg_hdr.msg_iovlen;
  call.vector_done = last.msg_len;
  call.call_nr = call.nr;
  for (int i = 0; i < 6; ++i) call.call_args[i] = call.args[i];
  call.phase = Phase::kMessageRest;
  call.nr = __NR_sendmsg;
  call.args[2] = call.args[3];  // flags
  next_pieces(call);
}

}  // namespace

bool next_pieces(InterruptibleCall& call) {
  VectorScratch& s = *call.scratch;
  size_t skip = call.vector_done, n = 0, i = 0;
  while (i < s.all_count && skip >= s.all[i].iov_len) skip -= s.all[i++].iov_len;
  for (; i < s.all_count && n < VectorScratch::kPieces; ++i, ++n, skip = 0) {
    s.pieces[n] = {static_cast<char*>(s.all[i].iov_base) + skip, s.all[i].iov_len - skip};
  }
  if (n == 0) return false;
  if (call.progress == Progress::kMessage || call.phase == Phase::kMessageRest) {
    s.message.msg_iov = s.pieces;
    s.message.msg_iovlen = n;
    // Control data went with the first part.
    s.message.msg_control = nullptr;
    s.message.msg_controllen = 0;
    call.args[1] = reinterpret_cast<long>(&s.message);
  } else {
    call.args[1] = reinterpret_cast<long>(s.pieces);
    call.args[2] = static_cast<long>(n);
  }
  return true;
}

bool is_part(InterruptibleCall& call, long result) {
  if (call.progress == Progress::kNone || call.phase == Phase::kSocketWait) return false;
  if (call.phase == Phase::kMessageRest) {
    auto* m = reinterpret_cast<const msghdr*>(call.args[1]);
    return static_cast<size_t>(result) < total(m->msg_iov, m->msg_iovlen) &&
           !socket_has_error(static_cast<int>(call.args[0]));
  }
  long wanted = 0;
  switch (call.progress) {
    case Progress::kNone:
      return false;
    case Progress::kMemoryDevice:
    case Progress::kRandom:
      // The kernel looks for signals when it is through with a page.
      if (result % 4096 != 0) return false;
      wanted = call.progress == Progress::kRandom ? call.args[1] : call.args[2];
      break;
    case Progress::kBytes:
    case Progress::kMessages:
      wanted = call.args[2];
      break;
    case Progress::kCount:
      wanted = call.args[3];
      break;
    case Progress::kVector:
      wanted = static_cast<long>(
          total(reinterpret_cast<const iovec*>(call.args[1]), static_cast<size_t>(call.args[2])));
      break;
    case Progress::kMessage: {
      auto* m = reinterpret_cast<const msghdr*>(call.args[1]);
      wanted = static_cast<long>(total(m->msg_iov, m->msg_iovlen));
      break;
    }
  }
  // As unsigned: an absurd length is cut by the kernel to the same maximum.
  if (static_cast<unsigned long>(wanted) > kMaxTransfer) wanted = kMaxTransfer;
  const bool last_in_part = call.nr == __NR_sendmmsg && sent_in_part(call, result);
  if (result >= wanted && !last_in_part) return false;
  if (call.progress == Progress::kRandom) return true;
  int fd = static_cast<int>(call.args[0]);
  if (!waits_for_all(call, fd)) return false;
  if (call.nr != __NR_recvmmsg) return !socket_has_error(fd);
  auto* limit = reinterpret_cast<const timespec*>(call.args[4]);
  return limit == nullptr || limit->tv_sec != 0 || limit->tv_nsec != 0;
}

void take_part(InterruptibleCall& call, long result) {
  if (call.phase == Phase::kMessageRest) {
    call.vector_done += static_cast<size_t>(result);
    next_pieces(call);
    return;
  }
  if (call.nr == __NR_recvmmsg) forget_interruption(static_cast<int>(call.args[0]));
  const bool last_in_part = call.nr == __NR_sendmmsg && sent_in_part(call, result);
  call.done += result;
  switch (call.progress) {
    case Progress::kNone:
      break;
    case Progress::kBytes:
    case Progress::kMemoryDevice:
      call.args[1] += result;
      call.args[2] -= result;
      break;
    case Progress::kRandom:
      call.args[0] += result;
      call.args[1] -= result;
      break;
    case Progress::kCount:
      call.args[3] -= result;
      break;
    case Progress::kMessages:
      call.args[1] += result * static_cast<long>(sizeof(mmsghdr));
      call.args[2] -= result;
      if (last_in_part) send_rest_of_message(call);
      break;
    case Progress::kVector:
      if (call.vector_done == 0) {
        call.scratch->all = reinterpret_cast<const iovec*>(call.args[1]);
        call.scratch->all_count = static_cast<size_t>(call.args[2]);
      }
      call.vector_done += static_cast<size_t>(result);
      next_pieces(call);
      break;
    case Progress::kMessage:
      if (call.vector_done == 0) {
        auto* m = reinterpret_cast<const msghdr*>(call.args[1]);
        call.scratch->all = m->msg_iov;
        call.scratch->all_count = m->msg_iovlen;
        call.scratch->message = *m;
      }
      call.vector_done += static_cast<size_t>(result);
      next_pieces(call);
      break;
  }
}

}  // namespace ckpt::progress
