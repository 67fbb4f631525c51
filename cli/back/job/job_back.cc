#include "cli/back/job/job_back.h"
#include "cli/back/descriptors/datagram_peers.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "cli/back/descriptors/channel_plan.h"
#include "cli/back/descriptors/datagram_peers.h"
#include "cli/back/descriptors/far_plan.h"
#include "cli/back/descriptors/new_connections.h"
#include "cli/back/job/far_barriers.h"
#include "cli/back/job/job_conditions.h"
#include "cli/back/job/job_gate.h"
#include "cli/back/job/job_processes.h"
#include "cli/back/job/late_processes.h"
#include "cli/back/process_back.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"
#include "image/read/manifest.h"

namespace ckpt::cli {

namespace {

constexpr int64_t kLongNs = 3600'000'000'000;

// JobBack is one attempt to take the job back.
class JobBack {
 public:
  JobBack(const JobBackOptions& options, const Manifest& manifest)
      : options_(options), limits_(options.limits), manifest_(manifest) {}
  ~JobBack() {
    if (!decided_) give_up();
  }

  // again: a process was born that could not be held; another attempt may succeed.
  Result<Answer> run(bool& again) {
    began_ns_ = now_ns();
    if (auto prepared = prepare(again); !prepared.ok()) {
      give_up();
      return who_has_ended(prepared.error());
    }
    CKPT_TRY(commit());
    return finish();
  }

 private:
  struct Member {
    const ManifestMember* listed;
    Target target;
    std::unique_ptr<ProcessBack> back;
    bool answered = false;
    Answer answer;
  };

  Result<void> prepare(bool& again) {
    CKPT_TRY(find_members());
    const auto parts = shared_parts();
    CKPT_TRY(all_hosts_come_to("prepared"));
    CKPT_TRY(hold_all());
    CKPT_TRY(stand_all(again));
    return plan(parts);
  }

  Result<void> all_hosts_come_to(const char* step) const {
    return options_.others == nullptr ? Result<void>() : options_.others->come_to(step);
  }
  // How many members the gate has. Over several hosts this process is the last of them.
  uint32_t gate_members() const {
    return static_cast<uint32_t>(members_.size()) + (options_.others != nullptr ? 1 : 0);
  }

  // A connection broke off: a process has ended, or is about to, which takes one of much memory some time on
  // a busy machine. Names it.
  Error who_has_ended(const Error& why) const {
    if (why.code != ExitCode::kInternal && why.code != ExitCode::kNoProcess) return why;
    for (const int64_t until = now_ns() + 10'000'000'000; now_ns() < until; wait_a_moment()) {
      for (const Member& m : members_) {
        JobProcess process;
        if (look_at_process(m.listed->pid, process) && !process.ended()) continue;
        return failure(ExitCode::kUnsupported, label_of(m.listed->pid, m.listed->name),
                       "has ended since the checkpoint", kRemedy);
      }
    }
    return why;
  }

  // Anything that fails here names the process already.
  Result<void> find_members() {
    std::set<int> pids;
    for (const ManifestMember& m : manifest_.members) {
      pids.insert(m.pid);
      const std::string label = label_of(m.pid, m.name);
      JobProcess process;
      const bool there = look_at_process(m.pid, process);
      if (m.state == MemberState::kZombie) {
        if (there && process.ended()) continue;
        return failure(ExitCode::kUnsupported, label,
                       "had ended, and has been waited for since; nobody can make that undone in place",
                       kRemedy);
      }
      if (!there || process.ended()) {
        return failure(ExitCode::kUnsupported, label, "has ended since the checkpoint", kRemedy);
      }
      Member member{&m, {}, nullptr, false, {}};
      auto target = await_target(m.pid);
      if (!target.ok()) return target.error();
      if (target->inner_pid != m.pid)
        return failure(ExitCode::kUnsupported, label, "is in another pid namespace", kRemedy);
      member.target = std::move(*target);
      members_.push_back(std::move(member));
    }
    processes_ = std::make_unique<JobProcesses>(manifest_.job, std::move(pids), options_.others != nullptr);
    CKPT_TRY(gate_.open(gate_members()));
    if (options_.others != nullptr) {
      far_.emplace(*options_.others, gate_);
      CKPT_TRY(far_->take_part(static_cast<uint32_t>(members_.size())));
    }
    for (Member& m : members_) {
      // An image that another user has written would say with root's rights which files are cut.
      if (!options_.trust) CKPT_TRY(check_writer(options_.directory + "/" + m.listed->image));
      m.back = std::make_unique<ProcessBack>(m.target, limits_, options_.anyway, options_.trust);
      CKPT_TRY(m.back->open(options_.directory + "/" + m.listed->image));
      CKPT_TRY(check_image(m));
    }
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& m = members_[i];
      const BackMember part{static_cast<uint32_t>(i), gate_members(), gate_.fd()};
      if (auto begun = m.back->begin(&part); !begun.ok()) {
        if (begun.error().code != ExitCode::kUsage) return begun.error();
        return failure(ExitCode::kUnsupported, label_of(m.listed->pid, m.listed->name),
                       "has executed another program since, or its number is another process's", kRemedy);
      }
      points::at("back.asked");
    }
    return {};
  }

