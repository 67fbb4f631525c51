#include "libckpt_rt/capture/memory/droppable_maps.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "base/machine/kernel_caps.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "libckpt_rt/capture/memory/lost_mappings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

enum class Answer { kDroppable, kOrdinary, kUnknown };

// Missing pages of any private anonymous memory but this can be asked for.
Answer ask(int userfaultfd, AddrRange range) {
  uffdio_register missing{};
  missing.range = {range.start.value, range.size()};
  missing.mode = UFFDIO_REGISTER_MODE_MISSING;
  const long r = sys::call(__NR_ioctl, userfaultfd, UFFDIO_REGISTER, &missing);
  if (r == 0) {
    sys::call(__NR_ioctl, userfaultfd, UFFDIO_UNREGISTER, &missing.range);
    return Answer::kOrdinary;
  }
  // EBUSY: another userfaultfd has it.
  return r == -EINVAL ? Answer::kDroppable : r == -EBUSY ? Answer::kOrdinary : Answer::kUnknown;
}

}  // namespace

void confirm_droppable(std::span<Mapping> map, bool filtered) {
  ScopedFd fault_fd;
  bool opened = false;
  for (Mapping& m : map) {
    if ((m.map_flags & kMapDroppable) == 0) continue;
    if (!opened && !filtered) {
      fault_fd = ScopedFd(open_userfaultfd(O_CLOEXEC | O_NONBLOCK, nullptr));
      uffdio_api api{};
      api.api = UFFD_API;
      if (fault_fd.valid() && sys::call(__NR_ioctl, fault_fd.get(), UFFDIO_API, &api) != 0)
        fault_fd.reset(-1);
    }
    opened = true;
    const bool is_anonymous = m.kind == MappingKind::kAnonymous && !m.shared && m.inode == 0;
    const Answer answer = !is_anonymous      ? Answer::kOrdinary
                          : fault_fd.valid() ? ask(fault_fd.get(), m.range)
                                             : Answer::kUnknown;
    if (answer == Answer::kDroppable) continue;
    m.map_flags &= ~uint32_t{kMapDroppable};
    // What the kernel had set with it was of what was there before.
    if (answer == Answer::kOrdinary) m.map_flags &= ~uint32_t{kMapWipeOnFork | kMapDontDump | kMapNoReserve};
    if (answer == Answer::kUnknown) m.map_flags |= kMapUnsure;
  }
}

}  // namespace ckpt
