// Owner: interposition. Header only. Callers: threads of the program, in an interposed function of liburing.
#pragma once

#include <errno.h>

#include <atomic>

#include "libckpt_rt/core/process/dynamic_linker.h"

namespace ckpt {

// liburing's function of a name. A liburing that was loaded since, by dlopen(3), is not among the libraries
// that come next: it is looked for when its function is called, as the dynamic linker would have done.
class LiburingFunction {
 public:
  explicit constexpr LiburingFunction(const char* name) : name_(name) {}
  template <typename Result, typename... Args>
  Result call(Args... args) {
    void* address = address_.load(std::memory_order_relaxed);
    if (address == nullptr) address = find();
    if (address == nullptr) return static_cast<Result>(-ENOSYS);
    return reinterpret_cast<Result (*)(Args...)>(address)(args...);
  }

 private:
  void* find() {
    void* found = dynamic_linker::find(RTLD_NEXT, name_);
    if (void* library = found == nullptr ? dynamic_linker::loaded("liburing.so.2") : nullptr;
        library != nullptr)
      found = dynamic_linker::find(library, name_);
    address_.store(found, std::memory_order_relaxed);
    return found;
  }
  const char* const name_;
  std::atomic<void*> address_{nullptr};
};

}  // namespace ckpt
