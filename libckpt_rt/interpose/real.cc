#include "libckpt_rt/interpose/real.h"

#include <atomic>

#include "libckpt_rt/core/process/dynamic_linker.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr const char* kNames[] = {"_Fork",        "pthread_attr_setsigmask_np",
                                  "setcontext",   "swapcontext",
                                  "dlclose",      "aio_suspend",
                                  "gai_suspend",  "pthread_mutex_init",
                                  "timer_create", "setuid",
                                  "seteuid",      "setreuid",
                                  "setresuid",    "posix_spawn",
                                  "posix_spawnp", "vfork",
                                  "clone",        "system",
                                  "popen",        "mq_notify",
                                  "getifaddrs",   "fcntl",
                                  "wait4",        "waitid",
                                  "ptrace"};
constexpr unsigned kCount = static_cast<unsigned>(RealFunction::kCount);
static_assert(sizeof(kNames) / sizeof(kNames[0]) == kCount);

constinit std::atomic<void*> addresses[kCount];

[[gnu::constructor(101)]] void find_real_functions() {
  for (unsigned i = 0; i < kCount; ++i)
    addresses[i].store(dynamic_linker::find(RTLD_NEXT, kNames[i]), std::memory_order_relaxed);
}

constexpr char kNever = 0;

// Not a symbol that the library asks for: its version would keep it off glibc 2.31. In a program that has a
// copy of the variable (R_X86_64_COPY) the copy is the one that counts, so the search begins with the
// program.
[[gnu::constructor(101)]] void find_single_threaded() {
  if (const void* found = dynamic_linker::find(RTLD_DEFAULT, "__libc_single_threaded"))
    single_threaded = static_cast<const char*>(found);
}

}  // namespace

constinit const char* single_threaded = &kNever;

RealAddress real_function(RealFunction which) {
  std::atomic<void*>& address = addresses[static_cast<unsigned>(which)];
  if (address.load(std::memory_order_relaxed) == nullptr) find_real_functions();
  return {address.load(std::memory_order_relaxed)};
}

}  // namespace ckpt
