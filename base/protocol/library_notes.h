// LibraryNotes in words.
//
// Owner: base. Callers: ckpt-restart, and `ckpt back`.
#pragma once

#include <cstdint>

#include "base/protocol/restart_protocol.h"

namespace ckpt {

struct LibraryNoteText {
  uint32_t note;
  const char* line;
};

inline constexpr LibraryNoteText kLibraryNoteTexts[] = {
    {kNoteScheduling,
     "a thread's nice value or scheduling policy could not be set as it was (it needs CAP_SYS_NICE)"},
    {kNoteAffinity, "a thread was bound to processors that this machine does not have, or does not give us"},
    {kNoteIoPriority, "a thread's I/O priority could not be set as it was (ionice)"},
    {kNoteFutureLocks,
     "mlockall(MCL_FUTURE) was refused: memory mapped from now on is not locked; raise ulimit -l"},
    {kNoteOomScore, "oom_score_adj could not be lowered to what it was (it needs CAP_SYS_RESOURCE)"},
    {kNoteAmbient, "ambient capabilities could not be set as they were"},
    {kNoteThreadUser,
     "a thread had another user or groups than the first thread: it has those of the first now, for "
     "ckpt-restart may not choose them"},
    {kNoteThreadSets,
     "a thread's bounding set of capabilities could not be set as it was: to make it smaller needs "
     "CAP_SETPCAP, and it cannot be larger than the first thread's"},
    {kNoteSecureBits,
     "what being root means to the program (PR_SET_SECUREBITS) could not be set as it was, which needs "
     "CAP_SETPCAP: it means what it does by default"},
    {kNoteGuards,
     "guard regions (MADV_GUARD_INSTALL) could not be made again: they are memory of zeros now; does this "
     "kernel know them (Linux 6.13)?"},
    {kNoteSeals,
     "memory could not be sealed again (mseal): it may be changed now; does this kernel know the call "
     "(Linux 6.10)?"},
    {kNoteKeys,
     "protection keys (pkey_alloc) or the memory that has them are not as they were: this kernel has given "
     "other keys, or the processor has none; what they forbid is allowed"},
    {kNoteFilters,
     "system calls that the program has forbidden itself (seccomp) could not be forbidden again: this needs "
     "no_new_privs or CAP_SYS_ADMIN, which it has given up since; it may make them now"},
    {kNoteSegments,
     "segments of the program's own (modify_ldt, set_thread_area) are not there again, or a register that "
     "named one is empty: does this kernel have the call (CONFIG_MODIFY_LDT_SYSCALL) and segments of 16 "
     "bits "
     "(CONFIG_X86_16BIT)? Under seccomp filters, as in a container, they are not saved"},
    {kNoteThreadCapabilities,
     "a thread that had ended and was made again has fewer capabilities than it had: the first thread has "
     "given them up"},
    {kNoteMemoryPolicy,
     "on which nodes memory is to lie (set_mempolicy, mbind, numactl) could not be set as it was: this "
     "machine has other nodes"}};

}  // namespace ckpt
