// A job's checkpoint that comes as one stream (image/format/job_stream.h), as a directory that can be read
// anywhere.
//
// Owner:     image/read. Callers: main() of ckpt-restart and ckpt's commands; ordinary C++.
// The directory is in $TMPDIR, else /tmp, 0700, and goes with this object; if this process is killed a child
// of it, which waits for that, removes it. Its readers check its contents, as those of any checkpoint; here
// it is only checked that the stream is whole.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt {

class JobSpool {
 public:
  // argument: "-", standard input, or the path of a file. nullptr: no stream of a job; standard input can be
  // read from its beginning all the same. Errors: 65 damaged or cut, 73 and 74 no room in $TMPDIR.
  static Result<std::unique_ptr<JobSpool>> of(const std::string& argument);
  // Of a program that executes itself anew: what the first execution has made, for the second. nullptr: there
  // is none.
  void leave_to_next_execution();
  static std::unique_ptr<JobSpool> left_before();
  ~JobSpool();
  JobSpool(const JobSpool&) = delete;
  JobSpool& operator=(const JobSpool&) = delete;

  // "NAME.NNNNNN.job" in a directory of ours.
  const std::string& directory() const { return job_; }
  void remove();

 private:
  JobSpool(std::string outer, ScopedFd hold)
      : outer_(std::move(outer)), hold_(std::move(hold)), owner_(getpid()) {}
  Result<void> fill(int fd, const std::string& name, std::string_view before);

  std::string outer_, job_;
  ScopedFd hold_;  // the janitor acts when nobody has it any more
  int owner_ = 0;  // pid: a forked child removes nothing
};

}  // namespace ckpt
