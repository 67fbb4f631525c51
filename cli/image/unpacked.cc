#include "cli/image/unpacked.h"

#include <sys/stat.h>

#include <memory>
#include <vector>

#include "image/read/job_spool.h"

namespace ckpt::cli {

Result<void> unpack_stream(std::string& argument) {
  static std::vector<std::unique_ptr<JobSpool>> spools;
  std::string stream = argument, member;
  struct stat st;
  if (const size_t slash = stream.rfind('/'); slash != std::string::npos && stat(stream.c_str(), &st) != 0 &&
                                              stat(stream.substr(0, slash).c_str(), &st) == 0) {
    member = stream.substr(slash);
    stream.resize(slash);
  }
  auto spool = JobSpool::of(stream);
  if (!spool.ok()) return spool.error();
  if (*spool == nullptr) return {};
  argument = (*spool)->directory() + member;
  spools.push_back(std::move(*spool));
  return {};
}

}  // namespace ckpt::cli
