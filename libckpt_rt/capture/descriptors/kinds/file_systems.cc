#include "libckpt_rt/capture/descriptors/kinds/file_systems.h"

#include <linux/magic.h>
#include <sys/statfs.h>

#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

bool has_volatile_inodes(int64_t type) {
  switch (type) {
    case PROC_SUPER_MAGIC:
    case SYSFS_MAGIC:
    case CGROUP_SUPER_MAGIC:
    case CGROUP2_SUPER_MAGIC:
    case DEBUGFS_MAGIC:
    case TRACEFS_MAGIC:
    case SECURITYFS_MAGIC:
      return true;
    default:
      return false;
  }
}

bool has_no_bytes(int64_t type) {
  constexpr int64_t kSecretMemory = 0x5345434d, kNamespaces = 0x6e736673, kPidFs = 0x50494446,
                    kDmaBuf = 0x444d4142;
  return type == kMessageQueues || type == kSecretMemory || type == kNamespaces || type == kPidFs ||
         type == kDmaBuf;
}

bool is_made_by_the_kernel(const char* path) {
  struct statfs fs {};
  if (sys::call(__NR_statfs, path, &fs) != 0) return true;
  return has_volatile_inodes(fs.f_type) || fs.f_type == ANON_INODE_FS_MAGIC || fs.f_type == NSFS_MAGIC;
}

}  // namespace ckpt
