// Everything the freestanding restorer needs, in one struct: written by restart/tree/process.cc
// (descriptors), restart/plan/credentials.cc and restart/plan/memory/restorer_range.cc (the rest), read by
// restart/restorer/restorer.cc. All are built together, so the layout needs no version.
//
// Owner:     restart. The struct, its lists and the restorer's stack live in the restorer range,
//            which is free in the saved process and in ckpt-restart itself.
// Callers:   the child process, once, on its only thread.
// Never:     holds a pointer to anything outside the restorer range.
#pragma once

#include <cstdint>

#include "base/protocol/restart_protocol.h"

namespace ckpt {

// How one mapping of the image comes into being.
enum class MapAction : uint32_t {
  kMap = 0,        // mmap(start, length, map_prot, map_flags, fd, offset)
  kDuplicate = 1,  // mremap(source, 0, ...): one more view of a shared object inside the restorer range
};

struct RestorerMapping {
  uint64_t start, end;
  uint64_t offset;     // bytes in the file
  uint64_t source;     // kDuplicate: where the object's bytes from `offset` on are mapped
  uint32_t action;     // MapAction
  uint32_t prot;       // at the end
  uint32_t map_prot;   // while memory is filled
  uint32_t map_flags;  // MAP_*
  int32_t fd;          // -1: anonymous
  uint32_t flags;      // MappingFlag: advice and locking
  uint32_t index;      // of the mapping in the image, for messages
  uint32_t put;        // 1: the Feeder may put what goes there
  int32_t final_fd;    // mapped from this one once memory is filled; -1: stays as it is
  uint32_t unused;
};

// Bytes of a batch that go to memory.
struct RestorerFill {
  uint64_t address, length;
  uint64_t from;  // bytes into the batch
};

// From ckpt-restart, through a pipe: a batch lies in a slot of the ring, checked and unpacked. When the
// restorer has copied it away, it writes the slot's number, one byte, to another pipe. The last order has no
// fills: everything has been checked, and what the Feeder puts there is there.
struct FillOrder {
  uint64_t first, count;  // of RestorerArgs::fills
  uint32_t slot, last;
};

// Memory that the loader brings when it is touched, registered with its userfaultfd.
struct RestorerLazyRange {
  uint64_t start, length;
};

// One of [vvar], [vvar_vclock], [vdso]: first out of the way, into the restorer range, then to where
// the saved process had it.
struct RestorerVdsoPiece {
  uint64_t from, parked, final, length;
};
inline constexpr uint32_t kMaxVdsoPieces = 6;

// Bytes made by ckpt-restart that go to memory of their own: the old vdso with its jumps.
struct RestorerCode {
  uint64_t address, length;  // length 0: none
  const void* bytes;
};

struct RestorerLimit {
  uint32_t resource, reserved;
  uint64_t soft, hard;
};

// A lock of fcntl(F_SETLK), taken again when the last of our descriptors of that file is closed.
struct RestorerLock {
  int32_t fd;
  int32_t type;  // F_RDLCK, F_WRLCK
  int64_t start, length;
  uint64_t had;  // 1: it has been taken before; 0: another process had it, as a note has said
};

// A timerfd, set when the clocks go on: the time that loading takes is none of the program's.
struct RestorerTimer {
  int32_t fd, flags;
  int64_t setting[4];  // as an itimerspec
  uint64_t ticks;      // expirations that were not read
};

// Seals of a memfd, added when its mappings are made and filled.
struct RestorerSeal {
  int32_t fd;
  uint32_t seals;
};

// What the restorer was doing when it failed: RestartStatus::tid in the stages kUnmapped to kMm,
// where no thread is concerned.
enum class RestorerStep : int32_t {
  kNone = 0,
  kMoveVdso = 1,
  kUnmap = 2,
  kMapMemory = 3,
  kFill = 4,        // copying from the ring
  kFillOrders = 5,  // waiting for what to copy
  kProtect = 6,
  kCredentials = 8,
  kRegister = 9,     // UFFDIO_REGISTER
  kFirstPages = 10,  // the loader's answer
  kTogether = 11,    // the other processes of the job
  kTimers = 12,      // timerfd_settime
};

// What could not be brought back as it was, without being fatal: RestartStatus::detail of kMm.
enum RestorerNote : uint32_t {
  kNoteMmRefused = 1u << 0,  // PR_SET_MM_MAP, also without the exe file
  // The exe file alone: without it PR_SET_MM_MAP worked.
  kNoteMmExeRefused = 1u << 1,
  kNoteAdviceRefused = 1u << 2,  // madvise
  kNoteLockRefused = 1u << 3,    // mlock
  kNoteLimitRefused = 1u << 4,   // a resource limit
  kNoteTimeRefused = 1u << 5,    // clocks could not be continued at the last moment
  kNoteDumpableRefused = 1u << 6,
  kNoteCapabilitiesRefused = 1u << 7,
  kNoteSealRefused = 1u << 8,
  kNoteFileLockLost = 1u << 9,  // fcntl(F_SETLK): another process was faster
};

struct RestorerArgs {
  uint64_t range_start, range_end;  // the restorer range
  uint64_t task_end;                // end of user addresses
  uint64_t stack_top;               // 16-byte aligned

