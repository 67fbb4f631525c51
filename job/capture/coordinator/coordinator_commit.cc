// The end of a job's checkpoint (coordinator.h): its manifest is written, and it counts from then on; older
// ones go.
#include "job/capture/coordinator/coordinator.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>

#include "base/checks/named_points.h"
#include "image/format/image_probe.h"
#include "image/write/directory/image_directory.h"
#include "job/directory/job_directory.h"
#include "job/identity/own_job.h"
#include "libckpt_rt/core/directory/log.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/own_key_file.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

// The list has parents first, but for the coordinator itself, which is first, and for processes that were
// found late.
void put_parents_first(ArenaVector<ManifestEntry>& list) {
  for (size_t i = 0; i < list.size(); ++i) {
    for (size_t tries = list.size(); tries > 0; --tries) {
      size_t parent = i;
      for (size_t k = i + 1; k < list.size(); ++k) {
        if (list[k].listed.look.pid == list[i].listed.look.ppid) parent = k;
      }
      if (parent == i) break;
      std::swap(list[i], list[parent]);
    }
  }
}

}  // namespace

const ChildNotice* Coordinator::notice_of(const ProcessLook& child) const {
  const auto of = [&](int parent, std::span<const ChildNotice> notices) -> const ChildNotice* {
    if (parent != child.ppid) return nullptr;
    const auto found = std::ranges::find(notices, child.pid, &ChildNotice::pid);
    return found != notices.end() ? &*found : nullptr;
  };
  if (const ChildNotice* own = of(this_process.pid, own_unreported_.span())) return own;
  for (const Member& m : members_) {
    if (const ChildNotice* notice = of(m.listed.look.pid, m.unreported)) return notice;
  }
  return nullptr;
}

Result<void> Coordinator::commit() {
  ImageKey* key = nullptr;
  if (own_key_file::path()[0] != '\0') {
    key = static_cast<ImageKey*>(arena_.allocate(sizeof(ImageKey)));
    if (key == nullptr) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the key");
    CKPT_TRY(read_key_file(own_key_file::path(), *key));
  }
  int64_t began = own_facts_.began_ns, resumed = own_written_.resumed_ns;
  ArenaVector<ManifestEntry> list(arena_);
  auto add_image = [&](const Listed& listed, const Standing& facts, int32_t stopped_by,
                       const Written& written) -> Result<void> {
    if (written.why_not_restartable[0] != '\0' && report_.why_not_restartable[0] == '\0') {
      *fmt::format_to_n(
           report_.why_not_restartable, sizeof(report_.why_not_restartable) - 1, "process {} ({}): {}",
           listed.look.pid, static_cast<const char*>(listed.look.name),
           std::string_view(written.why_not_restartable,
                            strnlen(written.why_not_restartable, sizeof(written.why_not_restartable))))
           .out = '\0';
    }
    ManifestEntry one{};
    one.listed = listed;
    one.stop_signal = stopped_by;
    const ChildNotice* notice = notice_of(listed.look);
    one.stop_reported =
        stopped_by != 0 && (notice == nullptr || notice->exit_status != ChildNotice::kIsStopped);
    one.has_image = true;
    one.subreaper = facts.subreaper != 0;
    one.pdeath_signal = facts.pdeath_signal;
    if (place.streamed) {
      one.image_bytes = written.bytes_written;
      one.image_state = written.image_state;
    } else {
      CKPT_TRY(look_at_image(one, key));
    }
    if (!list.push_back(one)) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the manifest");
    ++report_.members;
    return {};
  };
  report_.members = report_.ended = report_.left_out = 0;
  report_.why_not_restartable[0] = '\0';
  if (foreign_) CKPT_TRY(set_modes(0700));
  CKPT_TRY(add_image(self_, own_facts_, Session::stop_signal, own_written_));
  for (const Member& m : members_) {
    ProcessLook look;
    if (m.stranger) {
      // Below us, and with an environment that does not name our job. This process is in no image of ours,
      // which must be said.
      if (!look_at(m.listed.look.pid, look) || look.started != m.listed.look.started || look.ended())
        continue;
      ManifestEntry one{};
      one.listed = m.listed;
      one.listed.look = look;
      one.left_out = true;
      one.reason = "is of another job";
      if (!list.push_back(one)) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the manifest");
      ++report_.left_out;
    } else if (m.reached == Step::kWritten) {
      began = std::min(began, m.facts.began_ns);
      resumed = std::max(resumed, m.written.resumed_ns);
      CKPT_TRY(add_image(m.listed, m.facts, m.stop_signal, m.written));
    } else if (m.state == Member::State::kEnded && m.listed.look.state == 'Z') {
      ManifestEntry one{};
      one.listed = m.listed;
      // /proc shows us 0 where it had another user.
      if (const ChildNotice* notice = notice_of(m.listed.look); notice != nullptr && notice->exit_status >= 0)
        one.listed.look.exit_status = notice->exit_status;
      if (!list.push_back(one)) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the manifest");
      ++report_.ended;
    } else if (m.state == Member::State::kLeftOut || m.state == Member::State::kTakenOver) {
      ManifestEntry one{};
      one.listed = m.listed;
      one.left_out = true;
      one.reason = m.state == Member::State::kTakenOver ? m.saved_by : preloaded_reason(m.preloaded);
      if (!list.push_back(one)) return make_error(ExitCode::kInternal, ENOMEM, "no memory for the manifest");
      if (m.state == Member::State::kLeftOut) ++report_.left_out;
    }
  }
  report_.pause_ns = resumed - began;
  put_parents_first(list);
  const char* comm = self_.look.name;
  for (const ManifestEntry& m : list) {
    if (m.listed.look.pid == own_job.identity.root) comm = m.listed.look.name;
  }
  const ManifestSources sources{&own_job.identity,    comm,           place.sequence,
                                realtime_ns_,         monotonic_ns_,  boottime_ns_,
                                report_.pause_ns,     list.span(),    shared_.span(),
                                member_files_.span(), savers_.span(), over_hosts ? &options_.part : nullptr};
  if (key != nullptr) wipe(key, sizeof(*key));
  CKPT_TRY(write_manifest(temporary_.get(), sources, arena_));
  points::at("coordinator.manifest");
  return place.streamed ? commit_to_stream() : commit_to_directory();
}

