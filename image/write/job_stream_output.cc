#include "image/write/job_stream_output.h"

#include <errno.h>
#include <poll.h>

#include <cstring>

#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

constexpr int kStepMs = 1000, kStuckMs = 10'000;

bool has_room(int pipe) {
  pollfd room{pipe, POLLOUT, 0};
  constexpr timespec kAtOnce{};
  return sys::call(__NR_ppoll, &room, 1L, &kAtOnce, nullptr, 8L) > 0 && (room.revents & POLLOUT) != 0;
}

// Waits until `fd` is ready, or there is nobody to write for.
long await_end(const JobStreamEnds& ends, int fd, short events) {
  // POLLERR of a pipe, always told: nobody reads. A watch that is closed here (POLLNVAL) tells nothing.
  pollfd wait[3] = {{fd, events, 0}, {ends.pipe, 0, 0}, {ends.watch, ends.watch_events, 0}};
  for (int stuck_ms = 0; stuck_ms < kStuckMs;) {
    constexpr timespec kStep{kStepMs / 1000, 0};
    const long r = sys::call(__NR_ppoll, wait, 3L, &kStep, nullptr, 8L);
    if (r == -EINTR) continue;
    if (r < 0) return r;
    if ((wait[1].revents & POLLERR) != 0) return -EPIPE;
    if ((wait[2].revents & POLLNVAL) != 0)
      wait[2].fd = -1;
    else if (wait[2].revents != 0 && (ends.is_over == nullptr || ends.is_over(ends.context)))
      return -ECANCELED;
    if ((wait[0].revents & events) != 0) return 0;
    if (wait[0].revents != 0) return -EPIPE;
    // A command that takes nothing may do so for as long as it likes.
    if (r == 0 && fd == ends.turn && has_room(ends.pipe))
      stuck_ms += kStepMs;
    else if (r == 0)
      stuck_ms = 0;
  }
  return -ECANCELED;
}

long write_all(const JobStreamEnds& ends, const std::byte* data, uint64_t bytes) {
  while (bytes > 0) {
    const long n = sys::call(__NR_write, ends.pipe, data, bytes);
    if (n == -EINTR) continue;
    if (n == -EAGAIN) {
      if (const long r = await_end(ends, ends.pipe, POLLOUT); r != 0) return r;
      continue;
    }
    if (n <= 0) return n == 0 ? -EIO : n;
    data += n;
    bytes -= static_cast<uint64_t>(n);
  }
  return 0;
}

long take_turn(const JobStreamEnds& ends) {
  if (ends.turn < 0) return 0;
  for (uint64_t one;;) {
    const long n = sys::call(__NR_read, ends.turn, &one, sizeof(one));
    if (n == sizeof(one)) return 0;
    if (n != -EAGAIN && n != -EINTR) return n < 0 ? n : -EIO;
    if (const long r = await_end(ends, ends.turn, POLLIN); r != 0) return r;
  }
}

}  // namespace

long write_job_frame(const JobStreamEnds& ends, JobFrame kind, uint32_t entry, uint64_t bytes,
                     const std::byte* data) {
  if (const long r = take_turn(ends); r != 0) return r;
  const JobStreamFrame frame{static_cast<uint32_t>(kind), entry, bytes};
  long r = write_all(ends, reinterpret_cast<const std::byte*>(&frame), sizeof(frame));
  if (r == 0 && data != nullptr) r = write_all(ends, data, bytes);
  if (r != 0) return r;
  const uint64_t one = 1;
  if (ends.turn >= 0 && sys::call(__NR_write, ends.turn, &one, sizeof(one)) != sizeof(one)) return -EIO;
  return 0;
}

long write_job_head(const JobStreamEnds& ends) {
  JobStreamHead head{};
  std::memcpy(head.magic, kJobStreamMagic, sizeof(head.magic));
  head.version = kJobStreamVersion;
  return write_all(ends, reinterpret_cast<const std::byte*>(&head), sizeof(head));
}

long JobStreamOutput::Backend::put(const std::byte* data, uint32_t bytes) {
  return write_job_frame(ends_, JobFrame::kBytes, entry_, bytes, data);
}

void JobStreamOutput::open(const JobStreamEnds& ends, uint32_t entry, const char* name) {
  backend_.ends_ = ends;
  backend_.entry_ = entry;
  name_ = name;
}

Result<void> JobStreamOutput::publish(FileBackend&, uint64_t bytes, bool) {
  const long r = write_job_frame(backend_.ends_, JobFrame::kWhole, backend_.entry_, bytes);
  if (r == 0) return {};
  return explain(make_error(ExitCode::kIo, static_cast<int>(-r), "{}: cannot be sent ({})", name_,
                            errno_name(static_cast<int>(r))));
}

Error JobStreamOutput::explain(const Error& error) {
  if (error.sys_errno != EPIPE) return error;
  return make_error(ExitCode::kIo, EPIPE, "{}: nobody reads the stream of the job any more", name_);
}

}  // namespace ckpt