  // The image is that of the manifest, and not of another checkpoint or process.
  Result<void> check_image(const Member& m) const {
    const ImageBrief& brief = m.back->image().brief();
    const ProcessRecord& p = m.back->then().process.record;
    bool fits = p.pid == m.listed->pid;
    for (const ManifestFile& f : manifest_.files) {
      if (f.name != m.listed->image) continue;
      fits = fits && f.bytes == brief.file_bytes &&
             (f.checksum.empty() || f.checksum == fmt::format("{:016x}", brief.meta_checksum));
    }
    for (const auto& users : manifest_.descriptions) {
      for (const ManifestUser& u : users)
        fits = fits && (u.pid != m.listed->pid || m.back->then().open_file(u.open_file) != nullptr);
    }
    if (fits) return {};
    return failure(ExitCode::kImageDamaged, m.back->image().path(),
                   fmt::format("is not the image of process {} of this checkpoint", m.listed->pid),
                   "take another checkpoint of the job");
  }

  std::vector<SharedParts> shared_parts() const {
    std::vector<std::pair<int, const ImageMeta*>> all;
    for (const Member& m : members_) all.emplace_back(m.listed->pid, &m.back->then());
    return find_shared_parts(manifest_, all);
  }

  Result<void> hold_all() {
    for (Member& m : members_) CKPT_TRY(m.back->hear_held());
    points::at("back.held");
    for (const int64_t held_ns = now_ns();;) {
      auto settled = add_late(now_ns() - held_ns);
      if (!settled.ok()) return settled.error();
      if (*settled) return {};
    }
  }

  // The manifest has it, or it stands with the others.
  bool is_known(const JobProcess& p) const { return manifest_.member(p.pid) != nullptr || late_.has(p.pid); }

  // True: there was no new process.
  Result<bool> add_late(int64_t waited_ns) {
    bool any = false;
    for (const JobProcess& p : processes_->list()) {
      if (is_known(p) || p.ended()) continue;
      any = true;
      CKPT_TRY(late_.add(p, gate_members(), limits_, waited_ns));
    }
    return !any;
  }

  Result<void> stand_all(bool& again) {
    for (Member& m : members_) CKPT_TRY(m.back->let_stand());
    late_.let_stand();
    for (Member& m : members_) CKPT_TRY(m.back->hear_stopped());
    CKPT_TRY(late_.hear_standing(limits_));
    points::at("back.standing");
    for (const JobProcess& p : processes_->list()) {
      if (p.ended() && manifest_.member(p.pid) == nullptr) ended_.push_back(p.pid);
      if (p.ended() || is_known(p)) continue;
      again = true;
      return failure(ExitCode::kUnavailable, label_of(p.pid, p.name), "was made while the others stopped",
                     "ask again");
    }
    for (const int32_t pid : late_.pids()) ended_.push_back(pid);
    // State that the processes have in common changes no more: now each looks.
    CKPT_TRY(all_hosts_come_to("standing"));
    for (Member& m : members_) CKPT_TRY(m.back->let_look());
    for (Member& m : members_) CKPT_TRY(m.back->hear_standing());
    return {};
  }

  Result<std::vector<ReplacedFiles>> connections_to_lost() {
    std::vector<StandingMember> standing;
    for (const Member& m : members_)
      standing.push_back({&m.back->then(), &m.back->now(), m.target.pidfd.get()});
    if (options_.others == nullptr) return std::vector<ReplacedFiles>(standing.size());
    if (options_.others->lost_a_host()) CKPT_TRY(datagrams_.take(standing));
    return connect_again(standing, *options_.others, strangers_);
  }

