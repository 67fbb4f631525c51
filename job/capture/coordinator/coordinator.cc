#include "job/capture/coordinator/coordinator.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "image/format/io_error.h"
#include "image/format/saved_file_names.h"
#include "job/directory/job_directory.h"
#include "job/identity/own_job.h"
#include "job/session/connecting.h"
#include "job/session/creation.h"
#include "libckpt_rt/checkpoint/image/image_history.h"
#include "libckpt_rt/checkpoint/preparation.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/interval.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

Result<void> Coordinator::begin(const Attempt& attempt, std::span<const Listed> members) {
  attempt_ = attempt.number;
  if (!over_hosts) holds_connects_ = attempt.holds_connects;
  began_ = true;
  in_rounds = preparation::wanted();
  if (!reserve_own(arena_, 256 << 20))
    return make_error(ExitCode::kInternal, ENOMEM, "no memory to lead a job");
  own_memory[0] = arena_.range();
  reserve_ledger();
  members_ = ArenaVector<Member>(arena_);
  member_files_ = ArenaVector<MemberFiles>(arena_);
  shared_ = ArenaVector<SharedUse>(arena_);
  place.streamed = !over_hosts && user_settings().to[0] != '\0';
  auto sequence = place.streamed ? next_streamed_sequence(directory_) : next_job_sequence(directory_);
  if (!sequence.ok()) return sequence.error();
  // Also where the directory is another one since a restart.
  if (place.streamed) *sequence = std::max(*sequence, image_history.last_streamed + 1);
  const char* comm = this_process.name;
  for (const Listed& m : members) {
    if (m.look.pid == own_job.identity.root) comm = m.look.name;
  }
  name_ = compose_job_name(comm, *sequence);
  CKPT_TRY(listen());
  for (const Listed& m : members) CKPT_TRY(add(m));
  auto temporary = make_temporary(directory_, name_, &lock_);
  if (!temporary.ok()) return temporary.error();
  temporary_ = std::move(*temporary);
  if (over_hosts) directory_lock_.release(directory_);
  fill_place(place, temporary_.get(), directory_name_, name_.text, name_.temporary, this_process.pid,
             *sequence);
  place.may_repeat = attempt.may_repeat && !over_hosts;  // else all hosts would have to
  place.by_fork = attempt_ >= 3;
  place.full = over_hosts && (options_.part.flags & kPartFull) != 0;
  place.stays = over_hosts && (options_.part.flags & kPartStays) != 0;
  if (place.streamed) CKPT_TRY(open_stream(comm));
  CKPT_TRY(tracing_.begin(user_settings().stop_timeout_ns, this_process.pid));
  for (Member& m : members_) CKPT_TRY(ask(m));
  points::at("coordinator.asked");
  return {};
}

// Members of another user make their images in the checkpoint's directory, by the descriptor that they get.
// These members make names in the directory of saved files, too: that directory is made here so that it is
// not theirs. Both are sticky: a user can remove or replace only his own entries. A restart looks at the
// owner of each image and of each copy.
Result<void> Coordinator::open_to_other_users() {
  if (foreign_) return {};
  foreign_ = true;
  const SavedFileName saved = saved_files_directory_of(kJobSavedFiles);
  sys::call(__NR_mkdirat, temporary_.get(), saved.text, 0700L);  // a member of ours may have made it
  return set_modes(01733);
}

// Of the directory of the checkpoint and that of saved files.
Result<void> Coordinator::set_modes(long mode) {
  const ScopedFd saved(
      static_cast<int>(sys::call(__NR_openat, temporary_.get(), saved_files_directory_of(kJobSavedFiles).text,
                                 O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0L)));
  for (const int directory : {saved.get(), temporary_.get()}) {
    const long r = sys::call(__NR_fchmod, directory, mode);
    if (sys::failed(r)) return image_io_error("change the mode of the job's directory", name_.temporary, r);
  }
  return {};
}

Coordinator::Member* Coordinator::find(const Listed& listed) {
  for (Member& m : members_) {
    if (m.listed.look.pid == listed.look.pid && m.listed.look.started == listed.look.started) return &m;
  }
  return nullptr;
}

