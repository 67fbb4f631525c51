// The new process, from its first instruction as a copy of ckpt-restart until the restorer takes over.
//
// Owner:     restart. Callers: launch(), in the child. Never returns, never prints: what it has to say
//            goes through the report channel.
#pragma once

#include <string>

#include "image/read/image_chain.h"
#include "restart/feed/feeder.h"
#include "restart/plan/fill_plan.h"
#include "restart/plan/lazy_plan.h"
#include "restart/plan/report.h"
#include "restart/plan/vdso.h"
#include "restart/tree/job.h"

namespace ckpt {

struct ProcessSpec {
  const ImageChain* image = nullptr;
  const FillPlan* fill = nullptr;
  const LazyPlan* lazy = nullptr;
  const Vdso* vdso = nullptr;
  int status_fd = -1;  // writing end
  FeedFds feed;        // none: nothing is filled in
  int loader_fd = -1;  // socket; -1: nothing is lazy
  bool new_pid_namespace = false;
  bool is_alone = false;  // no job: children that were not saved have been killed
  JobPlace place = JobPlace::kRestarters;
  std::string image_directory;  // where tails of files that have grown are kept
};

[[noreturn]] void become_program(const ProcessSpec& spec, ReportChannel& report, bool in_new_user);

}  // namespace ckpt
