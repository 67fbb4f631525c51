// Everything that is known and checked of a job before its restart touches anything.
//
// Owner:     restart. Callers: ckpt-restart, one thread.
// Never:     changes anything: no file, no process.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/protocol/restart_protocol.h"
#include "image/read/manifest.h"
#include "restart/job/birth_plan.h"
#include "restart/plan/plan.h"
#include "restart/tree/job.h"
#include "restart/tree/namespaces.h"

namespace ckpt {

struct JobPlan {
  std::string directory;
  Manifest manifest;
  JobPlace place = JobPlace::kRestarters;  // of the topmost process
  OuterIds outer;
  std::vector<std::unique_ptr<RestartPlan>> plans;  // by member; nullptr: a zombie
  BirthPlan births;
  std::vector<std::string> notes;
  int highest_descriptor = -1;

  const RestartPlan& root() const;
  int root_birth() const;
  std::vector<int> ids() const;  // of all threads, zombies and helpers
  const ManifestMember& member(const Birth& birth) const {
    return manifest.members[static_cast<size_t>(birth.member)];
  }
  // "process 12 (make)", for messages.
  std::string name_of(int birth) const;
};

// One whose parent is no member stops late: were ckpt-restart killed, nobody would end it.
inline RestartStopped how_stopped(const Manifest& manifest, const ManifestMember& m) {
  if (m.state != MemberState::kStopped) return RestartStopped::kNo;
  const bool has_parent = !m.orphan && m.pid != manifest.root;
  return m.stop_reported && has_parent ? RestartStopped::kEarly : RestartStopped::kLate;
}

// The description of each image, for the place of new mappings.
Result<std::vector<ImageReader>> open_descriptions(const Manifest& manifest, const std::string& directory,
                                                   bool trust);

// Opens manifest and images, and checks who may have written them and that they belong together. trust: does
// not ask who wrote them.
Result<JobPlan> open_job(const std::string& directory, Manifest manifest, bool trust);

// Plans the births, with ids for helpers that no process has.
Result<void> plan_tree(JobPlan& job);

// The machine, the files, and what others will see, for every member.
Result<void> check_job(JobPlan& job, Loading loading, const VerifyProgress& progress);

}  // namespace ckpt
