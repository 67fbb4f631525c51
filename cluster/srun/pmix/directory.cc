#include "cluster/srun/pmix/directory.h"

#include <sys/stat.h>
#include <unistd.h>

namespace ckpt::cluster::srun {

std::string directory_of_pmix(const char* tmpdir) {
  struct stat st;
  // A relative one would be another for a rank that has gone elsewhere.
  if (tmpdir == nullptr || tmpdir[0] != '/' || stat(tmpdir, &st) != 0 || !S_ISDIR(st.st_mode) ||
      access(tmpdir, W_OK | X_OK) != 0)
    return "/tmp";
  return tmpdir;
}

}  // namespace ckpt::cluster::srun
