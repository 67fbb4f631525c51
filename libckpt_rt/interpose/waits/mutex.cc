// pthread_mutex_init: the kernel writes to the word of a priority-inheriting or robust mutex, so that word is
// noted (futex_words.h).
#include <pthread.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

CKPT_INTERPOSE(int, pthread_mutex_init, pthread_mutex_t* mutex, const pthread_mutexattr_t* attributes) {
  using Init = int(pthread_mutex_t*, const pthread_mutexattr_t*);
  int error = real_function(RealFunction::kPthreadMutexInit).as<Init>()(mutex, attributes);
  // Without attributes it is of neither kind.
  if (error == 0 && attributes != nullptr) hooks::note_mutex(mutex);
  return error;
}
