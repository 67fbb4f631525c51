// The freestanding restorer: gives up everything of ckpt-restart but itself and becomes the saved
// process.
//
// Owner:     restart. Compiled alone, linked to address 0, copied to wherever room is (restorer_blob.h):
//            no libc, no relocations, no data but constants. check_restorer.cmake makes sure.
// Callers:   the child process, once, on the stack in the restorer range, with nothing else running.
// Never:     returns; touches memory outside the restorer range that it has not just mapped.
//
// Order, and why:
//   1. signals off, rseq, robust list and clear_child_tid given up: the kernel would write to them;
//   2. vdso and vvar into the restorer range, everything else unmapped, vdso to its saved place: it
//      must not lie where the image maps something else, and its own place may be taken until then;
//   3. map, writable where something is filled in; fill; only then the saved protection;
//   4. mm description: after unmapping, since exe can change only when the old one is not mapped;
//   5. limits after memory; then time, so that the saved process misses as little of it as possible;
//      then credentials, since all of this may need a right;
//   6. what needs none: dumpable, the parent-death signal, our descriptors closed, locks of files.
#include "restart/restorer/restorer_args.h"

#include <asm/mman.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/mman.h>
#include <linux/prctl.h>
#include <linux/rseq.h>
#include <linux/securebits.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include <sys/uio.h>

#include "base/sys.h"
#include "image/format/records/process_records.h"
#include "restart/restorer/restorer_credentials.h"
#include "restart/restorer/restorer_time.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
#ifndef MREMAP_MAYMOVE
#define MREMAP_MAYMOVE 1
#define MREMAP_FIXED 2
#endif

// The compiler may call these for struct copies.
extern "C" {
void* memcpy(void* to, const void* from, unsigned long n) {
  void* result = to;
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
  return result;
}
void* memset(void* to, int value, unsigned long n) {
  void* result = to;
  asm volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(value) : "memory");
  return result;
}
}

