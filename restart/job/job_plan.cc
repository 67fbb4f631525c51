#include "restart/job/job_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "image/format/io_error.h"
#include "restart/descriptors/descriptors.h"

namespace ckpt {
namespace {

std::string path_in(const std::string& directory, const std::string& name) { return directory + "/" + name; }

// A manifest says what runs, as an image does.
Result<void> check_writers(const std::string& path) {
  struct stat st;
  if (lstat(path.c_str(), &st) != 0) return image_io_error("read", path.c_str(), errno);
  const char* shown = path.c_str();
  if (st.st_uid != geteuid() && st.st_uid != 0) {
    return make_error(
        ExitCode::kPermission, 0,
        "{} belongs to user {}, who decides what it runs: restart as that user, or with --trust", shown,
        st.st_uid);
  }
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return make_error(
        ExitCode::kPermission, 0,
        "{} may be written by others (mode {:o}), who then decide what it runs: chmod go-w, or --trust",
        shown, st.st_mode & 07777);
  }
  return {};
}

// An image belongs to the user whose process has written it, and may name any user and any file. A restart
// must not do for its writer what that user could not do himself.
Result<void> check_member_writer(const ManifestMember& m, const std::string& path) {
  struct stat st;
  if (lstat(path.c_str(), &st) != 0) return {};  // its reader says why
  if (st.st_uid == geteuid() || st.st_uid == 0) return {};
  return make_error(
      ExitCode::kPermission, 0,
      "{} was written by process {} ({}) of user {}, who decides what it runs, with your rights: "
      "restart with --trust if you trust what that user ran",
      path, m.pid, m.name, st.st_uid);
}

// The image is that of the manifest, and not of another checkpoint or process.
Result<void> check_member(const Manifest& manifest, const ManifestMember& m, const RestartPlan& plan,
                          const std::string& path) {
  const ProcessRecord& p = plan.process();
  auto mixed = [&](std::string_view what) {
    return make_error(
        ExitCode::kImageDamaged, 0,
        "{} is not the image of process {} of this job: {}; images of different checkpoints are mixed", path,
        m.pid, what);
  };
  if (p.pid != m.pid) return mixed(fmt::format("it is of process {}", p.pid));
  if (p.pgid != m.pgid || p.sid != m.sid) return mixed("its group or session differs");
  const ImageBrief& brief = plan.image->brief();
  for (const ManifestFile& f : manifest.files) {
    if (f.name != m.image) continue;
    if (f.bytes != brief.file_bytes)
      return mixed(fmt::format("it has {} bytes, not {}", brief.file_bytes, f.bytes));
    if (!f.checksum.empty() && f.checksum != fmt::format("{:016x}", brief.meta_checksum))
      return mixed("it is of another checkpoint");
  }
  for (const auto& users : manifest.descriptions) {
    for (const ManifestUser& u : users) {
      if (u.pid == m.pid && plan.image->meta().open_file(u.open_file) == nullptr)
        return mixed(fmt::format("it has no open file {}", u.open_file));
    }
  }
  return {};
}

// Memory that several processes share is in the image of one of them (docs/shared_memory.md).
Result<void> check_savers(const JobPlan& job) {
  const auto saves = [&job](const ParsedMapping& wanted) {
    for (const auto& [object, pid] : job.manifest.owners) {
      for (size_t i = 0; object == wanted.record.object && i < job.plans.size(); ++i) {
        if (job.plans[i] == nullptr || job.manifest.members[i].pid != pid) continue;
        const auto& mappings = job.plans[i]->image->meta().mappings;
        if (std::any_of(mappings.begin(), mappings.end(),
                        [&](const ParsedMapping& m) { return has_bytes_of(m.record, wanted.record); }))
          return true;
      }
    }
    return false;
  };
  for (size_t i = 0; i < job.plans.size(); ++i) {
    if (job.plans[i] == nullptr) continue;
    for (const ParsedMapping& m : job.plans[i]->image->meta().mappings) {
      if ((m.record.flags & kMapElsewhere) == 0 || saves(m)) continue;
      return make_error(ExitCode::kImageDamaged, 0,
                        "{}: memory at {:x}-{:x}, which process {} shares with others, is in no image of "
                        "this job; images of different checkpoints are mixed",
                        path_in(job.directory, job.manifest.members[i].image), m.record.start, m.record.end,
                        job.manifest.members[i].pid);
    }
  }
  return {};
}

}  // namespace

const RestartPlan& JobPlan::root() const {
  for (size_t i = 0; i < manifest.members.size(); ++i) {
    if (manifest.members[i].pid == manifest.root) return *plans[i];
  }
  return *plans.front();  // parse_manifest() has checked that there is one
}

int JobPlan::root_birth() const {
  for (size_t i = 0; i < births.births.size(); ++i) {
    if (births.births[i].pid == manifest.root) return static_cast<int>(i);
  }
  return 0;
}

