// Droppable memory (MAP_DROPPABLE, Linux 6.11): private memory that the kernel may turn into zeros at any
// time.
//
// Owner: base. Callers: any thread.
// Never: changes anything of the process.
#pragma once

#include <sys/mman.h>

#include "base/sys.h"
#include "base/units.h"

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE 0x08  // linux/mman.h of 6.11 and later
#endif

namespace ckpt {

inline bool kernel_has_droppable_memory() {
  const long page = sys::call(__NR_mmap, 0L, kPageSize, PROT_READ, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0L);
  return !sys::failed(page) && sys::call(__NR_munmap, page, kPageSize) == 0;
}

}  // namespace ckpt
