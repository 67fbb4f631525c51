// The new process, from its first instruction as a copy of ckpt-restart until the restorer takes over.
//
// Owner:     restart. Callers: the child of launch(); of a job, each member (planter.cc). Never returns,
//            never prints: what it has to say goes through the report channel.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>

#include "image/read/image_chain.h"
#include "restart/descriptors/descriptors.h"
#include "restart/descriptors/saved_mappings.h"
#include "restart/feed/feeder.h"
#include "restart/plan/memory/fill_plan.h"
#include "restart/plan/memory/lazy_plan.h"
#include "restart/plan/vdso/vdso.h"
#include "restart/reports/report.h"
#include "restart/tree/job.h"

namespace ckpt {

// What a process of a job has from the processes that made the tree (restart/job/).
struct JobSpec {
  int highest_descriptor = -1;         // of all processes: the working descriptors are above it
  InheritedFiles files;                // of this process
  std::map<uint64_t, int> objects;     // memfds and files without a name
  std::map<uint64_t, uint64_t> views;  // shared memory without a descriptor: where it is mapped now
  std::set<uint64_t> mapped_objects;   // by several of them
  std::map<uint64_t, int> lone_pipes;  // DescriptorOptions
  std::set<int> processes;             // the same
  int together_fd = -1, go_fd = -1;    // pipes: base/protocol/restart_protocol.h, RestorerArgs
  int time_ns_fd = -1;                 // -1: no time namespace is allowed
  // It has its files open; waits until all members have theirs. False: the restart has failed. alive_fd:
  // go_fd, where that is by now.
  std::function<void()> opened;
  std::function<bool(int alive_fd)> all_opened;
  RestartStopped stopped = RestartStopped::kNo;
  int parent_death_signal = 0;
  uint32_t stopped_children = 0;
};

struct ProcessSpec {
  const ImageChain* image = nullptr;
  const FillPlan* fill = nullptr;
  const LazyPlan* lazy = nullptr;
  const Vdso* vdso = nullptr;
  const SharedFiles* shared = nullptr;  // RestartPlan's
  int status_fd = -1;                   // writing end
  FeedFds feed;                         // none: nothing is filled in
  int loader_fd = -1;                   // socket; -1: nothing is lazy
  bool is_alone = false;                // no job: children that were not saved have been killed
  JobPlace place = JobPlace::kRestarters;
  const JobSpec* job = nullptr;  // nullptr: alone
  std::string image_directory;   // what files held that are put back is saved here
};

struct RestartPlan;
// Its image, what is filled in, and where files are saved.
ProcessSpec process_of(const RestartPlan& plan);

[[noreturn]] void become_program(const ProcessSpec& spec, ReportChannel& report, bool in_new_user);

}  // namespace ckpt
