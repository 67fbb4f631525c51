// Going back: the stop, and what the program is in it.
#include <errno.h>
#include <linux/capability.h>

#include "base/clock.h"
#include "libckpt_rt/back/back_run.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/descriptors/noted/fanotify_groups.h"
#include "libckpt_rt/capture/memory/memfd_views.h"
#include "libckpt_rt/checkpoint/image/meta.h"
#include "libckpt_rt/checkpoint/stages/stopped_samplers.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/interpose/addresses/addresses.h"
#include "libckpt_rt/stop/critical_section.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/stop/tracing/service.h"
#include "libckpt_rt/stop/tracing/traced_thread.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

Error no_lists() {
  return make_error(ExitCode::kInternal, ENOMEM,
                    "no memory to describe the program; the program goes on as it was");
}

// May a thread be made with an id of our choice?
bool may_choose_ids() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (sys::call(__NR_capget, &header, data) != 0) return false;
  auto has = [&](uint32_t bit) { return (data[bit / 32].effective >> (bit % 32) & 1) != 0; };
  return has(CAP_CHECKPOINT_RESTORE) || has(CAP_SYS_ADMIN);
}

}  // namespace

Result<void> BackRun::stand() {
  if (tracing::traces_anybody() || traced::has_tracer())
    return make_error(
        ExitCode::kUnsupported, 0,
        "it traces another process (ptrace), or is traced: what its tracer knows of it does not "
        "go back; kill the job and restart it with ckpt-restart");
  const uint32_t permissions = fanotify_groups::permissions();
  CKPT_TRY(refuse_permission_groups(arena_, this_process.pid));
  const RunningOwnThreads ours;
  StopWorld::Call call{ours.ids(), {}, own_signal.number, user_settings().stop_timeout_ns};
  const int64_t deadline = now_ns() + user_settings().stop_timeout_ns;
  for (;;) {
    int stuck = 0;
    auto stopped = stop_state.world.stop(call, arena_, &stuck);
    if (!stopped.ok()) return stopped.error();
    stopped_ = true;
    began_ns_ = stopped->began_ns;
    stop_state.threads = stopped->first;
    stop_state.leader_exited = stopped->leader_exited;
    if (critical_section::none_inside()) {
      // The steps that follow replace the memory in which the urgency is noted.
      stop_state.world.end_urgency();
      break;
    }
    stop_state.world.release();
    stopped_ = false;
    if (!critical_section::await_none(deadline)) {
      return critical_section::stayed_too_long();
    }
  }
  if (stop_state.threads == nullptr)
    return make_error(ExitCode::kUnsupported, 0, "none of its threads can be stopped");
  CKPT_TRY(refuse_new_permissions(arena_, stop_state.first_thread(), permissions));
  note_end(kThreads);
  if ((order_.flags & kBackOnlyStands) != 0) return {};
  if (gate_.is_open()) {
    message_ = {};
    message_.says = static_cast<uint32_t>(BackSays::kStopped);
    auto reply = ask(message_);
    if (!reply.ok()) return reply.error();
  }
  return describe();
}

