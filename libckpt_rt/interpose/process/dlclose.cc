// dlclose: the dynamic linker unmaps libraries by system calls of its own. So while a copy is under way, the
// writable segments of all libraries are announced first (hooks::before_release).
#include <link.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

namespace {

int release_writable_segments(dl_phdr_info* info, size_t, void*) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) == 0) continue;
    hooks::before_release(info->dlpi_addr + segment.p_vaddr, segment.p_memsz);
  }
  return 0;
}

}  // namespace

CKPT_INTERPOSE(int, dlclose, void* handle) {
  // Of all libraries: only the linker knows which ones go with this one, and their data are small.
  if (hooks::copying()) dl_iterate_phdr(release_writable_segments, nullptr);
  return real_function(RealFunction::kDlclose).as<int(void*)>()(handle);
}
