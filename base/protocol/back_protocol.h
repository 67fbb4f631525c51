// The messages between `ckpt back PID` (the asker) and the library, once the asker has sent
// ControlOperation::kBack (docs/back.md).
//
// Both are built together and speak the version of control_protocol.h, so the structs need no version of
// their own. The asker reads and checks the image and compares; the library, inside the program, only carries
// out. Everything large goes through one memfd that the asker makes and sends with the order:
//
//   0              kBackMetaBytes   written by the library: its META (process_records.h), then AddrRanges
//   kBackMetaBytes kBackPlanBytes   written by the asker: BackPlan, then its arrays, strings and blobs
//   kBackDataAt    data_bytes       written by the asker: pages
//
//   asker                                     library
//   BackOrder, with the memfd    ──►
//                                ◄──  kAhead     program running: the memory that the watch says is unwritten
//   kGo                          ──►             the asker has read the pages that will be wanted
//                                ◄──  kHeld      of a job only: no process is made from here on
//   kGo                          ──►             (the same)
//                                ◄──  kStopped   of a job only: all threads stand
//   kGo                          ──►             those of all members do: what they have in common changes no more
//                                ◄──  kStanding  META: the asker compares, and this process asks the kernel
//                                ◄──  kUnwritten the unwritten memory for sure
//   kGo, with a BackPlan         ──►
//                                ◄──  kMore      all that may fail was tried, nothing is changed
//   kCutting                     ──►             the asker cuts files: if it dies now, the program is killed
//   kGo                          ──►             the asker has cut files: from here on there is no way back
//                                ◄──  kMore      as often as pages are left
//   kGo                          ──►
//                                ◄──  text lines of control_protocol.h
//
// The library sends a BackMessage, the asker a BackReply. In place of any message the library may send
// kError, in place of any reply the asker may send kGiveUp.
// Of a job (BackOrder::members != 0) the gate (back_gate.h) comes with the memfd, and decides. A process that
// was born since the checkpoint (kBackOnlyStands) gets the gate alone: it stands, and is killed or released.
//
// Owner: base. Callers: libckpt_rt/back (the agent, or the thread of a stopped process) and cli/back.
#pragma once

#include <cstdint>

