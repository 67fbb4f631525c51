// The functions behind those few of ours that only add something and then let libc (or whatever the
// program put in its place) do the work.
//
// Owner:     interposition. Found in a constructor: dlsym() allocates and locks, so it is not called from
//            an interposed function, except before the constructor ran: then one thread exists, in the
//            middle of no call.
// Callers:   threads of the program.
#pragma once

#include <cstdint>

namespace ckpt {

enum class RealFunction : unsigned {
  kFork,
  kUnderscoreFork,
  kPthreadAttrSetsigmask,
  kSetcontext,
  kSwapcontext,
  kDlclose,
  kAioSuspend,
  kGaiSuspend,
  kPthreadMutexInit,
  kTimerCreate,
  kSetuid,
  kSeteuid,
  kSetreuid,
  kSetresuid,
  kPosixSpawn,
  kPosixSpawnp,
  kVfork,
  kCount,
};

struct RealAddress {
  void* address;
  template <typename Function>
  Function* as() const {
    return reinterpret_cast<Function*>(address);
  }
};

RealAddress real_function(RealFunction which);

}  // namespace ckpt
