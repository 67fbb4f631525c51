#include "restart/job/late_messages.h"

#include "restart/descriptors/builder.h"

namespace ckpt {

bool is_about_process(const ParsedOpenFile& file) {
  return kind_of(file) == OpenFileKind::kPidFd || is_of_process(file);
}

LateMessages::LateMessages(const JobPlan& job, WorkingFds& working, std::function<void(std::string_view)> say,
                           std::unique_ptr<ChannelBuilder> channels)
    : job_(job), working_(working), say_(std::move(say)), channels_(std::move(channels)) {
  for (const ManifestMember& member : job.manifest.members) processes_.insert(member.pid);
}

Result<void> LateMessages::send(const std::vector<InheritedFiles>& files) {
  CKPT_TRY(channels_->fill_rest([&](int member, uint32_t id) -> Result<int> {
    if (int socket = channels_->find(member, id); socket >= 0) return socket;
    const auto& known = files[static_cast<size_t>(member)];
    const auto it = known.find(id);
    return it != known.end() ? it->second.fd : make(member, id);
  }));
  channels_->hand_over_sockets();
  channels_->finish();
  return {};
}

Result<int> LateMessages::make(int member, uint32_t open_file) {
  if (const auto known = made_.find({member, open_file}); known != made_.end()) return known->second;
  const ImageMeta& meta = job_.plans[static_cast<size_t>(member)]->image->meta();
  const ParsedOpenFile* file = meta.open_file(open_file);
  if (file == nullptr || !is_about_process(*file)) return -1;
  // The description of a process that has that member's descriptors, and is none of the job: what is about
  // the member itself is about another process than the planter.
  ImageMeta planter{};
  planter.descriptors = meta.descriptors;
  const InheritedFiles none;
  DescriptorOptions options;
  options.working = &working_;
  options.say = say_;
  options.inherited = &none;
  options.processes = &processes_;
  DescriptorBuilder builder(planter, options);
  auto made = builder.make(*file);
  if (!made.ok()) return made.error();
  auto up = working_.park(std::move(*made), "an open file of the job");
  if (up.ok()) made_[{member, open_file}] = *up;
  return up;
}

}  // namespace ckpt
