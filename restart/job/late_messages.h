// Messages that wait in sockets of a job and hold what is about one of its processes (SCM_RIGHTS): a pidfd, a
// file of /proc.
//
// Owner:     restart. Made by make_shared_things(), before there are processes.
// Callers:   the planter (restart/job/planter.cc), which sends them when all processes of the job exist and
//            none of them can have ended; each process of the tree, which first of all closes what only the
//            planter is to have open. One thread each.
// Never:     sends a part of a queue: all messages of a queue in which such a one waits come from here.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "restart/channels/channel_builder.h"
#include "restart/descriptors/descriptors.h"
#include "restart/job/job_plan.h"

namespace ckpt {

// Can be made only when the process that it is about exists.
bool is_about_process(const ParsedOpenFile& file);

class LateMessages {
 public:
  // channels: filled but for what it has put off.
  LateMessages(const JobPlan& job, WorkingFds& working, std::function<void(std::string_view)> say,
               std::unique_ptr<ChannelBuilder> channels);
  // files: by member, what the planter has made before.
  Result<void> send(const std::vector<InheritedFiles>& files);
  void leave_to_planter() { channels_->close_far_ends(); }

 private:
  Result<int> make(int member, uint32_t open_file);

  const JobPlan& job_;
  WorkingFds& working_;
  std::function<void(std::string_view)> say_;
  std::unique_ptr<ChannelBuilder> channels_;
  std::set<int> processes_;                       // as DescriptorOptions has them
  std::map<std::pair<int, uint32_t>, int> made_;  // by member and open file, parked
};

}  // namespace ckpt