  Result<void> plan(const std::vector<SharedParts>& parts) {
    std::vector<PlannedMember> planned;
    auto replaced = connections_to_lost();
    if (!replaced.ok()) return replaced.error();
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& m = members_[i];
      if (auto compared = m.back->compare(parts[i], std::move((*replaced)[i])); !compared.ok()) {
        const Error& why = compared.error();
        if (why.message().find(fmt::format("{} (", m.listed->pid)) != std::string_view::npos) return why;
        return make_error(why.code, why.sys_errno, "{}: {}", label_of(m.listed->pid, m.listed->name),
                          why.message());
      }
      PlannedMember p{m.listed,
                      {},
                      &m.back->then(),
                      &m.back->now(),
                      &m.back->descriptors(),
                      &parts[i],
                      m.target.pidfd.get()};
      if (!look_at_process(m.listed->pid, p.process))
        return failure(ExitCode::kUnsupported, label_of(m.listed->pid, m.listed->name), "has ended", kRemedy);
      planned.push_back(std::move(p));
    }
    CKPT_TRY(plan_channels(manifest_, planned));
    if (options_.others != nullptr) CKPT_TRY(plan_far_connections(planned, *options_.others));
    points::at("back.planned");
    std::span<const AddressLine> addresses;
    if (options_.others != nullptr) addresses = options_.others->addresses();
    for (Member& m : members_) CKPT_TRY(m.back->hand_plan(ended_, addresses));
    for (Member& m : members_) CKPT_TRY(m.back->hear_ready());
    points::at("back.ready");
    return {};
  }

  Result<void> commit() {
    CKPT_TRY(all_hosts_come_to("ready"));
    // Over hosts the step "ready" has decided: other hosts may be cutting files already.
    const bool decided = options_.others != nullptr;
    if (!gate_->decide(BackDecision::kOpen, BackDecision::kCutting)) {
      const Error gave_up = failure(ExitCode::kInternal, options_.directory, "a process of the job gave up",
                                    decided ? "see the log in the image directory"
                                            : "nothing was changed; see the log in the image directory");
      if (decided) return kill_all(gave_up);
      return gave_up;
    }
    points::at("back.cutting");
    bool was_cut = decided;
    std::set<uint64_t> open_then;
    for (const Member& m : members_) {
      for (const auto& f : m.back->then().open_files) open_then.insert(f.record.inode);
    }
    for (Member& m : members_) {
      auto cut = m.back->cut_files(open_then);
      was_cut = was_cut || m.back->was_cut();
      if (cut.ok()) continue;
      if (was_cut) return kill_all(cut.error());
      gate_->decide(BackDecision::kCutting, BackDecision::kGivenUp);
      return cut.error();
    }
    points::at("back.cut");
    gate_->decide(BackDecision::kCutting, BackDecision::kCommitted);
    decided_ = true;
    limits_ = {kLongNs, 0};  // a slow process is not to be killed
    points::at("back.decided");
    late_.kill();
    if (auto ended = late_.wait_for_end(limits_.answer_ns); !ended.ok()) return kill_all(ended.error());
    if (auto connected = datagrams_.connect(); !connected.ok()) return kill_all(connected.error());
    for (Member& m : members_) (void)m.back->commit();
    if (far_) far_->begin();
    points::at("back.committed");
    return {};
  }

  // From the commit on: until all have answered, or one has failed.
  Result<Answer> finish() {
    size_t left = members_.size();
    while (left != 0) {
      std::vector<pollfd> fds;
      for (const Member& m : members_) {
        fds.push_back({m.answered ? -1 : m.back->connection(), POLLIN, 0});
        fds.push_back({m.answered ? -1 : m.target.pidfd.get(), POLLIN, 0});
      }
      if (poll(fds.data(), fds.size(), -1) < 0 && errno != EINTR) return kill_all(poll_error());
      for (size_t i = 0; i < members_.size(); ++i) {
        Member& m = members_[i];
        if (m.answered || (fds[2 * i].revents == 0 && fds[2 * i + 1].revents == 0)) continue;
        if (fds[2 * i].revents != 0 && m.back->wants_pages()) {
          if (auto sent = m.back->send_pages(); !sent.ok()) return kill_all(sent.error());
          continue;
        }
        auto answer = m.back->answer();
        m.answered = true;
        --left;
        if (answer.ok()) {
          m.answer = std::move(*answer);
        } else if (!gate_->all_at(kBackParts + 1)) {
          return kill_all(answer.error());
        } else {
          m.answer.emplace_back(
              "note", fmt::format("{} has gone back, and ended then: {}",
                                  label_of(m.listed->pid, m.listed->name), answer.error().message()));
        }
      }
    }
    if (far_) far_->end();
    return sum_up();
  }