// The same as for an image, but for the memory.
Result<void> BackRun::describe() {
  const int tid = stop_state.first_thread();
  StoppedSamplers samplers;
  // Not looked at ahead of the stop: what is there is looked at now, and files of ours are closed again.
  DescriptorCapture descriptors;
  CKPT_TRY(descriptors.prepare(arena_, this_process.pid));
  CKPT_TRY(descriptors.begin_sampling(tid, samplers.threads()));
  struct Sampling {
    DescriptorCapture& descriptors;
    ~Sampling() { descriptors.await_samples(); }
  } sampling{descriptors};
  CKPT_TRY(map_.read_again(own_.span()));
  ProcessTexts texts;
  ProcessFacts facts;
  auto* state = static_cast<ProcessState*>(arena_.allocate(sizeof(ProcessState), alignof(ProcessState)));
  if (state == nullptr) return no_lists();
  CKPT_TRY(read_process_facts(arena_, texts, tid, stop_state.leader_exited, facts));
  capture_shared_state_stopped(texts.filtered(), *state);
  capture_process_state_stopped(texts, *state);
  state->timers.count = 0;
  ArenaVector<MappedFileRange> mapped(arena_);
  for (const Mapping& m : map_.mappings()) {
    if (!m.shared || !m.whole || m.handling == Handling::kSkip || m.inode == 0) continue;
    if (!mapped.push_back({m.device, m.inode, m.file_offset, m.range.size()})) return no_lists();
  }
  descriptors.skip_mapped(mapped.span());
  CKPT_TRY(descriptors.recheck_stopped(tid, samplers.threads()));
  keep_views_of_memfds(map_.mappings(), descriptors.entries());

  ArenaVector<StoppedThread> threads(arena_);
  for (bool leaders : {true, false}) {
    if (leaders && stop_state.leader_exited) {
      StoppedThread leader{};
      leader.record.tid = this_process.pid;
      leader.record.flags = kThreadLeader | kThreadLeaderExited;
      if (!threads.push_back(leader)) return no_lists();
    }
    for (ThreadSlot* s = stop_state.threads; s != nullptr; s = s->next) {
      if ((s->tid == this_process.pid) != leaders) continue;
      StoppedThread t;
      describe_thread(*s, this_process.pid, t);
      if (!threads.push_back(t)) return no_lists();
    }
  }
  descriptors.release();
  MappedFiles files(arena_);
  CheckpointCost cost;
  MetaWriter meta(arena_);
  MetaSources sources{
      &facts, state, &map_, &files, &descriptors, threads.span(), {}, {}, first_system_v(arena_), &cost, 0};
  CKPT_TRY(write_meta(sources, arena_, meta));
  const uint64_t own_bytes = own_.size() * sizeof(AddrRange);
  if (meta.span().size() + own_bytes > kBackMetaBytes) return no_lists();
  std::memcpy(window_, meta.span().data(), meta.span().size());
  message_ = {};
  message_.says = static_cast<uint32_t>(BackSays::kStanding);
  message_.meta = meta.span().size();
  message_.own = meta.span().size();
  message_.own_count = own_.size();
  message_.is_alone = may_choose_ids() ? 0 : 1;
  std::memcpy(window_ + message_.own, own_.data(), own_bytes);
  note_end(kDescription);
  // The asker compares the descriptions meanwhile.
  CKPT_TRY(tell(message_));
  message_.says = static_cast<uint32_t>(BackSays::kUnwritten);
  auto listed = list_unwritten(true, message_.own + own_bytes, message_);
  note_end(kUnwritten);
  return listed;
}

Result<void> BackRun::hear_plan() {
  auto reply = ask(message_);
  if (!reply.ok()) return reply.error();
  std::memcpy(&head_, plan_, sizeof(head_));
  if (head_.address_count > addresses::kMostLines)
    return make_error(
        ExitCode::kUnsupported, 0,
        "the job has {} lines of addresses, and there is room for {}; restart it with ckpt-restart "
        "--hosts",
        head_.address_count, addresses::kMostLines);
  return {};
}

Result<void> BackRun::make_threads() {
  parked_ = true;
  CKPT_TRY(threads_.park(stop_state.threads, this_process.pid));
  for (int32_t tid : list<int32_t>(head_.threads, head_.thread_count)) {
    if (threads_.find(tid) != nullptr) continue;
    const long r = threads_.create(tid);
    if (r != 0) {
      return make_error(
          ExitCode::kUnavailable, static_cast<int>(r),
          "thread {} has ended since the checkpoint and cannot be made again ({}): {}; the program goes on "
          "as it was",
          tid, errno_name(static_cast<int>(r)),
          r == -EPERM ? "that takes CAP_CHECKPOINT_RESTORE" : "its id is in use, or a limit is reached");
    }
    ++cost_.made;
  }
  return {};
}

}  // namespace ckpt
