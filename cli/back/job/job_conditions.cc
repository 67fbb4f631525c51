#include "cli/back/job/job_conditions.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "base/clock.h"
#include "base/files/task_text.h"
#include "cli/back/job/late_processes.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"
#include "restart/channels/hosts_plan.h"

namespace ckpt::cli {

Result<void> check_writer(const std::string& path) {
  struct stat st;
  if (lstat(path.c_str(), &st) != 0)
    return make_error(ExitCode::kNotFound, errno, "{}: cannot be read ({})", brief(path), errno_name(errno));
  if ((st.st_uid == geteuid() || st.st_uid == 0) && (st.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
  return failure(ExitCode::kPermission, path, "belongs to somebody else, or others may write it",
                 "use a checkpoint of your own, or --trust");
}

Result<LockedDirectory> lock_directory(const std::string& checkpoint, int64_t patience_ns) {
  std::string parent = checkpoint.substr(0, checkpoint.rfind('/'));
  if (checkpoint.find('/') == std::string::npos) parent = ".";
  LockedDirectory locked{ScopedFd(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), {}};
  if (!locked.directory.valid())
    return make_error(ExitCode::kPermission, errno, "{}: cannot be opened ({})", brief(parent),
                      errno_name(errno));
  const int64_t until = now_ns() + patience_ns;
  while (!locked.lock.try_take(locked.directory.get())) {
    if (now_ns() > until)
      return failure(ExitCode::kTimeout, parent, "a checkpoint is being taken all the time", "ask again");
    wait_a_moment();
  }
  return locked;
}

Result<void> check_outside(const Manifest& manifest) {
  const char* own = getenv("CKPT_JOB");
  if (own == nullptr || std::string_view(own).substr(0, manifest.job.size()) != manifest.job) return {};
  return failure(ExitCode::kUnsupported, "ckpt back", "was started by the job that is to go back",
                 "run it from outside of the job");
}

Result<void> check_untraced(const Manifest& manifest) {
  const auto number = [](int pid, const char* key) {
    return static_cast<int>(ProcText(pid, 0, "/status").number(key, 10));
  };
  for (const auto& m : manifest.members) {
    const int tracer = number(m.pid, "\nTracerPid:\t");
    if (tracer == 0 || manifest.member(number(tracer, "\nTgid:\t")) == nullptr) continue;
    return failure(
        ExitCode::kUnsupported, fmt::format("process {}", m.pid),
        fmt::format("is traced by process {} of its job (ptrace), which cannot go back in place", tracer),
        "nothing was changed; end the job and bring it back with ckpt-restart");
  }
  return {};
}

Result<void> check_one_host(const std::string& directory) {
  const std::string host = host_of_part(directory);
  if (host.empty()) return {};
  return failure(
      ExitCode::kUnsupported, directory,
      fmt::format("is the part of {} of a job over several hosts, which goes back on all of them",
                  printable(host)),
      "nothing was changed; name a process of the job, and a .hosts file if it is not to be the newest");
}

}  // namespace ckpt::cli