// Most processes that are made past libc's functions, and so come into being while the others stop, live for
// a moment: all stand until they have ended. No longer than kShortLifeNs; none is asked, for that takes
// longer than its life.
Result<void> Coordinator::await_short_lived(ArenaVector<Listed>& now) {
  constexpr int64_t kShortLifeNs = 3'000'000;
  constexpr timespec kNap{0, 100'000};
  for (const int64_t until = now_ns() + kShortLifeNs;;) {
    CKPT_TRY(list(now));
    const bool any_alive = std::any_of(now.begin(), now.end(), [this](const Listed& l) {
      return l.look.pid != this_process.pid && !l.look.ended() && find(l) == nullptr;
    });
    if (!any_alive || now_ns() >= until) return {};
    sys::call(__NR_ppoll, nullptr, 0L, &kNap, nullptr, 8L);
  }
}

Result<void> Coordinator::list(ArenaVector<Listed>& now) {
  now.clear();
  return list_members(own_job.identity, this_process.pid, arena_, now)
             ? Result<void>()
             : make_error(ExitCode::kInternal, ENOMEM,
                          "the job's members cannot be listed: no memory or no descriptor is left");
}

// Adds and asks processes of the job that are listed and not in members_. True: there were some, or known
// ones have executed another program.
Result<bool> Coordinator::add_new(std::span<const Listed> now) {
  bool any = false;
  for (const Listed& l : now) {
    if (l.look.pid == this_process.pid) {
      self_ = l;
      continue;
    }
    if (Member* known = find(l); known != nullptr) {
      // Group and session may have changed; a process that has ended has its status now.
      if (!known->stranger) known->listed = l;
      if (l.look.ended() && known->state == Member::State::kWithUs && told_ < Step::kStop)
        CKPT_TRY(lost(*known));
      continue;
    }
    CKPT_TRY(add(l));
    if (l.look.ended()) continue;
    any = true;
    CKPT_TRY(ask(members_.back()));
  }
  // A process that has ended and was waited for since is no part of the job any more.
  for (Member& m : members_) {
    if (m.state != Member::State::kEnded) continue;
    const bool there = std::any_of(now.begin(), now.end(), [&](const Listed& l) {
      return l.look.pid == m.listed.look.pid && l.look.started == m.listed.look.started;
    });
    if (!there) m.listed.look.state = 'X';
  }
  return any;
}

// Reads groups, sessions, terminals and states of all members again.
void Coordinator::read_members_again() {
  look_at(this_process.pid, self_.look);
  for (Member& m : members_) {
    ProcessLook look;
    if (m.stranger || !look_at(m.listed.look.pid, look) || look.started != m.listed.look.started)
      m.listed.look.state = 'X';
    else
      m.listed.look = look;
  }
}

// All stand and have been looked at: no member can stop or continue another from here on.
Result<void> Coordinator::note_stopped() {
  for (Member& m : members_) {
    if (m.state != Member::State::kWithUs) continue;
    if (m.listed.look.state == 'T') CKPT_TRY(seize(m));
    if (m.seized) m.stop_signal = stopped_.stop_signal(m.listed.look.pid);
    if (m.stop_signal >= 0) continue;
    again = true;
    return name(m, ExitCode::kInternal,
                "is stopped, and whoever traced it is gone; the checkpoint is taken again");
  }
  return {};
}

Result<void> Coordinator::prepared() {
  points::at("coordinator.armed");
  // Arming takes milliseconds; where a member copies open files, as long as the disk takes.
  constexpr int64_t kLeastNs = 10'000'000'000, kStopTimeouts = 60;
  CKPT_TRY(
      await(Step::kPrepared, now_ns() + std::max(kLeastNs, kStopTimeouts * user_settings().stop_timeout_ns)));
  points::at("coordinator.prepared");
  if (over_hosts) CKPT_TRY(with_all_hosts("prepared", 0));
  if (holds_connects_ != HoldsConnects::kNo) {
    CKPT_TRY(let_servers_accept());
    // Who executed another program meanwhile.
    CKPT_TRY(await(Step::kPrepared, now_ns() + kPatienceNs));
  }
  holds_early_ = false;
  creation::hold();
  creation::hold_end();
  CKPT_TRY(tell_all(Step::kHold));
  // Processes made before all members held: each is held at once. Such processes are young, so they arm
  // quickly.
  for (;;) {
    CKPT_TRY(await(Step::kHeld, now_ns() + kPatienceNs));
    newest_pid_ = newest_pid();
    ArenaVector<Listed> now(arena_);
    CKPT_TRY(list(now));
    auto any = add_new(now.span());
    if (!any.ok()) return any.error();
    if (!*any) break;
  }
  points::at("coordinator.held");
  stopped_.expect_signals();
  CKPT_TRY(share_memory());
  points::at("coordinator.stop");
  return {};
}

Result<void> Coordinator::standing() {
  points::at("coordinator.stopped");
  CKPT_TRY(check_tracees());
  CKPT_TRY(await(Step::kStanding, now_ns() + 2 * user_settings().stop_timeout_ns));
  points::at("coordinator.standing");
  if (over_hosts) CKPT_TRY(with_all_hosts("standing", user_settings().stop_timeout_ns));
  realtime_ns_ = now_ns(CLOCK_REALTIME);
  monotonic_ns_ = now_ns();
  boottime_ns_ = now_ns(CLOCK_BOOTTIME);
  // If the machine has made no process or thread since, the job has not either.
  const int newest = newest_pid();
  if (newest > 0 && newest == newest_pid_) {
    read_members_again();
    return resume_sampling();
  }
  ArenaVector<Listed> now(arena_);
  CKPT_TRY(await_short_lived(now));
  auto any = add_new(now.span());
  if (!any.ok()) return any.error();
  if (*any) {
    again = came_or_went = true;
    return name(members_.back(), ExitCode::kInternal,
                "was made while the others stopped; the checkpoint is taken again");
  }
  return resume_sampling();
}

Result<void> Coordinator::resume_sampling() {
  CKPT_TRY(note_stopped());
  CKPT_TRY(tell_all(Step::kSample));
  points::at("coordinator.samples");
  return {};
}

Result<void> Coordinator::sampled(std::span<const OpenFileKey> files, const Standing& facts,
                                  std::span<const ChildNotice> unreported) {
  own_facts_ = facts;
  for (const ChildNotice& notice : unreported) {
    if (!own_unreported_.push_back(notice))
      return make_error(ExitCode::kInternal, ENOMEM, "no memory for the job's members");
  }
  own_files_ = files;
  CKPT_TRY(await(Step::kSampled, writes_in_stop ? 0 : now_ns() + 2 * user_settings().stop_timeout_ns));
  if (!member_files_.push_back({this_process.pid, facts.tid, files}))
    return make_error(ExitCode::kInternal, ENOMEM, "no memory for the job's members");
  for (const Member& m : members_) {
    if (m.state == Member::State::kWithUs &&
        !member_files_.push_back({m.listed.look.pid, m.facts.tid, m.files}))
      return make_error(ExitCode::kInternal, ENOMEM, "no memory for the job's members");
  }
  points::at("coordinator.sampled");
  if (over_hosts) CKPT_TRY(with_all_hosts("sampled", user_settings().stop_timeout_ns));
  const int64_t until = now_ns() + 2 * user_settings().stop_timeout_ns;
  if (Result<void> found = find_shared(member_files_.span(), until, arena_, shared_); !found.ok()) {
    if (found.error().sys_errno != EBADF && found.error().sys_errno != ESRCH) return found;
    // All threads stand, so nothing closes a descriptor: a member without descriptors was killed.
    again = came_or_went = true;
    return make_error(ExitCode::kInternal, 0, "a process of the job ended while its checkpoint was taken");
  }
  going = static_cast<uint32_t>(std::count_if(
      members_.begin(), members_.end(), [](const Member& m) { return m.state == Member::State::kWithUs; }));
  CKPT_TRY(tell_all(Step::kGo));
  tracing_.let_go();
  points::at("coordinator.go");
  creation::release();
  // Now, for a process that is made while others are looked for would be taken for one of the job.
  return place.streamed ? command_.launch() : Result<void>();
}

Result<void> Coordinator::written(const Written& facts) {
  own_written_ = facts;
  creation::release_end();
  points::at("coordinator.image");
  CKPT_TRY(await(Step::kWritten, 0));
  points::at("coordinator.written");
  CKPT_TRY(commit());
  if (over_hosts) CKPT_TRY(agree_with_hosts());
  if (!place.streamed) prune();
  done_ = true;
  interval::put_off();
  (void)tell_all(Step::kDone);
  return {};
}

void Coordinator::in_writing_child() {
  // The list of members is not in the child's memory.
  sys::call(__NR_close_range, kFirstSocket, ~0u, 0L);
  listener_.reset();
  lock_.reset();  // of this process, which may end before the child does
}

Coordinator::~Coordinator() {
  connecting::release();
  creation::release();
  creation::release_end();
  if (!began_) return;
  // A member may wait for the command to read on.
  if (!done_ && place.streamed) command_.remove();
  if (!done_) abort_all();
  // Waits for the members: one that has closed its socket writes no more into the directory that is removed
  // below.
  const int64_t deadline = now_ns() + user_settings().stop_timeout_ns;
  for (Member& m : members_) {
    if (m.socket < 0) continue;
    Message message;
    // A stopped member that nobody traces any more says nothing until it is continued. A member that is
    // traced is waited for in any case. Its agent may sleep on its way to the end, and would be stopped there
    // when it is let go.
    const bool may_answer = m.state != Member::State::kConnected && (!m.seized || !stopped_.is_gone());
    while ((!done_ || m.seized) && may_answer &&
           receive_message(m.socket, deadline, arena_, message) == Received::kMessage) {
    }
    sys::call(__NR_close, m.socket);
  }
  stopped_.release_all();
  if ((!done_ || place.streamed) && temporary_.valid()) remove_job_directory(directory_, name_.temporary);
}

}  // namespace ckpt::job
