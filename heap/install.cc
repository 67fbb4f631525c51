// libckpt_heap.so: malloc and its family by jemalloc, with memory from our regions. Preloaded by
// `ckpt run --heap=jemalloc`.
//
// Nothing of jemalloc's own interface is exported, nor operator new: that of the program calls malloc.
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>

#include "heap/hooks.h"
#include "heap/region.h"

// jemalloc's settings, before those of MALLOC_CONF.
// dirty_decay_ms: what was freed and is not used again within this time is decommitted: from then on no image
// has it. muzzy_decay_ms: no second stage. oversize_threshold: no arena of their own for large blocks, since
// it would be made when the first is allocated, without our hooks.
const char* malloc_conf = "dirty_decay_ms:1000,muzzy_decay_ms:0,oversize_threshold:0";

// The one function of malloc's family that jemalloc does not have; libc's would take its memory elsewhere.
extern "C" __attribute__((visibility("default"))) void* pvalloc(size_t size) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (size > SIZE_MAX - page) {
    errno = ENOMEM;
    return nullptr;
  }
  return memalign(page, size == 0 ? page : (size + page - 1) & ~(page - 1));
}

namespace {

// Memory that the arenas have by then (the dynamic linker and earlier constructors have allocated) is
// ordinary memory, and stays theirs. An arena that has no hooks yet is made by this.
__attribute__((constructor)) void install() {
  const int error = errno;
  const char* heap = getenv("CKPT_HEAP");
  if (heap != nullptr && std::strcmp(heap, "jemalloc:huge") == 0) ckpt::heap::ask_for_huge_pages();
  unsigned arenas = 0;
  size_t size = sizeof(arenas);
  if (mallctl("opt.narenas", &arenas, &size, nullptr, 0) != 0) return;
  size_t name[3], words = 3;
  if (mallctlnametomib("arena.0.extent_hooks", name, &words) != 0) return;
  for (unsigned i = 0; i < arenas; ++i) {
    extent_hooks_t* hooks = &ckpt::heap::extent_hooks;
    name[1] = i;
    mallctlbymib(name, words, nullptr, nullptr, &hooks, sizeof(hooks));
  }
  errno = error;
}

}  // namespace
