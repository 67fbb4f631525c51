// What several processes of a job have together: made once, before any of them, and inherited by all.
//
// Owner:     restart. Callers: the planter (restart/job/planter.cc), before it forks; one thread.
// Open file descriptions that more than one process has; objects that more than one reaches by descriptions
// of their own (the two ends of a pipe, a memfd opened twice); shared memory. They are made as those of one
// process are, by the same code, from one description of all of them together.
// Never:     below the working descriptors: no process's own numbers are touched.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "image/read/image_meta.h"
#include "restart/descriptors/descriptors.h"
#include "restart/job/job_plan.h"
#include "restart/job/late_messages.h"
#include "restart/reports/report.h"

namespace ckpt {

struct SharedThings {
  std::vector<InheritedFiles> files;  // by member
  std::map<uint64_t, int> objects;
  std::map<uint64_t, uint64_t> views;
  std::set<uint64_t> mapped_objects;
  std::map<uint64_t, int> lone_pipes;  // DescriptorOptions
  std::map<uint32_t, int> terminals;   // of the job's own: /dev/pts/N as it was, and one descriptor of it
  std::unique_ptr<LateMessages> late;  // nullptr: all messages are where they waited
};

// `working` is open above every number of the job. Files of the job that are gone, changed or grown since the
// checkpoint, and System V objects, go back here as well.
Result<SharedThings> make_shared_things(const JobPlan& job, WorkingFds& working, ReportChannel& report);

}  // namespace ckpt