  Error poll_error() const {
    return make_error(ExitCode::kSystem, errno, "cannot wait for the job's processes ({})",
                      errno_name(errno));
  }

  Answer sum_up() const {
    Answer all;
    uint64_t pause = 0, bytes = 0, threads = 0;
    for (const Member& m : members_) {
      pause = std::max(pause, number_of(m.answer, "pause_ns"));
      bytes += number_of(m.answer, "bytes");
      threads += number_of(m.answer, "threads");
    }
    all.emplace_back("directory", options_.directory);
    all.emplace_back("sequence", fmt::format("{}", manifest_.sequence));
    all.emplace_back("members", fmt::format("{}", members_.size()));
    all.emplace_back("ended", fmt::format("{}", late_.size()));
    all.emplace_back("threads", fmt::format("{}", threads));
    all.emplace_back("pause_ns", fmt::format("{}", pause));
    all.emplace_back("bytes", fmt::format("{}", bytes));
    all.emplace_back("total_ns", fmt::format("{}", now_ns() - began_ns_));
    std::vector<std::string> notes;
    for (const Member& m : members_) {
      for (const auto& [key, value] : m.answer) {
        if (key == "note" && std::find(notes.begin(), notes.end(), value) == notes.end())
          notes.push_back(value);
      }
    }
    for (const std::string& note : notes) all.emplace_back("note", note);
    return all;
  }

  void give_up() {
    if (gate_.fd() >= 0) gate_->decide(BackDecision::kOpen, BackDecision::kGivenUp);
    for (Member& m : members_) {
      if (m.back != nullptr) m.back->give_up();
    }
    late_.give_up();
  }

  // Some are as they were then and some as they are now: none may go on.
  Error kill_all(const Error& why) {
    decided_ = true;
    gate_->fail();
    for (const Member& m : members_) m.back->kill();
    late_.kill();
    if (far_) far_->end();
    const Error& first = far_ && far_->error() ? *far_->error() : why;
    return make_error(
        first.code, first.sys_errno,
        "the job was half way back and was killed: {}; restart it from a checkpoint with ckpt-restart",
        first.message());
  }

  static constexpr const char* kRemedy = "nothing was changed; restart the job with ckpt-restart";
  const JobBackOptions& options_;
  AskLimits limits_;
  const Manifest& manifest_;
  int64_t began_ns_ = 0;
  bool decided_ = false;
  JobGate gate_;
  std::optional<FarBarriers> far_;
  std::unique_ptr<JobProcesses> processes_;
  std::vector<Member> members_;
  LateProcesses late_{gate_};
  DatagramPeers datagrams_;
  const std::string no_keeper_;
  Strangers strangers_{options_.others != nullptr ? options_.others->holder_of_callers() : no_keeper_,
                       Strangers::Without::kOfJob};
  std::vector<int32_t> ended_;
};

}  // namespace

Result<Answer> back_job(const JobBackOptions& options) {
  constexpr int kAttempts = 6;
  if (!options.trust) {
    CKPT_TRY(check_writer(options.directory));
    CKPT_TRY(check_writer(options.directory + "/" + kManifestName));
  }
  auto manifest = read_manifest(options.directory);
  if (!manifest.ok()) return manifest.error();
  if (options.others == nullptr) CKPT_TRY(check_one_host(options.directory));
  CKPT_TRY(check_outside(*manifest));
  CKPT_TRY(check_untraced(*manifest));
  LockedDirectory lock;
  if (options.others == nullptr) {  // else no other checkpoint of the job is taken: its head leads this
    auto locked = lock_directory(options.directory, options.limits.answer_ns);
    if (!locked.ok()) return locked.error();
    lock = std::move(*locked);
  }
  for (int attempt = 1;; ++attempt) {
    bool again = false;
    auto answer = JobBack(options, *manifest).run(again);
    if (answer.ok() || !again || attempt == kAttempts) return answer;
  }
}

}  // namespace ckpt::cli
