// What an image says about the process, apart from the contents of its memory: the records of the
// META section. Written by libckpt_rt at the stop, read by ckpt-restart and ckpt.
//
// A record is a RecordHeader, a fixed struct named below, then strings and blobs. The struct counts these, in
// the order of its *_len fields; they are padded to 8 bytes. Unknown types are refused: a record exists
// because restart needs it. Grammar and example: docs/image_format.md.
//
// All integers little-endian. All times in nanoseconds. All addresses are of the saved process.
// Contract: structs only grow with a new format version (image_format.h, kFormatVersion).
//
// Owner: image/format. Callers: libckpt_rt/checkpoint writes them, image/read checks them, restart/ and cli/
// use them.
#pragma once

#include <cstdint>

#include "image/format/records/note_severity.h"

namespace ckpt {

enum class RecordType : uint32_t {
  kEnd = 0,
  kProcess = 1,
  kMm = 2,
  kMapping = 3,
  kThread = 4,
  kSignalAction = 5,
  kDescriptor = 6,   // descriptor_records.h
  kOpenFile = 7,     // descriptor_records.h
  kFileContent = 8,  // descriptor_records.h: contents of files, memfds, pipes, sockets, queues
  kPosixTimer = 9,
  kIntervalTimers = 10,
  kResourceLimits = 11,
  kPendingSignal = 12,
  kNote = 13,
  kCost = 14,
  kChild = 20,
  kSystemV = 21,  // system_v_records.h
};

struct RecordHeader {
  uint32_t type;    // RecordType
  uint32_t length;  // bytes of payload that follow, a multiple of 8
};

// Exactly one, first.
struct ProcessRecord {
  int32_t pid, ppid, pgid, sid;
  uint32_t uid[4], gid[4];  // real, effective, saved, file system
  uint32_t umask;
  uint32_t personality;
  int32_t dumpable;           // PR_GET_DUMPABLE
  int32_t no_new_privs;       // PR_GET_NO_NEW_PRIVS
  int32_t child_subreaper;    // PR_GET_CHILD_SUBREAPER
  int32_t thp_disable;        // PR_GET_THP_DISABLE
  int32_t checkpoint_signal;  // number of the signal that stops threads
  uint32_t thread_count;
  uint64_t cap_effective, cap_permitted, cap_inheritable, cap_bounding, cap_ambient;
  int64_t realtime_ns, monotonic_ns, boottime_ns;  // clocks at the stop
  uint64_t xfeatures;                              // XCR0: extended state components in the threads' frames
  uint64_t vdso_hash;                              // xxh3 of the vdso's bytes
  uint64_t vdso_start, vdso_end;
  uint64_t vvar_start, vvar_end;  // all vvar mappings, contiguous, just below the vdso
  uint64_t restart_entry;     // address of libckpt_rt's entry for restart (base/protocol/restart_protocol.h)
  uint64_t restart_state;     // passed to it
  uint32_t restart_protocol;  // kRestartProtocolVersion of the library in the image
  uint32_t membarrier;        // membarrier registrations, bits of MEMBARRIER_CMD_*
  uint32_t group_count;
  uint32_t cpu_features_len;  // blob: CpuFeatures bytes, compared for "all of these are here"
  uint32_t cwd_len;
  uint32_t root_len;
  uint32_t comm_len;
  uint32_t library_path_len;
  // then: uint32_t groups[group_count], cpu features, cwd, root, comm, library path
};

// Exactly one: the mm description (prctl(2), PR_SET_MM_MAP).
struct MmRecord {
  uint64_t start_code, end_code, start_data, end_data;
  uint64_t start_brk, brk, start_stack;
  uint64_t arg_start, arg_end, env_start, env_end;
  uint32_t auxv_len;  // bytes, as in /proc/PID/auxv
  uint32_t exe_path_len;
  uint64_t reserved;
  // then: auxv, exe path
};

enum class MappingKind : uint32_t {
  kAnonymous = 0,        // private anonymous, also brk and stacks
  kFilePrivate = 1,      // MAP_PRIVATE of a file; changed pages are in the image
  kFileShared = 2,       // MAP_SHARED of a regular file; resident pages of a writable one in the image
  kSharedAnonymous = 3,  // MAP_SHARED|MAP_ANONYMOUS ("/dev/zero (deleted)")
  kMemfd = 4,            // memfd_create; with kMapPrivate only changed pages are in the image
  kSysV = 5,             // shmat
  kDevice = 6,           // character device such as /dev/zero, mapped again from its path
  kVdso = 7,             // vdso and vvar: moved, no contents
  kLibraryOwned = 8,     // libckpt_rt's own working memory: not saved, not mapped at restart
};

// FileContentRecord::object of the vdso's code pages (open_file 0), so that the image can be restarted
// under another kernel. Optional. No object_number() is this one's: inode and device would have to hash to
// it.
inline constexpr uint64_t kVdsoContentObject = 0x766473'6f2d636f64;

enum MappingFlag : uint32_t {
  kMapGrowsDown = 1u << 0,
  kMapHugeTlb = 1u << 1,
  kMapNoReserve = 1u << 2,
  kMapLocked = 1u << 3,
  kMapDontFork = 1u << 4,
  kMapDontDump = 1u << 5,
  kMapWipeOnFork = 1u << 6,
  kMapHugePage = 1u << 7,  // madvise(MADV_HUGEPAGE)
  kMapNoHugePage = 1u << 8,
  kMapMergeable = 1u << 9,
  kMapLockOnFault = 1u << 10,
  kMapSequential = 1u << 11,
  kMapRandom = 1u << 12,
  kMapFileDeleted = 1u << 13,  // the file has no name any more; contents in a FileContent record
  kMapPrivate = 1u << 14,      // kinds 4 and 6: MAP_PRIVATE; without it they are MAP_SHARED
  kMapMayWrite = 1u << 15,     // kind 2: the descriptor behind it was open for writing (VmFlags "mw")
  kMapWhole = 1u << 16,        // kind 2: a file of which the image has all of the mapping but pages of zeros
  kMapDroppable = 1u << 17,    // kind 0: MAP_DROPPABLE; a restart maps it without its pages
  kMapElsewhere = 1u << 18,    // kinds 3, 5: its pages are in the image of another member of the job
};

// One record for each line of /proc/PID/maps that restart must rebuild, in address order, no overlap.
struct MappingRecord {
  uint64_t start, end;
  uint64_t file_offset;  // bytes
  uint32_t prot;         // PROT_*
  uint32_t kind;         // MappingKind
  uint32_t flags;        // MappingFlag
  uint32_t page_size;    // bytes, of hugetlb mappings, else 4096
  uint64_t device, inode;
  uint64_t object;       // mappings of one shared object (kinds 2 to 5) have the same number; else 0
  uint64_t object_size;  // bytes, of a shared object or file at the stop
  int64_t file_mtime_ns;
  uint64_t file_hash;  // when it has no build id (see build_id_len), else 0; of what: file_hash.h
  int32_t sysv_shmid, sysv_key;
  uint32_t sysv_mode;
  uint32_t path_len;      // of the file; the memfd's name; else 0 or the [name]
  uint32_t build_id_len;  // ELF build id of the file, 0 if none
  uint32_t reserved;
  // then: path, build id
};

// Has the image with the first the bytes of the second, which is kMapElsewhere in that of another member?
constexpr bool has_bytes_of(const MappingRecord& has, const MappingRecord& wants) {
  return has.object == wants.object && (has.flags & kMapElsewhere) == 0 &&
         has.file_offset <= wants.file_offset && wants.file_offset - has.file_offset <= has.end - has.start &&
         wants.end - wants.start <= has.end - has.start - (wants.file_offset - has.file_offset);
}

// One record for each thread; the leader (tid == pid) first.
struct ThreadRecord {
  int32_t tid;
  uint32_t flags;  // ThreadFlag
  uint64_t slot;   // address of libckpt_rt's ThreadSlot, handed back at restart
  uint64_t frame;  // address of the ucontext in the thread's signal frame
  uint64_t fs_base, gs_base;
  // General registers at the stop, for tools (same values as in the frame).
  uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15, rip, eflags;
  uint64_t signal_mask;
  uint64_t altstack_base, altstack_size;
  uint32_t altstack_flags;
  uint32_t name_len;  // without NUL
  uint64_t robust_list, robust_list_len;
  uint64_t clear_child_tid;
  uint64_t rseq;  // 0: not registered
  uint32_t rseq_len, rseq_signature;
  int32_t sched_policy, sched_priority, nice;
  uint32_t sched_flags;
  uint64_t sched_runtime, sched_deadline, sched_period;
  uint64_t timer_slack_ns;
  uint32_t affinity_len;  // bytes of CPU mask
  uint32_t xstate_len;    // bytes of XSAVE area, for tools; 0 if not copied
  // then: name, affinity, xstate
};

enum ThreadFlag : uint32_t {
  kThreadLeader = 1u << 0,
  kThreadLeaderExited = 1u << 1,  // the main thread has called pthread_exit: no frame, no registers
};

// One record for each signal that does not have the default action.
struct SignalActionRecord {
  uint32_t signal;
  uint32_t reserved;
  uint64_t handler;  // 0 SIG_DFL, 1 SIG_IGN
  uint64_t flags;    // SA_*, with SA_RESTORER
  uint64_t restorer;
  uint64_t mask;
};

struct PosixTimerRecord {
  int32_t id;  // the kernel's
  int32_t clock;
  int32_t signal;
  int32_t notify;      // SIGEV_*
  int32_t notify_tid;  // SIGEV_THREAD_ID, else 0
  int32_t reserved;
  uint64_t value;        // sigev_value
  int64_t remaining_ns;  // 0 disarmed
  int64_t interval_ns;
  uint64_t reserved2;  // overruns are counted anew
};

// At most one: ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF, in this order.
struct IntervalTimersRecord {
  int64_t remaining_ns[3];
  int64_t interval_ns[3];
};

// Exactly one.
struct ResourceLimitsRecord {
  uint64_t soft[16], hard[16];  // by RLIMIT_* number
};

struct PendingSignalRecord {
  int32_t tid;  // 0: pending on the process
  int32_t signal;
  uint8_t info[128];  // siginfo_t
};

enum class ChildState : uint32_t {
  kLives = 0,
  kEnded = 1,  // and was not waited for
};

// A child of the program, of which the image has nothing else: a restart of the program alone makes it one
// that was killed.
struct ChildRecord {
  int32_t pid;
  uint32_t state;  // ChildState
  int32_t exit_signal;
  int32_t status;  // of kEnded, as wait(2) has it
  uint32_t name_len;
  uint32_t reserved;
  // then: name
};

// What cannot be saved, or comes back changed: one line for the user.
struct NoteRecord {
  uint32_t severity;  // NoteSeverity
  uint32_t text_len;
  // then: text
};

// At most one: what the checkpoint cost the program until the image was about to be committed.
struct CostRecord {
  uint32_t mode;  // Mode of base/settings/settings.h
  uint32_t attempts;
  int64_t pause_ns;
  int64_t longest_wait_ns;
  uint64_t forced_copies, sequential_copies, release_copies, faults;
  uint64_t bytes_memory;  // 0 where the writer is another process (mode fork)
  int64_t copied_ns;      // from the request until the last segment was copied
};

}  // namespace ckpt
