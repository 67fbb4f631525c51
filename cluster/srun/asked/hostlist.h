// Slurm's short way to write names of nodes, "h[1-3,07],login", and counts, "2(x3),1".
//
// Owner:     cluster/srun. Callers: ckpt run, ckpt-srun; any thread.
// Never:     makes more than kMostNodes names, whatever the text says.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ckpt::cluster::srun {

inline constexpr size_t kMostNodes = 65536;

Result<std::vector<std::string>> expand_hostlist(std::string_view list);
// Names that follow each other become one range; order is kept.
std::string compress_hostlist(const std::vector<std::string>& names);

// "2(x3),1" is 2 2 2 1.
Result<std::vector<int>> expand_counts(std::string_view list);
std::string compress_counts(const std::vector<int>& counts);

}  // namespace ckpt::cluster::srun
