// The functions of liburing that make rings and register things with them. liburing has its own system call
// instructions, which nobody sees: each function is called, and what it has done is remembered.
#include <liburing.h>

#include <cstring>

#include "libckpt_rt/capture/rings/kernel_ring.h"
#include "libckpt_rt/capture/rings/rings.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/rings/liburing_function.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

// A function of liburing whose first argument is the ring, and which registers something when its result is
// not an error.
long register_by(LiburingFunction& real, rings::Operation operation, io_uring* ring, long b, long c, long d,
                 long e, long f) {
  const rings::Change change;
  const int r = real.call<int>(ring, b, c, d, e, f);
  if (r >= 0)
    rings::registered(ring->ring_fd, static_cast<uint32_t>(operation), nullptr, 0, static_cast<uint32_t>(r));
  return r;
}

int make_ring(LiburingFunction& real, unsigned entries, io_uring* ring, io_uring_params* p) {
  const rings::Change change;
  const int r = real.call<int>(entries, ring, p);
  if (r >= 0) rings::made(ring->ring_fd, p);
  return r;
}

constinit LiburingFunction queue_init_params("io_uring_queue_init_params");

}  // namespace

CKPT_INTERPOSE(int, io_uring_queue_init_params, unsigned entries, io_uring* ring, io_uring_params* p) {
  return make_ring(queue_init_params, entries, ring, p);
}

// As liburing's own.
CKPT_INTERPOSE(int, io_uring_queue_init, unsigned entries, io_uring* ring, unsigned flags) {
  io_uring_params p;
  std::memset(&p, 0, sizeof(p));
  p.flags = flags;
  return make_ring(queue_init_params, entries, ring, &p);
}

CKPT_INTERPOSE(int, io_uring_queue_init_mem, unsigned entries, io_uring* ring, io_uring_params* p,
               void* memory, size_t size) {
  static constinit LiburingFunction real("io_uring_queue_init_mem");
  const rings::Change change;
  const int r = real.call<int>(entries, ring, p, memory, size);
  if (r >= 0) rings::made(ring->ring_fd, p);
  return r;
}

CKPT_INTERPOSE(int, io_uring_setup, unsigned entries, io_uring_params* p) {
  return static_cast<int>(rings::setup(long{entries}, p));
}

CKPT_INTERPOSE(int, io_uring_register, unsigned fd, unsigned operation, void* argument, unsigned count) {
  return static_cast<int>(rings::registration(long{fd}, long{operation}, argument, long{count}));
}

CKPT_INTERPOSE(int, io_uring_register_eventfd, io_uring* ring, int fd) {
  static constinit LiburingFunction real("io_uring_register_eventfd");
  const rings::Change change;
  const int r = real.call<int>(ring, fd);
  if (r >= 0) rings::registered(ring->ring_fd, static_cast<uint32_t>(rings::Operation::kEventFd), &fd, 1, 0);
  return r;
}

CKPT_INTERPOSE(int, io_uring_register_eventfd_async, io_uring* ring, int fd) {
  static constinit LiburingFunction real("io_uring_register_eventfd_async");
  const rings::Change change;
  const int r = real.call<int>(ring, fd);
  if (r >= 0)
    rings::registered(ring->ring_fd, static_cast<uint32_t>(rings::Operation::kEventFdAsync), &fd, 1, 0);
  return r;
}

CKPT_INTERPOSE(int, io_uring_register_files, io_uring* ring, const int* files, unsigned count) {
  static constinit LiburingFunction real("io_uring_register_files");
  const rings::Change change;
  const int r = real.call<int>(ring, files, count);
  if (r >= 0)
    rings::registered(ring->ring_fd, static_cast<uint32_t>(rings::Operation::kFiles), files, count, 0);
  return r;
}

CKPT_INTERPOSE(int, io_uring_register_files_tags, io_uring* ring, const int* files, const __u64* tags,
               unsigned count) {
  static constinit LiburingFunction real("io_uring_register_files_tags");
  io_uring_rsrc_register list{};
  list.nr = count;
  list.data = reinterpret_cast<uint64_t>(files);
  list.tags = reinterpret_cast<uint64_t>(tags);
  const rings::Change change;
  const int r = real.call<int>(ring, files, tags, count);
  if (r >= 0) rings::registered(ring->ring_fd, static_cast<uint32_t>(rings::Operation::kFiles2), &list, 0, 0);
  return r;
}

CKPT_INTERPOSE(int, io_uring_register_files_update, io_uring* ring, unsigned offset, const int* files,
               unsigned count) {
  static constinit LiburingFunction real("io_uring_register_files_update");
  io_uring_rsrc_update list{};
  list.offset = offset;
  list.data = reinterpret_cast<uint64_t>(files);
  const rings::Change change;
  const int r = real.call<int>(ring, offset, files, count);
  if (r >= 0)
    rings::registered(ring->ring_fd, static_cast<uint32_t>(rings::Operation::kFilesUpdate), &list, count,
                      static_cast<uint32_t>(r));
  return r;
}

