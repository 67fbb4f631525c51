// A job's checkpoint that comes as one stream (image/format/job_stream.h), as a directory that can be read anywhere.
//
// Owner:     writer (reader half). Callers: main() of ckpt-restart and ckpt's commands; ordinary C++.
// The directory is in $TMPDIR, else /tmp, 0700, and goes with this object. What is in it is checked by whoever reads it, as any
// checkpoint is; here only that the stream is whole.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

namespace ckpt {

class JobSpool {
 public:
  // argument: "-", standard input, or the path of a file or FIFO. nullptr: no stream of a job; standard input can be read from its
  // beginning all the same. Errors: 65 damaged or cut, 73 and 74 no room in $TMPDIR.
  static Result<std::unique_ptr<JobSpool>> of(const std::string& argument);
  // Made before this program was executed anew.
  static std::unique_ptr<JobSpool> adopt(std::string directory);
  ~JobSpool();
  JobSpool(const JobSpool&) = delete;
  JobSpool& operator=(const JobSpool&) = delete;

  // "NAME.NNNNNN.job" in a directory of ours.
  const std::string& directory() const { return job_; }
  void remove();

 private:
  explicit JobSpool(std::string outer) : outer_(std::move(outer)) {}
  Result<void> fill(int fd, const std::string& name, std::string_view before);

  std::string outer_, job_;
  int owner_ = 0;  // pid: a forked child removes nothing
};

}  // namespace ckpt
