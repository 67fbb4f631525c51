// What pthread_cleanup_push(3) is made of. Before glibc 2.34 it is in libpthread.so.0, which the library does
// not ask for (core/process/dynamic_linker.h). So it is looked for when a thread first needs it. A program
// whose thread waits at a semaphore has loaded libpthread by then.
#include <pthread.h>

#include <atomic>

#include "libckpt_rt/core/process/dynamic_linker.h"
#include "libckpt_rt/core/preload_rules.h"

namespace {

using OfBuffer = void(__pthread_unwind_buf_t*);

OfBuffer* find_once(std::atomic<OfBuffer*>& found, const char* name) {
  OfBuffer* f = found.load(std::memory_order_relaxed);
  if (f == nullptr) {
    f = reinterpret_cast<OfBuffer*>(ckpt::dynamic_linker::find(RTLD_NEXT, name));
    found.store(f, std::memory_order_relaxed);
  }
  return f;
}

}  // namespace

// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): the names are glibc's
extern "C" {

[[gnu::visibility("hidden")]] void __pthread_register_cancel(__pthread_unwind_buf_t* buffer) {
  static constinit std::atomic<OfBuffer*> found{nullptr};
  find_once(found, "__pthread_register_cancel")(buffer);
}

[[gnu::visibility("hidden")]] void __pthread_unregister_cancel(__pthread_unwind_buf_t* buffer) {
  static constinit std::atomic<OfBuffer*> found{nullptr};
  find_once(found, "__pthread_unregister_cancel")(buffer);
}

[[gnu::visibility("hidden")]] void __pthread_unwind_next(__pthread_unwind_buf_t* buffer) {
  static constinit std::atomic<OfBuffer*> found{nullptr};
  find_once(found, "__pthread_unwind_next")(buffer);
  __builtin_unreachable();
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