namespace ckpt {
namespace {

using sys::call;
using sys::failed;

constexpr int kErrnoIo = 5;
constexpr int kExitSystem = 71;
constexpr uint32_t kMaxIovecs = 256;
constexpr uint64_t kPopulateFrom = 64u << 10;

void report(const RestorerArgs& a, RestartStage stage, RestorerStep step, long error, uint32_t detail) {
  RestartStatus status{static_cast<uint32_t>(stage), static_cast<int32_t>(-error), static_cast<int32_t>(step),
                       detail};
  call(__NR_write, a.library.status_fd, &status, sizeof(status));
}

[[noreturn]] void fail(const RestorerArgs& a, RestartStage stage, RestorerStep step, long error,
                       uint32_t detail = 0) {
  report(a, stage, step, error, detail);
  for (;;) call(__NR_exit_group, kExitSystem);
}

void give_up_libc_state(const RestorerArgs& a) {
  uint64_t all = ~uint64_t{0};
  call(__NR_rt_sigprocmask, 0L /* SIG_BLOCK */, &all, 0L, sizeof(all));
  if (a.rseq_length != 0) {
    call(__NR_rseq, a.rseq_address, a.rseq_length, RSEQ_FLAG_UNREGISTER, a.rseq_signature);
  }
  constexpr long kRobustListHeadBytes = 24;
  call(__NR_set_robust_list, 0L, kRobustListHeadBytes);
  call(__NR_set_tid_address, 0L);
}

void move_vdso(const RestorerArgs& a, bool to_final) {
  for (uint32_t i = 0; i < a.vdso_count; ++i) {
    const RestorerVdsoPiece& p = a.vdso[i];
    uint64_t from = to_final ? p.parked : p.from;
    uint64_t to = to_final ? p.final : p.parked;
    long r = call(__NR_mremap, from, p.length, p.length, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    if (failed(r)) fail(a, RestartStage::kUnmapped, RestorerStep::kMoveVdso, r, i);
  }
}

void unmap_everything_else(const RestorerArgs& a) {
  long r = call(__NR_munmap, 0L, a.range_start);
  if (!failed(r)) r = call(__NR_munmap, a.range_end, a.task_end - a.range_end);
  if (failed(r)) fail(a, RestartStage::kUnmapped, RestorerStep::kUnmap, r);
}

void advise(uint64_t start, uint64_t length, uint32_t set, long advice, uint32_t& notes) {
  if (set != 0 && failed(call(__NR_madvise, start, length, advice))) notes |= kNoteAdviceRefused;
}

void map_one(const RestorerArgs& a, const RestorerMapping& m, uint32_t& notes) {
  uint64_t length = m.end - m.start;
  long r;
  if (m.action == static_cast<uint32_t>(MapAction::kDuplicate)) {
    // mremap with old length 0 leaves the source and maps the same pages of a shared object again.
    r = call(__NR_mremap, m.source, 0L, length, MREMAP_MAYMOVE | MREMAP_FIXED, m.start);
  } else {
    r = call(__NR_mmap, m.start, length, m.map_prot, m.map_flags | MAP_FIXED_NOREPLACE, m.fd, m.offset);
    // A kernel without MAP_FIXED_NOREPLACE takes the address as a hint.
    if (!failed(r) && static_cast<uint64_t>(r) != m.start) r = -17;  // EEXIST
  }
  if (failed(r)) fail(a, RestartStage::kMemory, RestorerStep::kMapMemory, r, m.index);
  // Before pages arrive, so that they arrive as huge pages or not.
  advise(m.start, length, m.flags & kMapHugePage, MADV_HUGEPAGE, notes);
  advise(m.start, length, m.flags & kMapNoHugePage, MADV_NOHUGEPAGE, notes);
}

void place_code(const RestorerArgs& a, const RestorerCode& code) {
  if (code.length == 0) return;
  long r = call(__NR_mmap, code.address, code.length, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0L);
  if (!failed(r)) {
    memcpy(reinterpret_cast<void*>(code.address), code.bytes, code.length);
    r = call(__NR_mprotect, code.address, code.length, PROT_READ | PROT_EXEC);
  }
  if (failed(r)) fail(a, RestartStage::kUnmapped, RestorerStep::kMoveVdso, r);
}

uint32_t mapping_at(const RestorerArgs& a, uint64_t address) {
  uint32_t low = 0, high = a.mapping_count;
  while (low < high) {
    uint32_t mid = (low + high) / 2;
    if (a.mappings[mid].end <= address) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return low < a.mapping_count ? a.mappings[low].index : 0;
}

// The kernel may have several mappings of the image as one, which is cut when one of them is registered. The
// kernel joins the parts again afterwards if they have an anon_vma in common, which a mapping gets with its
// first page: so a page is made before the cut. The caller drops it.
void give_anon_vma(uint64_t address) { call(__NR_madvise, address, 4096UL, MADV_POPULATE_WRITE); }

long register_range(int userfaultfd, uint64_t start, uint64_t length) {
  uffdio_register r{};
  r.range.start = start;
  r.range.len = length;
  r.mode = UFFDIO_REGISTER_MODE_MISSING;
  return call(__NR_ioctl, userfaultfd, UFFDIO_REGISTER, &r);
}

// Ordinary memory again, before anybody touches it: ckpt-restart may have the userfaultfd still.
void close_to_puts(const RestorerArgs& a) {
  if (a.put_userfaultfd < 0) return;
  for (uint32_t i = 0; i < a.mapping_count; ++i) {
    const RestorerMapping& m = a.mappings[i];
    if (m.put == 0) continue;
    uffdio_range range{m.start, m.end - m.start};
    const long r = call(__NR_ioctl, a.put_userfaultfd, UFFDIO_UNREGISTER, &range);
    if (failed(r)) fail(a, RestartStage::kMemory, RestorerStep::kRegister, r, m.index);
  }
}

// Copies `count` fills whose bytes follow each other in the ring.
void fill_together(const RestorerArgs& a, const RestorerFill* fills, uint32_t count, uint64_t offset) {
  iovec vectors[kMaxIovecs];
  for (uint32_t i = 0; i < count; ++i) {
    vectors[i].iov_base = reinterpret_cast<void*>(fills[i].address);
    vectors[i].iov_len = fills[i].length;
    // One call that makes many pages costs a quarter less than a fault for each. Refused: they fault.
    if (fills[i].length >= kPopulateFrom) {
      call(__NR_madvise, fills[i].address, fills[i].length, MADV_POPULATE_WRITE);
    }
  }
  uint32_t first = 0;
  while (first < count) {
    long n = call(__NR_preadv, a.ring_fd, &vectors[first], count - first, offset, 0L);
    if (n == 0) n = -kErrnoIo;  // the ring is shorter than ckpt-restart said
    if (failed(n)) {
      const auto at = reinterpret_cast<uint64_t>(vectors[first].iov_base);
      fail(a, RestartStage::kMemory, RestorerStep::kFill, n, mapping_at(a, at));
    }
    offset += static_cast<uint64_t>(n);
    for (uint64_t left = static_cast<uint64_t>(n); left > 0 && first < count;) {
      uint64_t part = left < vectors[first].iov_len ? left : vectors[first].iov_len;
      vectors[first].iov_base = static_cast<char*>(vectors[first].iov_base) + part;
      vectors[first].iov_len -= part;
      left -= part;
      if (vectors[first].iov_len == 0) ++first;
    }
  }
}

void open_to_puts(const RestorerArgs& a) {
  if (a.feed_socket < 0) return;
  uint64_t registered = a.put_userfaultfd >= 0 ? 1 : 0;
  for (uint32_t i = 0; i < a.mapping_count && registered != 0; ++i) {
    const RestorerMapping& m = a.mappings[i];
    if (m.put == 0) continue;
    give_anon_vma(m.start);
    call(__NR_madvise, m.start, m.end - m.start, MADV_DONTNEED);  // the page may have come with many
    if (failed(register_range(a.put_userfaultfd, m.start, m.end - m.start)))
      registered = 0;  // its limit of mappings, perhaps
  }
  if (registered == 0) close_to_puts(a);
  const long n = call(__NR_write, a.feed_socket, &registered, sizeof(registered));
  if (n != sizeof(registered))
    fail(a, RestartStage::kMemory, RestorerStep::kFillOrders, n < 0 ? n : -kErrnoIo);
}

// Batches come in any order. At the last one every byte has been compared with its checksum.
void fill_memory(const RestorerArgs& a) {
  for (;;) {
    FillOrder order;
    long n = call(__NR_read, a.orders_fd, &order, sizeof(order));
    // ckpt-restart found damage, or died.
    if (n != sizeof(order)) fail(a, RestartStage::kMemory, RestorerStep::kFillOrders, n < 0 ? n : -kErrnoIo);
    if (order.last != 0) return;
    const RestorerFill* fills = &a.fills[order.first];
    for (uint64_t i = 0; i < order.count;) {
      uint32_t together = 1;
      while (i + together < order.count && together < kMaxIovecs &&
             fills[i + together].from == fills[i + together - 1].from + fills[i + together - 1].length) {
        ++together;
      }
      fill_together(a, &fills[i], together, order.slot * a.slot_bytes + fills[i].from);
      i += together;
    }
    const auto slot = static_cast<uint8_t>(order.slot);
    n = call(__NR_write, a.emptied_fd, &slot, sizeof(slot));
    if (n != sizeof(slot)) fail(a, RestartStage::kMemory, RestorerStep::kFillOrders, n < 0 ? n : -kErrnoIo);
  }
}

void finish_one(const RestorerArgs& a, const RestorerMapping& m, uint32_t& notes) {
  uint64_t length = m.end - m.start;
  if (m.final_fd >= 0) {
    long r = call(__NR_mmap, m.start, length, m.prot, m.map_flags | MAP_FIXED, m.final_fd, m.offset);
    if (failed(r)) fail(a, RestartStage::kMemory, RestorerStep::kMapMemory, r, m.index);
  } else if (m.prot != m.map_prot) {
    long r = call(__NR_mprotect, m.start, length, m.prot);
    if (failed(r)) fail(a, RestartStage::kMemory, RestorerStep::kProtect, r, m.index);
  }
  advise(m.start, length, m.flags & kMapDontFork, MADV_DONTFORK, notes);
  advise(m.start, length, m.flags & kMapDontDump, MADV_DONTDUMP, notes);
  advise(m.start, length, m.flags & kMapWipeOnFork, MADV_WIPEONFORK, notes);
  advise(m.start, length, m.flags & kMapMergeable, MADV_MERGEABLE, notes);
  advise(m.start, length, m.flags & kMapSequential, MADV_SEQUENTIAL, notes);
  advise(m.start, length, m.flags & kMapRandom, MADV_RANDOM, notes);
  if ((m.flags & (kMapLocked | kMapLockOnFault)) != 0) {
    long on_fault = (m.flags & kMapLockOnFault) != 0 ? MLOCK_ONFAULT : 0;
    // Memory that nobody may touch is locked too, but the call fails: no page comes.
    if (failed(call(__NR_mlock2, m.start, length, on_fault)) && m.prot != PROT_NONE)
      notes |= kNoteLockRefused;
  }
}

// From here on a page that is missing is the loader's business. The pages that it must bring before anything
// else of the program runs are there when it has answered.
void register_lazy(const RestorerArgs& a) {
  int64_t page_in = -1;
  for (uint64_t i = 0; i < a.lazy_count; ++i) {
    const int64_t mapping = mapping_at(a, a.lazy[i].start);
    if (mapping == page_in) continue;
    page_in = mapping;
    give_anon_vma(a.lazy[i].start);  // dropped below
  }
  for (uint64_t i = 0; i < a.lazy_count; ++i) {
    const RestorerLazyRange& range = a.lazy[i];
    // A huge page of a neighbour that has been filled may reach into it.
    call(__NR_madvise, range.start, range.length, MADV_DONTNEED);
    const long error = register_range(a.userfaultfd, range.start, range.length);
    if (failed(error))
      fail(a, RestartStage::kMemory, RestorerStep::kRegister, error, mapping_at(a, range.start));
  }
  if (a.lazy_count == 0) return;
  uint64_t registered = 1;
  long n = call(__NR_write, a.loader_fd, &registered, sizeof(registered));
  if (n == sizeof(registered)) n = call(__NR_read, a.loader_fd, &registered, sizeof(registered));
  if (n != sizeof(registered))
    fail(a, RestartStage::kMemory, RestorerStep::kFirstPages, n < 0 ? n : -kErrnoIo);
}

uint32_t describe_mm(const RestorerArgs& a) {
  prctl_mm_map map{};
  map.start_code = a.start_code;
  map.end_code = a.end_code;
  map.start_data = a.start_data;
  map.end_data = a.end_data;
  map.start_brk = a.start_brk;
  map.brk = a.brk;
  map.start_stack = a.start_stack;
  map.arg_start = a.arg_start;
  map.arg_end = a.arg_end;
  map.env_start = a.env_start;
  map.env_end = a.env_end;
  map.auxv = static_cast<__u64*>(const_cast<void*>(a.auxv));
  map.auxv_size = a.auxv_length;
  map.exe_fd = static_cast<__u32>(a.exe_fd);
  if (!failed(call(__NR_prctl, PR_SET_MM, PR_SET_MM_MAP, &map, sizeof(map), 0L))) {
    return a.exe_fd < 0 ? kNoteMmExeRefused : 0u;
  }
  // Changing what /proc/PID/exe names needs a capability; the rest of the description does not.
  map.exe_fd = static_cast<__u32>(-1);
  if (!failed(call(__NR_prctl, PR_SET_MM, PR_SET_MM_MAP, &map, sizeof(map), 0L))) return kNoteMmExeRefused;
  return kNoteMmRefused;
}

void add_seals(const RestorerArgs& a, uint32_t& notes) {
  for (uint32_t i = 0; i < a.seal_count; ++i) {
    if (failed(call(__NR_fcntl, a.seals[i].fd, F_ADD_SEALS, a.seals[i].seals))) notes |= kNoteSealRefused;
  }
}

void set_timers(const RestorerArgs& a) {
  constexpr unsigned long kSetTicks = _IOW('T', 0, uint64_t);  // TFD_IOC_SET_TICKS, linux/timerfd.h
  for (uint64_t i = 0; i < a.timer_count; ++i) {
    const RestorerTimer& t = a.timers[i];
    const long r = call(__NR_timerfd_settime, t.fd, t.flags, t.setting, 0L);
    if (failed(r)) fail(a, RestartStage::kMm, RestorerStep::kTimers, r);
    // Where the kernel cannot do this, a note has said so.
    if (t.ticks != 0) call(__NR_ioctl, t.fd, kSetTicks, &t.ticks);
  }
}

// Until all processes of the job have their memory.
void wait_for_job(const RestorerArgs& a) {
  uint8_t byte = 0;
  const long n = call(__NR_read, a.together_fd, &byte, sizeof(byte));
  if (n != sizeof(byte)) fail(a, RestartStage::kMm, RestorerStep::kTogether, n < 0 ? n : -kErrnoIo);
}

void close_own_descriptors(const RestorerArgs& a) {
  // All but the status pipe and, of a job, the pipe of the last byte (go): the library closes these.
  const auto status = static_cast<uint32_t>(a.library.status_fd);
  const uint32_t go = a.library.go_fd >= 0 ? static_cast<uint32_t>(a.library.go_fd) : status;
  const uint32_t low = status < go ? status : go, high = status < go ? go : status;
  if (low > a.first_working_fd) call(__NR_close_range, a.first_working_fd, low - 1, 0L);
  if (high > low + 1) call(__NR_close_range, low + 1, high - 1, 0L);
  call(__NR_close_range, high + 1, ~0u, 0L);
}

// Closing a descriptor of a file has dropped the process's locks on it, and given them to a process that
// waited for one.
void take_locks(const RestorerArgs& a, uint32_t& notes) {
  for (uint32_t i = 0; i < a.lock_count; ++i) {
    struct flock lock {};
    lock.l_type = static_cast<short>(a.locks[i].type);
    lock.l_whence = SEEK_SET;
    lock.l_start = a.locks[i].start;
    lock.l_len = a.locks[i].length;
    const long r = call(__NR_fcntl, a.locks[i].fd, F_SETLK, &lock);
    if (failed(r) && a.locks[i].had != 0) notes |= kNoteFileLockLost;
  }
}

}  // namespace

extern "C" [[noreturn, gnu::section(".text.entry")]] void restorer_main(RestorerArgs* args) {
  RestorerArgs& a = *args;
  uint32_t notes = 0;

  give_up_libc_state(a);
  move_vdso(a, false);
  unmap_everything_else(a);
  move_vdso(a, true);
  place_code(a, a.old_vdso);
  report(a, RestartStage::kUnmapped, RestorerStep::kNone, 0, 0);

  for (uint32_t i = 0; i < a.mapping_count; ++i) map_one(a, a.mappings[i], notes);
  if (a.ring_fd >= 0) {
    open_to_puts(a);
    fill_memory(a);
    if (a.feed_socket >= 0) close_to_puts(a);
  }
  for (uint32_t i = 0; i < a.mapping_count; ++i) finish_one(a, a.mappings[i], notes);
  if (a.together_fd < 0) add_seals(a, notes);
  register_lazy(a);
  report(a, RestartStage::kMemory, RestorerStep::kNone, 0, 0);

  notes |= describe_mm(a);
  call(__NR_personality, a.personality);
  for (uint32_t i = 0; i < a.limit_count; ++i) {
    uint64_t limit[2] = {a.limits[i].soft, a.limits[i].hard};
    if (failed(call(__NR_prlimit64, 0L, a.limits[i].resource, limit, 0L))) notes |= kNoteLimitRefused;
  }
  if (a.together_fd >= 0) {
    wait_for_job(a);
    add_seals(a, notes);  // others may have mapped or filled the file
  }
  continue_clocks(a, notes);
  set_timers(a);  // CLOCK_BOOTTIME_ALARM needs a right
  if (long r = become_saved_user(a, notes); failed(r)) {
    fail(a, RestartStage::kMm, RestorerStep::kCredentials, r);
  }
  // A change of user makes a process undumpable, and its files in /proc root's. The library writes to these,
  // and sets what the program had (restart_entry.cc). The change of user drops the parent death signal too.
  if (failed(call(__NR_prctl, PR_SET_DUMPABLE, 1L, 0L, 0L, 0L))) notes |= kNoteDumpableRefused;
  call(__NR_prctl, PR_SET_PDEATHSIG, a.parent_death_signal, 0L, 0L, 0L);
  close_own_descriptors(a);
  take_locks(a, notes);
  report(a, RestartStage::kMm, RestorerStep::kNone, 0, notes);
  reinterpret_cast<RestartEntry>(a.entry)(&a.library);
  for (;;) call(__NR_exit_group, kExitSystem);
}

}  // namespace ckpt