namespace ckpt {

inline constexpr uint64_t kBackMetaBytes = 64ull << 20, kBackPlanBytes = 256ull << 20;
inline constexpr uint64_t kBackDataAt = kBackMetaBytes + kBackPlanBytes;

struct BackOrder {
  uint64_t data_bytes;
  uint64_t sequence;
  uint64_t state;  // FileTrailer::meta_checksum: images of a job and of a process alone are counted apart
  uint8_t run_id[16];
  uint64_t restart_entry, restart_state;  // of ProcessRecord: the library must lie where it lay
  uint64_t vdso_start, vdso_hash;
  uint32_t flags;            // BackFlag
  uint32_t member, members;  // of a job: which, of how many. 0, 0: a process alone
  uint32_t patience_s;       // how long one reply may take: reading a large image takes its time
};
enum BackFlag : uint32_t { kBackOnlyStands = 1u << 0 };

enum class BackSays : uint32_t {
  kError = 1,
  kAhead = 2,
  kStanding = 3,  // no reply, but with kBackOnlyStands
  kMore = 4,
  kHeld = 5,
  kStopped = 6,
  kUnwritten = 7,
};

struct BackMessage {
  uint32_t says;    // BackSays
  uint32_t code;    // kError: ExitCode, and `text`
  uint64_t meta;    // kStanding: bytes of META, from 0
  uint64_t ranges;  // kAhead, kUnwritten: where the AddrRanges of unwritten memory lie
  uint64_t range_count;
  uint64_t own;  // kStanding, kUnwritten: where the AddrRanges of the library's own mappings lie: they stay
  uint64_t own_count;
  uint64_t late_start, late_end;  // the library's data: put back last
  uint32_t watched;               // 1: there was a watch
  uint32_t is_alone;              // kStanding: 1, it may not make threads with the ids that they had
  char text[320];
};

// kCutting: of a process alone. Nothing answers it; kGo or kGiveUp follows.
enum class BackReplyKind : uint32_t { kGo = 1, kGiveUp = 2, kCutting = 3 };

struct BackReply {
  uint32_t kind;
  uint32_t more;   // kGo: pages are left after these
  uint64_t fills;  // where BackFills lie in the plan; in answer to kAhead: how many bytes of data are filled
  uint64_t fill_count;
};

enum class BackMemory : uint32_t {
  kUnmap = 1,
  kBrk = 2,
  kMap = 3,
  kProtect = 4,
  kDrop = 5,
  kZero = 6,
  kAdvise = 7,
  // Of shared memory without PROT_WRITE: made writable for the fills, then as prot says. Where that is not
  // allowed the program cannot have written it, and it stays as it is.
  kWritable = 8,
};
struct BackMemoryOp {
  uint32_t kind = 0;               // BackMemory
  uint32_t prot = 0;               // kMap, kProtect, kWritable; kAdvise: the advice
  uint64_t start = 0, length = 0;  // kBrk: start is the new end
  uint64_t offset = 0;
  uint64_t path = 0;   // where in the plan; 0: anonymous
  uint32_t flags = 0;  // MAP_*
  int32_t open_flags = 0;
  uint32_t late = 0;  // the library's own data: together with its fills
  uint32_t reserved = 0;
  uint64_t device = 0, inode = 0;  // kMap: of the file; inode 0: any
};

struct BackFill {
  uint64_t address, length;
  uint64_t at;    // bytes into the data
  uint32_t late;  // the library's own data
  uint32_t reserved;
};

enum class BackDescriptor : uint32_t {
  kClose = 1,
  kDup = 2,         // a: of which it is a duplicate; b: FD_CLOEXEC
  kPlace = 3,       // a: which of those that the asker has sent, from 0; b: FD_CLOEXEC
  kFlags = 4,       // a: F_SETFD
  kStatus = 5,      // a: F_SETFL
  kSeek = 6,        // a: offset
  kEvent = 7,       // a: counter of an eventfd
  kTimer = 8,       // data: itimerspec; a: flags; b: expirations that were not read
  kSignals = 9,     // a: mask of a signalfd
  kPipe = 10,       // fd: writing end, a: reading end, b: its size, data: what it held
  kEpoll = 11,      // a: EPOLL_CTL_*, b: descriptor, data: epoll_event
  kSize = 12,       // a: length of a file without a name, b: its descriptor before any is changed, -1: none
  kContent = 13,    // a: offset, data
  kDirectory = 14,  // data: path
  kUmask = 15,      // a
  kLock = 16,       // data: struct flock
  // Of a job, where other members have a part in it.
  kRefill = 17,      // fd: reading end of a pipe, a: RefillFlag, b: its size, data: what it held
  kDrain = 18,       // fd: socket, a: 1: of TCP
  kSend = 19,        // fd: socket, data: one message, or a part of a stream
  kGroup = 20,       // a: process group
  kForeground = 21,  // a: process group, of the controlling terminal
  kFlush = 22,       // fd: master of a pseudo-terminal, data: MasterDetail and a begun line
  kEnter = 23,       // a: as of kPlace: the working directory, which had been removed
};
enum RefillFlag : int64_t {
  kRefillMore = 1,    // behind what is there; otherwise it is emptied first
  kRefillPacket = 2,  // one packet, as of O_DIRECT
};
// Of a job: behind which barriers. Bytes in connections are taken out in the first part and the second. Those
// of the image are sent in the third.
inline constexpr uint32_t kBackParts = 3;
struct BackDescriptorOp {
  uint32_t kind;
  int32_t fd;
  int64_t a, b;
  uint64_t data, bytes;  // in the plan
  uint32_t part = 0;     // below kBackParts
  uint32_t reserved = 0;
};

// At the beginning of the plan's part of the memfd. All places are bytes from there.
struct BackPlan {
  uint64_t memory, memory_count;           // BackMemoryOp
  uint64_t descriptors, descriptor_count;  // BackDescriptorOp
  uint64_t threads, thread_count;          // int32_t: thread ids of the checkpoint
  uint64_t cookie;                         // of the abstract socket that gives descriptors, "ckpt_back.%016x"
  uint32_t received;                       // how many descriptors come on that socket
  int32_t first_free;                      // above all numbers in use then or now
  uint64_t fills, fill_count;
  uint32_t more, reserved;
  uint64_t ended, ended_count;  // int32_t: processes that were born since, and are to be waited for
  // AddressLine: where the hosts of the job are, if one of them has died and another one has its processes;
  // 0: as at the checkpoint.
  uint64_t addresses, address_count;
};

}  // namespace ckpt
