#include "cli/image/jobs/unpacked.h"

#include <sys/stat.h>

#include <memory>
#include <vector>

#include "image/read/sources/image_spool.h"
#include "image/read/sources/job_spool.h"

namespace ckpt::cli {

namespace {

struct Unpacked {
  std::string stream;
  std::unique_ptr<JobSpool> spool;
};
constinit std::vector<Unpacked> unpacked;

}  // namespace

std::string as_given(const std::string& path) {
  for (const Unpacked& u : unpacked) {
    const std::string& directory = u.spool->directory();
    if (path.starts_with(directory)) return u.stream + path.substr(directory.size());
  }
  return path;
}

Result<void> unpack_stream(std::string& argument) {
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
  unpacked.push_back({stream == "-" ? kStandardInput : stream, std::move(*spool)});
  return {};
}

}  // namespace ckpt::cli