  // ckpt-restart's own, to be given up first.
  uint64_t rseq_address;
  uint32_t rseq_length, rseq_signature;

  uint32_t vdso_count;
  uint32_t mapping_count;
  uint64_t slot_bytes;
  uint64_t lazy_count;
  const RestorerLazyRange* lazy;
  RestorerVdsoPiece vdso[kMaxVdsoPieces];
  RestorerCode old_vdso;
  const RestorerMapping* mappings;
  const RestorerFill* fills;

  int32_t ring_fd;      // a memfd: slots of slot_bytes; -1: nothing is filled in
  int32_t orders_fd;    // FillOrders come from here
  int32_t emptied_fd;   // slots go back through here
  int32_t feed_socket;  // -1: the restorer copies everything; else it says here whether the Feeder may put
                        // memory there
  int32_t put_userfaultfd;  // with which; -1: it may not
  int32_t loader_fd;        // socket to the loader; -1: nothing is lazy
  int32_t userfaultfd;      // -1: the same
  int32_t time_offsets_fd;  // /proc/self/timens_offsets of our new time namespace; -1: none
  int32_t time_ns_fd;       // the namespace itself
  int32_t
      together_fd;  // of a job: one byte when all of it have their memory and the clocks are set; -1: alone
  uint32_t first_working_fd;  // every descriptor from here on is closed, but library.status_fd and go_fd
  uint32_t limit_count;
  RestorerLimit limits[16];

  // Clocks of the saved process at the stop, and the offsets of the namespace we are in, nanoseconds.
  int64_t saved_monotonic_ns, saved_boottime_ns;
  int64_t outer_monotonic_ns, outer_boottime_ns;

  // mm description; the auxiliary vector is among the lists behind this struct.
  uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack;
  uint64_t arg_start, arg_end, env_start, env_end;
  const void* auxv;
  uint32_t auxv_length;
  int32_t exe_fd;

  uint32_t personality;
  uint64_t parent_death_signal;  // of a job, whose parents come back; 0 none

  // Credentials, when we may change them. Capabilities that the library needs stay until it has made the
  // threads: it sets RestartArgs' capabilities on each of them.
  uint32_t change_ids;  // 1: set uid, gid and groups
  // 1: keep only those of the program and extra_capabilities, over a change of users too
  uint32_t change_capabilities;
  uint64_t extra_capabilities;
  uint32_t uid[4], gid[4];
  uint32_t group_count;
  uint32_t set_groups;  // 0: setgroups is denied in this user namespace
  const uint32_t* groups;
  uint64_t drop_bounding;  // bits of the bounding set to drop

  uint32_t lock_count, seal_count;
  uint64_t timer_count;
  const RestorerTimer* timers;
  const RestorerLock* locks;
  const RestorerSeal* seals;

  uint64_t entry;       // ProcessRecord::restart_entry
  RestartArgs library;  // handed to it
};

using RestorerEntry = void (*)(RestorerArgs*);

}  // namespace ckpt
