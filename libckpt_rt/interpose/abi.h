// How an interposed function looks from outside: its name, its errno, and whether it is a cancellation point.
//
// Owner:     libckpt_rt/interpose. Header only. Callers: threads of the program.
// Cancellation: libc's own wrappers enable asynchronous cancellation around the system call, so that
// pthread_cancel() interrupts it, and act on a request that is pending when they are entered. A
// CancellationPoint does the same through the public pthread_setcanceltype(), which acts on a pending
// request by itself. It costs two compare-and-swaps, as in libc, and nothing while the process never had a
// second thread (glibc 2.32 and later tell that). The unwinder passes our frames by their unwind tables;
// nothing in them needs undoing.
#pragma once

#include <errno.h>
#include <pthread.h>

#include "base/sys.h"

// The exported function NAME. Its C++ name differs from libc's, so that no declaration (exception
// specification, attributes, fortified redirection) of libc's headers applies to it.
#define CKPT_INTERPOSE(RESULT, NAME, ...)                                                        \
  extern "C" [[gnu::visibility("default")]] RESULT ckpt_libc_##NAME(__VA_ARGS__) __asm__(#NAME); \
  extern "C" RESULT ckpt_libc_##NAME(__VA_ARGS__)

// A second name of an interposed function.
#define CKPT_INTERPOSE_ALIAS(NAME, ALIAS) \
  __asm__(".globl " #ALIAS "\n.type " #ALIAS ", @function\n.set " #ALIAS ", " #NAME)

// libc's answer to a buffer that is smaller than the program claims (fortified calls).
extern "C" [[noreturn]] void __chk_fail();

namespace ckpt {

template <typename T = long>
inline T to_errno(long result) {
  if (__builtin_expect(sys::failed(result), 0)) {
    errno = static_cast<int>(-result);
    return (T)-1;
  }
  return (T)result;
}

// libc's __libc_single_threaded, or one that is never true: before the constructors, and before glibc 2.32.
extern const char* single_threaded;

class CancellationPoint {
 public:
  CancellationPoint() {
    if (*single_threaded == 0) pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &before_);
  }
  ~CancellationPoint() {
    if (before_ == PTHREAD_CANCEL_DEFERRED) pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, nullptr);
  }
  CancellationPoint(const CancellationPoint&) = delete;
  CancellationPoint& operator=(const CancellationPoint&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ASYNCHRONOUS;
};

}  // namespace ckpt
