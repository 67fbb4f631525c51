#include "libckpt_rt/capture/rings/registered_buffers.h"

#include <sys/uio.h>

#include "base/memory/large_table.h"
#include "base/sys.h"
#include "libckpt_rt/capture/rings/known_rings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::rings {
namespace {

struct Buffer {
  uint64_t ring, start, bytes;
  uint32_t place;
};
constexpr size_t kMost = 512;
// The buffers are copied while the program stands.
constexpr uint64_t kMostBytes = 16 << 20;
CKPT_LARGE_TABLE constinit Buffer buffers[kMost]{};
constinit size_t count = 0;

uint64_t pages_of(const Buffer& b) {
  return (Addr{b.start + b.bytes - 1}.page_down() - Addr{b.start}.page_down()) + kPageSize;
}

}  // namespace

void begin_buffers() {
  if (count != 0) count = 0;
}

void forget_buffers(uint64_t ring) {
  size_t left = 0;
  for (size_t i = 0; i < count; ++i) {
    if (buffers[i].ring != ring) buffers[left++] = buffers[i];
  }
  if (count != left) count = left;
}

bool note_buffer(uint64_t ring, uint32_t place, uint64_t start, uint64_t bytes) {
  if (count == kMost || bytes == 0 || bytes > kMostBytes) return false;
  uint64_t all = bytes;
  for (size_t i = 0; i < count; ++i) all += pages_of(buffers[i]);
  if (all > kMostBytes) return false;
  buffers[count++] = {ring, start, bytes, place};
  return true;
}

bool collect_buffers(ArenaVector<Addr>& pages) {
  for (size_t i = 0; i < count; ++i) {
    const Addr first = Addr{buffers[i].start}.page_down();
    for (uint64_t at = 0; at < pages_of(buffers[i]); at += kPageSize) {
      if (!pages.push_back(first + at)) return false;
    }
  }
  return true;
}

long register_buffers(uint64_t ring, int fd, uint32_t places) {
  if (places == 0) return 0;
  constexpr uint32_t kSparse = 1;  // IORING_RSRC_REGISTER_SPARSE
  io_uring_rsrc_register empty{};
  empty.nr = places;
  empty.flags = kSparse;
  long r = sys::call(__NR_io_uring_register, long{fd}, static_cast<long>(Operation::kBuffers2), &empty,
                     sizeof(empty));
  for (size_t i = 0; i < count && r >= 0; ++i) {
    if (buffers[i].ring != ring) continue;
    iovec memory{reinterpret_cast<void*>(buffers[i].start), buffers[i].bytes};
    io_uring_rsrc_update2 one{};
    one.offset = buffers[i].place;
    one.data = reinterpret_cast<uint64_t>(&memory);
    one.nr = 1;
    r = sys::call(__NR_io_uring_register, long{fd}, static_cast<long>(Operation::kBuffersUpdate), &one,
                  sizeof(one));
  }
  return r < 0 ? r : 0;
}

void rename_rings_of_buffers(uint64_t (*new_inode)(uint64_t inode)) {
  for (size_t i = 0; i < count; ++i) buffers[i].ring = new_inode(buffers[i].ring);
}

}  // namespace ckpt::rings
