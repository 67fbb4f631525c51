#include "libckpt_rt/core/process/dynamic_linker.h"

#include <link.h>

#include <algorithm>
#include <atomic>

#include "base/memory/fork_path.h"
#include "libckpt_rt/core/preload_rules.h"

// Weak: null where libc.so.6 does not have them. With the version that they have had in every glibc.
#pragma weak dlopen
#pragma weak dlsym
#pragma weak dladdr
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dladdr, dladdr@GLIBC_2.2.5");
extern "C" {
// Before glibc 2.34: with these, libc itself loads libraries and looks into them (GLIBC_PRIVATE).
[[gnu::weak]] void* __libc_dlopen_mode(const char*, int);
[[gnu::weak]] void* __libc_dlsym(void*, const char*);
}

namespace ckpt::dynamic_linker {
namespace {

constexpr int kAsDlopen = static_cast<int>(0x80000000);  // __RTLD_DLOPEN of glibc

using Find = void*(void*, const char*);
using Describe = int(const void*, Dl_info*);

// A function of libdl.so.2, which is loaded for it.
void* of_libdl(const char* name) {
  if (__libc_dlopen_mode == nullptr || __libc_dlsym == nullptr) return nullptr;
  void* library = __libc_dlopen_mode("libdl.so.2", RTLD_NOW | kAsDlopen);
  return library == nullptr ? nullptr : __libc_dlsym(library, name);
}

// Looked for once; threads that look at the same time find the same.
template <typename Function>
Function* function(Function* of_libc, const char* name, std::atomic<Function*>& found) {
  if (of_libc != nullptr) return of_libc;
  Function* f = found.load(std::memory_order_relaxed);
  if (f != nullptr) return f;
  f = reinterpret_cast<Function*>(of_libdl(name));
  found.store(f, std::memory_order_relaxed);
  return f;
}

}  // namespace

CKPT_START_PATH void* find(void* handle, const char* name) {
  static constinit std::atomic<Find*> found{nullptr};
  Find* f = function<Find>(&::dlsym, "dlsym", found);
  return f == nullptr ? nullptr : f(handle, name);
}

void* loaded(const char* library) {
  constexpr int kOnlyIfLoaded = RTLD_LAZY | RTLD_NOLOAD;
  if (&::dlopen != nullptr) return ::dlopen(library, kOnlyIfLoaded);
  return __libc_dlopen_mode == nullptr ? nullptr : __libc_dlopen_mode(library, kOnlyIfLoaded | kAsDlopen);
}

bool describe(const void* address, Dl_info& info) {
  static constinit std::atomic<Describe*> found{nullptr};
  Describe* f = function<Describe>(&::dladdr, "dladdr", found);
  return f != nullptr && f(address, &info) != 0;
}

CKPT_START_PATH AddrRange range_of_object_with(const void* address) {
  struct Search {
    Addr address;
    AddrRange found;
  } search{Addr::of(address), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void* to) {
        auto& s = *static_cast<Search*>(to);
        AddrRange range{};
        for (const auto* h = object->dlpi_phdr; h != object->dlpi_phdr + object->dlpi_phnum; ++h) {
          if (h->p_type != PT_LOAD) continue;
          const Addr start{object->dlpi_addr + h->p_vaddr};
          const AddrRange part{start.page_down(), (start + h->p_memsz).page_up()};
          range = range.empty() ? part
                                : AddrRange{std::min(range.start, part.start), std::max(range.end, part.end)};
        }
        if (!range.contains(s.address)) return 0;
        s.found = range;
        return 1;
      },
      &search);
  return search.found;
}

}  // namespace ckpt::dynamic_linker
