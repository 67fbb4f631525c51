#include "restart/tree/apart.h"

#include <errno.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "restart/tree/namespaces.h"

namespace ckpt {
namespace {

constinit bool own_user_namespace = false;

Error cannot(const char* what) {
  return make_error(
      ExitCode::kUnavailable, errno,
      "several parts of the job on one host: {} ({}): restart as root, allow user namespaces, or name as "
      "many hosts as there are parts",
      what, errno_name(errno));
}

}  // namespace

Result<void> live_apart() {
  const uint32_t uid = geteuid(), gid = getegid();
  if (unshare(CLONE_NEWNS | CLONE_NEWIPC) != 0) {
    if (errno != EPERM || unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC) != 0)
      return cannot("no namespaces for each");
    own_user_namespace = true;
    CKPT_TRY(write_id_maps(getpid(), uid, gid, uid, gid));
  }
  // Our mount must not spread to where we came from.
  if (mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) != 0 ||
      mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") != 0)
    return cannot("no /dev/shm for each");
  return {};
}

bool lives_in_own_user_namespace() { return own_user_namespace; }

}  // namespace ckpt
