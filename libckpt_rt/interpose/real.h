// The next functions of the same names, libc's or those of another preloaded library: a few interposed
// functions only add something, and then call these to do the work.
//
// Owner:     libckpt_rt/interpose. Found in a constructor, since dlsym() allocates and locks. An interposed
//            function calls dlsym() only before that constructor has run, when one thread exists, in the
//            middle of no call; or if no library has the function.
// Callers:   threads of the program.
#pragma once

#include <cstdint>

namespace ckpt {

enum class RealFunction : unsigned {
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
  kClone,
  kSystem,
  kPopen,
  kMqNotify,
  kGetifaddrs,
  kFcntl,
  kWait4,
  kWaitid,
  kPtrace,
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
