#include "cli/image/jobs/job_images.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>

#include "base/raii_fd.h"
#include "cli/text/failure.h"
#include "image/format/image_probe.h"
#include "image/read/sources/reading_key.h"
#include "job/format/job_name.h"

namespace ckpt::cli {

namespace {

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

// The image is the one that the manifest means.
Result<void> check_image(JobEntry& job, const ManifestFile& file) {
  const std::string path = job.path + "/" + file.name;
  const ScopedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) {
    return failure(errno == ENOENT ? ExitCode::kNotFound : ExitCode::kIo, path,
                   fmt::format("cannot be opened ({})", errno_name(errno)),
                   "bring the file back, or use an older checkpoint");
  }
  auto brief = probe_image(fd.get(), path.c_str(), reading_key());
  if (!brief.ok()) return brief.error();
  job.bytes += brief->file_bytes;
  job.memory_bytes += brief->memory_bytes;
  job.increment = job.increment || brief->parent.sequence != 0;
  if (fmt::format("{:016x}", brief->meta_checksum) != file.checksum || brief->file_bytes != file.bytes) {
    return failure(ExitCode::kImageDamaged, path, "is not the image that the job's manifest means",
                   "use an older checkpoint");
  }
  return {};
}

}  // namespace

JobEntry examine_job(const std::string& argument) {
  JobEntry job;
  job.path = without_slashes(argument);
  const std::string name = last_part(job.path);
  job::ParsedJobName parsed;
  if (job::parse_job_name(name, &parsed)) {
    job.comm = parsed.comm;
    job.sequence = parsed.sequence;
    job.temporary = parsed.temporary;
  }
  if (job.temporary) {
    job.error = failure(ExitCode::kImageDamaged, job.path, "was never finished", "use another checkpoint");
    return job;
  }
  auto manifest = read_manifest(job.path);
  if (!manifest.ok()) {
    job.error = manifest.error();
    return job;
  }
  job.manifest = std::move(*manifest);
  job.sequence = job.manifest.sequence;
  if (job.comm.empty()) job.comm = job.manifest.name;
  for (const ManifestFile& file : job.manifest.files) {
    if (const Result<void> checked = check_image(job, file); !checked.ok()) {
      job.error = checked.error();
      return job;
    }
  }
  job.complete = true;
  return job;
}

std::vector<JobEntry> list_jobs(const std::string& directory) {
  std::vector<JobEntry> jobs;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.c_str()), closedir);
  if (dir == nullptr) return jobs;
  while (const dirent* entry = readdir(dir.get())) {
    job::ParsedJobName parsed;
    if (!job::parse_job_name(entry->d_name, &parsed)) continue;
    JobEntry job = examine_job(directory + "/" + entry->d_name);
    struct stat st;
    if (!job.complete && lstat(job.path.c_str(), &st) != 0) continue;  // removed, or committed, meanwhile
    jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const JobEntry& a, const JobEntry& b) {
    return std::tie(a.sequence, a.path) < std::tie(b.sequence, b.path);
  });
  return jobs;
}

std::string job_of(const std::string& argument) {
  const std::string path = without_slashes(argument);
  return is_job_directory(path) ? path : "";
}

std::vector<std::string> images_of_job(const JobEntry& job) {
  std::vector<std::string> paths;
  for (const ManifestFile& file : job.manifest.files) paths.push_back(job.path + "/" + file.name);
  return paths;
}

}  // namespace ckpt::cli
