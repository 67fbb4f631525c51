// Where the PMIx server of a node has its files.
//
// Owner:     cluster/srun/pmix. Callers: PmixHost. Any thread.
// Never:     makes one.
#pragma once

#include <string>

namespace ckpt::cluster::srun {

// tmpdir: what $TMPDIR is, or nullptr. That directory may be the launcher's host's only: then /tmp.
std::string directory_of_pmix(const char* tmpdir);

}  // namespace ckpt::cluster::srun
