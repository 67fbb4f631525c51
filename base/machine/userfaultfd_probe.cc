#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

#include "base/machine/kernel_caps.h"
#include "base/raii_fd.h"
#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt {

int open_userfaultfd(int flags, UserfaultfdProbe* probe) {
  UserfaultfdProbe scratch;
  UserfaultfdProbe& p = probe != nullptr ? *probe : scratch;
  p = {};

  long fd = sys::call(__NR_userfaultfd, flags);
  if (!sys::failed(fd)) {
    p.access = UserfaultfdAccess::kFull;
    p.grant = UserfaultfdGrant::kCapabilityOrSysctl;
    return static_cast<int>(fd);
  }
  p.syscall_error = static_cast<int>(-fd);

  // A process that may open the device gets full access without capability or sysctl (Linux 6.1).
  ScopedFd device(
      static_cast<int>(sys::call(__NR_openat, AT_FDCWD, "/dev/userfaultfd", O_RDWR | O_CLOEXEC, 0)));
  if (device.valid()) {
    fd = sys::call(__NR_ioctl, device.get(), USERFAULTFD_IOC_NEW, flags);
    if (!sys::failed(fd)) {
      p.access = UserfaultfdAccess::kFull;
      p.grant = UserfaultfdGrant::kDevice;
      return static_cast<int>(fd);
    }
    p.device_error = static_cast<int>(-fd);
  } else {
    p.device_error = -device.release();
  }

  fd = sys::call(__NR_userfaultfd, flags | UFFD_USER_MODE_ONLY);
  if (!sys::failed(fd)) {
    p.access = UserfaultfdAccess::kUserModeOnly;
    return static_cast<int>(fd);
  }
  p.user_mode_error = static_cast<int>(-fd);
  return static_cast<int>(fd);
}

UserfaultfdProbe probe_userfaultfd() {
  UserfaultfdProbe p;
  ScopedFd fd(open_userfaultfd(O_CLOEXEC | O_NONBLOCK, &p));
  if (!fd.valid()) return p;
  uffdio_api api{};
  api.api = UFFD_API;
  if (!sys::failed(sys::call(__NR_ioctl, fd.get(), UFFDIO_API, &api))) p.features = api.features;
  return p;
}

}  // namespace ckpt
