// dlclose: the dynamic linker unmaps libraries by calls of its own, in its own code. What they could
// write, of every library that may go, is announced first.
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
  // Which libraries go with it only the linker knows; their data are small.
  if (hooks::copying()) dl_iterate_phdr(release_writable_segments, nullptr);
  return real_function(RealFunction::kDlclose).as<int(void*)>()(handle);
}
