#include "libckpt_rt/capture/descriptors/content/pipes.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <climits>

#include "base/raii_fd.h"
#include "image/format/object_number.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

Error cannot(long error) {
  return make_error(ExitCode::kIo, static_cast<int>(error), "{}", errno_name(static_cast<int>(error)));
}

}  // namespace

// tee(2) copies references to a pipe's buffers into a pipe of ours, which is then read: the program's
// bytes stay where they are. Packets (O_DIRECT) stay apart: one read gives one packet. Only these reads tell
// which bytes are packets, since another process may write them. A byte of ours behind them shows where the
// last ends.
Result<void> PipeContents::copy(size_t first_in_order, DescriptorContents& to) {
  const CapturedDescriptor& head = files_.in_order(first_in_order);
  auto for_all_ends = [&](auto visit) {
    for (const uint32_t i : files_.same_inode(first_in_order)) visit(files_.entries()[i]);
  };
  uint32_t ends = 0, size = 0;
  int queued = 0;
  const CapturedDescriptor* reader = nullptr;
  for_all_ends([&](CapturedDescriptor& d) {
    ends |= d.flags;
    if ((d.flags & kOpenFilePipeReadEnd) != 0) reader = &d;
    size = d.now.pipe_size;
    queued = d.now.queued;
  });
  // The bytes in a FIFO belong to who reads it.
  if ((ends & kOpenFilePipeReadEnd) == 0) return {};
  if (size != 0 && queued == 0) return {};
  ScopedFd in(access_.borrow(*reader));
  bool shares_offset = false;  // a pipe has none
  if (!in.valid()) in.reset(reader_.open(head, shares_offset));
  if (!in.valid()) return cannot(in.get());
  if (size == 0) {  // the sample could not tell
    long r = sys::call(__NR_fcntl, in.get(), F_GETPIPE_SZ, 0);
    if (r < 0) return cannot(r);
    size = static_cast<uint32_t>(r);
    for_all_ends([&](CapturedDescriptor& d) { d.now.pipe_size = size; });
    if ((r = sys::call(__NR_ioctl, in.get(), FIONREAD, &queued)) < 0) return cannot(r);
    if (queued == 0) return {};
  }

  CKPT_TRY(make_room(size));
  auto* bytes = static_cast<std::byte*>(files_.arena().allocate(static_cast<size_t>(queued) + 1));
  if (bytes == nullptr) return cannot(-ENOMEM);
  return read_copy(head, in.get(), static_cast<uint64_t>(queued), bytes, to);
}

// One pipe of ours serves for all: reading it has left it empty.
Result<void> PipeContents::make_room(uint32_t size) {
  long r = 0;
  if (pipe_[0] < 0) {
    if ((r = sys::call(__NR_pipe2, pipe_, O_NONBLOCK | O_CLOEXEC)) < 0) return cannot(r);
    r = sys::call(__NR_fcntl, pipe_[1], F_GETPIPE_SZ, 0);
    size_ = r < 0 ? 0 : static_cast<uint32_t>(r);
  }
  if (size_ < size) {
    if ((r = sys::call(__NR_fcntl, pipe_[1], F_SETPIPE_SZ, size)) < 0) return cannot(r);
    size_ = static_cast<uint32_t>(r);
  }
  return {};
}

Result<void> PipeContents::read_copy(const CapturedDescriptor& head, int in, uint64_t all, std::byte* bytes,
                                     DescriptorContents& to) {
  const long r = sys::call(__NR_tee, in, pipe_[1], INT_MAX, 2 /* SPLICE_F_NONBLOCK */);
  if (r < 0) return cannot(r);
  const bool whole = r == static_cast<long>(all);
  const uint64_t object = object_number(head.now.device, head.now.inode);
  uint64_t have = 0, number = 0;
  bool marked = false;
  while (have < all) {
    marked = marked || sys::call(__NR_write, pipe_[1], "", 1L) == 1;  // full: before the next read, then
    const uint64_t wanted = all - have + (marked ? 1 : 0);
    const long n = sys::call(__NR_read, pipe_[0], bytes + have, wanted);
    if (n <= 0) break;
    const bool packet = static_cast<uint64_t>(n) < wanted;
    const uint64_t length = std::min(static_cast<uint64_t>(n), all - have);
    const uint64_t place = packet ? kPipePacket | number++ : kPipeStream;
    if (!to.push_back({head.open_file, object, place, bytes + have, length}))
      return arena_full(files_.arena());
    have += static_cast<uint64_t>(n);
  }
  if (marked && have == all) have += sys::call(__NR_read, pipe_[0], bytes + have, 1L) == 1 ? 1 : 0;
  if (!whole || have != all + (marked ? 1 : 0)) {
    close();  // bytes may be left in it
    return cannot(-EIO);
  }
  return {};
}

void PipeContents::close() {
  for (int& fd : pipe_) {
    if (fd >= 0) sys::call(__NR_close, fd);
    fd = -1;
  }
}

}  // namespace ckpt