CKPT_INTERPOSE(int, io_uring_register_files_update_tag, io_uring* ring, unsigned offset, const int* files,
               const __u64* tags, unsigned count) {
  static constinit LiburingFunction real("io_uring_register_files_update_tag");
  io_uring_rsrc_update2 list{};
  list.offset = offset;
  list.data = reinterpret_cast<uint64_t>(files);
  list.tags = reinterpret_cast<uint64_t>(tags);
  const rings::Change change;
  const int r = real.call<int>(ring, offset, files, tags, count);
  if (r >= 0)
    rings::registered(ring->ring_fd, static_cast<uint32_t>(rings::Operation::kFilesUpdate2), &list, count,
                      static_cast<uint32_t>(r));
  return r;
}

CKPT_INTERPOSE(int, io_uring_register_ring_fd, io_uring* ring) {
  static constinit LiburingFunction real("io_uring_register_ring_fd");
  const rings::Change change;
  const int r = real.call<int>(ring);
  if (r == 1) {
    io_uring_rsrc_update number{};
    number.offset = static_cast<unsigned>(ring->enter_ring_fd);
    number.data = static_cast<unsigned>(ring->ring_fd);
    rings::registered(ring->ring_fd, static_cast<uint32_t>(rings::Operation::kRingFds), &number, 1, 1);
  }
  return r;
}

CKPT_INTERPOSE(int, io_uring_unregister_ring_fd, io_uring* ring) {
  static constinit LiburingFunction real("io_uring_unregister_ring_fd");
  io_uring_rsrc_update number{};
  number.offset = static_cast<unsigned>(ring->enter_ring_fd);
  const rings::Change change;
  const int r = real.call<int>(ring);
  if (r == 1)
    rings::registered(ring->ring_fd, static_cast<uint32_t>(rings::Operation::kUnregisterRingFds), &number, 1,
                      1);
  return r;
}

// io_uring_setup_buf_ring makes memory and registers it; its result is an address, and the error goes
// elsewhere.
CKPT_INTERPOSE(void*, io_uring_setup_buf_ring, io_uring* ring, unsigned entries, int group, unsigned flags,
               int* error) {
  static constinit LiburingFunction real("io_uring_setup_buf_ring");
  const rings::Change change;
  void* const r = reinterpret_cast<void*>(real.call<long>(ring, entries, group, flags, error));
  if (reinterpret_cast<long>(r) == -ENOSYS) {
    *error = -ENOSYS;
    return nullptr;
  }
  if (r != nullptr)
    rings::registered(ring->ring_fd, static_cast<uint32_t>(rings::Operation::kProvidedRing), nullptr, 0, 0);
  return r;
}

// The arguments of a function come in registers: more of them than it takes do no harm.
#define CKPT_REGISTERS(NAME, OPERATION)                                                    \
  CKPT_INTERPOSE(int, NAME, io_uring* ring, long b, long c, long d, long e, long f) {      \
    static constinit LiburingFunction real(#NAME);                                         \
    return static_cast<int>(                                                               \
        register_by(real, static_cast<rings::Operation>(OPERATION), ring, b, c, d, e, f)); \
  }

CKPT_REGISTERS(io_uring_unregister_eventfd, rings::Operation::kUnregisterEventFd)
CKPT_REGISTERS(io_uring_register_buffers_tags, rings::Operation::kBuffers2)
CKPT_REGISTERS(io_uring_register_buffers_update_tag, rings::Operation::kBuffersUpdate)
CKPT_REGISTERS(io_uring_clone_buffers, 30)
CKPT_REGISTERS(io_uring_unregister_files, rings::Operation::kUnregisterFiles)
CKPT_REGISTERS(io_uring_enable_rings, rings::Operation::kEnable)
CKPT_REGISTERS(io_uring_register_restrictions, 11)
CKPT_REGISTERS(io_uring_register_iowq_aff, 17)
CKPT_REGISTERS(io_uring_register_iowq_max_workers, 19)
CKPT_REGISTERS(io_uring_register_buf_ring, rings::Operation::kProvidedRing)
CKPT_REGISTERS(io_uring_unregister_buf_ring, rings::Operation::kUnregisterProvidedRing)
CKPT_REGISTERS(io_uring_free_buf_ring, rings::Operation::kUnregisterProvidedRing)
CKPT_REGISTERS(io_uring_register_file_alloc_range, 25)
CKPT_REGISTERS(io_uring_register_napi, 27)
CKPT_REGISTERS(io_uring_register_clock, 29)
CKPT_REGISTERS(io_uring_resize_rings, 33)
CKPT_REGISTERS(io_uring_register_region, 34)