// The user whose process has written the image stays its owner, so that a restart knows whose word it is.
Result<void> Coordinator::look_at_image(ManifestEntry& member, const ImageKey* key) {
  const MemberImageName image = member_image_name(member.listed.look.pid);
  const long fd = sys::call(__NR_openat, temporary_.get(), image.text,
                            O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
  const ScopedFd file(sys::failed(fd) ? -1 : static_cast<int>(fd));
  auto brief = probe_image(file.get(), image.text, key);
  if (!brief.ok()) return brief.error();
  member.image_bytes = brief->file_bytes;
  member.image_state = brief->meta_checksum;
  return {};
}

Result<void> Coordinator::commit_to_directory() {
  CKPT_TRY(commit_directory(directory_, temporary_.get(), name_));
  points::at("coordinator.renamed");
  CKPT_TRY(check_images_stay(directory_, directory_name_));
  *fmt::format_to_n(report_.path, sizeof(report_.path) - 1, "{}/{}", directory_name_,
                    static_cast<const char*>(name_.text))
       .out = '\0';
  return {};
}

// A checkpoint that no restart can use displaces none.
void Coordinator::prune() {
  // Where all stay, as over hosts, every image that is there would be opened for nothing.
  if (report_.why_not_restartable[0] != '\0' || user_settings().images_to_keep == 0) return;
  ImageKey* key = nullptr;
  if (own_key_file::path()[0] != '\0') {
    key = static_cast<ImageKey*>(arena_.allocate(sizeof(ImageKey)));
    if (key == nullptr || !read_key_file(own_key_file::path(), *key).ok()) return;
  }
  auto pruned = prune_jobs(directory_, own_job.identity.id, user_settings().images_to_keep, key);
  if (!pruned.ok()) log_line(directory_, pruned.error().message());
  if (key != nullptr) wipe(key, sizeof(*key));
}

}  // namespace ckpt::job