std::vector<int> JobPlan::ids() const {
  std::vector<int> result = births.pids();
  for (const auto& plan : plans) {
    if (plan == nullptr) continue;
    for (int tid : plan->tids) {
      if (tid != plan->process().pid) result.push_back(tid);
    }
  }
  return result;
}

std::string JobPlan::name_of(int birth) const {
  if (birth < 0 || static_cast<size_t>(birth) >= births.births.size()) return "the job";
  const Birth& b = births.births[static_cast<size_t>(birth)];
  if (b.member < 0) return fmt::format("helper {}", b.pid);
  return fmt::format("process {} ({})", b.pid, member(b).name);
}

Result<std::vector<ImageReader>> open_descriptions(const Manifest& manifest, const std::string& directory,
                                                   bool trust) {
  std::vector<ImageReader> result;
  for (const ManifestMember& m : manifest.members) {
    if (m.state == MemberState::kZombie) continue;
    if (!trust) CKPT_TRY(check_member_writer(m, path_in(directory, m.image)));
    auto image = ImageReader::open(path_in(directory, m.image), ImageParts::kDescription);
    if (!image.ok()) return image.error();
    result.push_back(std::move(*image));
  }
  return result;
}

Result<JobPlan> open_job(const std::string& directory, Manifest manifest, bool trust) {
  JobPlan job;
  job.directory = directory;
  if (!trust) {
    CKPT_TRY(check_writers(directory));
    CKPT_TRY(check_writers(path_in(directory, kManifestName)));
  }
  std::set<int> tids;
  for (const ManifestMember& m : manifest.members) {
    job.plans.emplace_back();
    if (m.state == MemberState::kZombie) continue;
    const std::string path = path_in(directory, m.image);
    if (!trust) CKPT_TRY(check_member_writer(m, path));
    auto plan = open_plan(path);
    if (!plan.ok()) return plan.error();
    CKPT_TRY(check_member(manifest, m, *plan, path));
    for (int tid : plan->tids) {
      if (!tids.insert(tid).second || (tid != m.pid && manifest.member(tid) != nullptr)) {
        return make_error(ExitCode::kImageDamaged, 0, "{}: thread {} is in two processes of the job", path,
                          tid);
      }
    }
    job.highest_descriptor = std::max(job.highest_descriptor, highest_descriptor(plan->image->meta()));
    job.plans.back() = std::make_unique<RestartPlan>(std::move(*plan));
  }
  job.manifest = std::move(manifest);
  CKPT_TRY(check_savers(job));
  for (const ManifestLeftOut& l : job.manifest.left_out) {
    // A plug-in that saves it says so itself when it cannot bring it back (docs/plugins.md).
    if (l.reason.starts_with("saved by ")) continue;
    job.notes.push_back(
        fmt::format("process {} ({}) was left out of the checkpoint: {}", l.pid, l.name, l.reason));
  }
  return job;
}

Result<void> plan_tree(JobPlan& job) {
  const ManifestMember& root = *job.manifest.member(job.manifest.root);
  job.place = job_place(job.root().image->meta());
  job.outer.sid = job.place == JobPlace::kOwnSession ? 0 : root.sid;
  job.outer.pgid = job.place == JobPlace::kRestarters || root.pgid != root.pid ? root.pgid : 0;
  std::set<int> taken;
  for (const auto& plan : job.plans) {
    if (plan != nullptr) taken.insert(plan->tids.begin(), plan->tids.end());
  }
  for (const ManifestMember& m : job.manifest.members) taken.insert({m.pid, m.sid, m.pgid});
  int next = 2;
  auto free_pid = [&]() -> int {
    while (taken.count(next) != 0 || first_tid_in_use({next}) != 0) ++next;
    return next++;
  };
  auto births = plan_births(job.manifest, job.outer, free_pid);
  if (!births.ok()) return births.error();
  job.births = std::move(*births);
  return {};
}

Result<void> check_job(JobPlan& job, Loading loading, const VerifyProgress& progress) {
  ReturningFiles returning;
  WrittenFiles written;
  SharedFiles shared;
  for (const auto& plan : job.plans) {
    if (plan == nullptr) continue;
    add_returning_files(plan->image->meta(), returning);
    add_changing_files(*plan, written);
    add_shared_files(plan->image->meta(), shared);
  }
  for (size_t i = 0; i < job.plans.size(); ++i) {
    if (job.plans[i] == nullptr) continue;
    job.plans[i]->returning = returning;
    job.plans[i]->written = written;
    job.plans[i]->shared = shared;
    if (auto r = check_plan(*job.plans[i], loading, progress); !r.ok()) {
      const ManifestMember& m = job.manifest.members[i];
      return make_error(r.error().code, r.error().sys_errno, "process {} ({}): {}", m.pid, m.name,
                        r.error().message());
    }
    for (const std::string& note : job.plans[i]->notes) {
      if (std::find(job.notes.begin(), job.notes.end(), note) == job.notes.end()) job.notes.push_back(note);
    }
  }
  return {};
}

}  // namespace ckpt
