#include "restart/feed/direct_reads.h"

#include <errno.h>

#include <algorithm>

#include "base/sys.h"

namespace ckpt {

DirectReads::~DirectReads() { give_up(); }

void DirectReads::give_up() {
  // io_destroy() waits for the reads that are under way.
  if (context_ != 0) sys::call(__NR_io_destroy, context_);
  context_ = 0;
  refused_ = true;
}

void DirectReads::read(int fd, std::span<StoredRead* const> reads) {
  if (context_ == 0 && !refused_) refused_ = sys::failed(sys::call(__NR_io_setup, kMost, &context_));
  while (!refused_ && !reads.empty()) {
    const size_t n = std::min(reads.size(), kMost);
    read_some(fd, reads.first(n));
    reads = reads.subspan(n);
  }
}

void DirectReads::read_some(int fd, std::span<StoredRead* const> reads) {
  iocb blocks[kMost];
  iocb* list[kMost];
  for (size_t i = 0; i < reads.size(); ++i) {
    blocks[i] = {};
    blocks[i].aio_data = i;
    blocks[i].aio_lio_opcode = IOCB_CMD_PREAD;
    blocks[i].aio_fildes = static_cast<uint32_t>(fd);
    blocks[i].aio_buf = reinterpret_cast<uint64_t>(reads[i]->out.data());
    blocks[i].aio_nbytes = reads[i]->out.size();
    blocks[i].aio_offset = static_cast<int64_t>(reads[i]->offset);
    list[i] = &blocks[i];
  }
  // The kernel may take only the first few. The others stay without `done`: the caller's other way meets the
  // same error, and reports it.
  const long taken = sys::call(__NR_io_submit, context_, reads.size(), list);
  if (sys::failed(taken) || !wait_for(static_cast<size_t>(taken), reads)) give_up();
}

bool DirectReads::wait_for(size_t count, std::span<StoredRead* const> reads) {
  io_event events[kMost];
  while (count > 0) {
    const long n = sys::call(__NR_io_getevents, context_, 1L, count, events, 0L);
    if (n == -EINTR) continue;
    if (n <= 0) return false;
    for (const io_event& e : std::span(events, static_cast<size_t>(n))) {
      StoredRead& read = *reads[e.data];
      read.done = e.res == static_cast<int64_t>(read.out.size());
    }
    count -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace ckpt
