#include "cli/back/job/job_back.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/named_points.h"
#include "cli/back/descriptors/channel_plan.h"
#include "cli/back/job/job_gate.h"
#include "cli/back/job/job_processes.h"
#include "cli/back/job/late_processes.h"
#include "cli/back/process_back.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"
#include "image/read/manifest.h"
#include "restart/channels/hosts_plan.h"

namespace ckpt::cli {

namespace {

constexpr int64_t kLongNs = 3600'000'000'000;
constexpr int64_t kStartNs = 5'000'000'000;  // between exec and the library's start

// A manifest says what is killed and what is put back.
Result<void> check_writer(const std::string& path) {
  struct stat st;
  if (lstat(path.c_str(), &st) != 0)
    return make_error(ExitCode::kNotFound, errno, "{}: cannot be read ({})", brief(path), errno_name(errno));
  if ((st.st_uid == geteuid() || st.st_uid == 0) && (st.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
  return failure(ExitCode::kPermission, path, "belongs to somebody else, or others may write it",
                 "use a checkpoint of your own");
}

// One attempt.
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
    CKPT_TRY(hold_all());
    CKPT_TRY(stand_all(again));
    return plan(parts);
  }

  // A connection broke off: a process has ended, or is about to. Names it.
  Error who_has_ended(const Error& why) const {
    if (why.code != ExitCode::kInternal && why.code != ExitCode::kNoProcess) return why;
    for (const int64_t until = now_ns() + 2'000'000'000; now_ns() < until; wait_a_moment()) {
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
      auto target = examine_target(m.pid);
      // It may be between exec and the library's start, which soon says what it is.
      for (const int64_t until = now_ns() + kStartNs;
           !target.ok() && target.error().code == ExitCode::kUnavailable && now_ns() < until &&
           look_at_process(m.pid, process) && process.state != 'T';) {
        wait_a_moment();
        target = examine_target(m.pid);
      }
      if (!target.ok()) return target.error();
      if (target->inner_pid != m.pid)
        return failure(ExitCode::kUnsupported, label, "is in another pid namespace", kRemedy);
      member.target = std::move(*target);
      members_.push_back(std::move(member));
    }
    processes_ = std::make_unique<JobProcesses>(manifest_.job, std::move(pids));
    CKPT_TRY(gate_.open(static_cast<uint32_t>(members_.size())));
    for (Member& m : members_) {
      // What another user has written would say with root's rights which files are cut.
      CKPT_TRY(check_writer(options_.directory + "/" + m.listed->image));
      m.back = std::make_unique<ProcessBack>(m.target, limits_, options_.anyway);
      CKPT_TRY(m.back->open(options_.directory + "/" + m.listed->image));
      CKPT_TRY(check_image(m));
    }
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& m = members_[i];
      const BackMember part{static_cast<uint32_t>(i), static_cast<uint32_t>(members_.size()), gate_.fd()};
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
    for (const int64_t until = now_ns() + kStartNs;;) {
      auto settled = add_late(now_ns() > until);
      if (!settled.ok()) return settled.error();
      if (*settled) return {};
    }
  }

  // The manifest has it, or it stands with the others.
  bool is_known(const JobProcess& p) const { return manifest_.member(p.pid) != nullptr || late_.has(p.pid); }

  // True: there was no new process. last: a process that cannot be asked yet is an error.
  Result<bool> add_late(bool last) {
    bool any = false;
    for (const JobProcess& p : processes_->list()) {
      if (is_known(p) || p.ended()) continue;
      any = true;
      CKPT_TRY(late_.add(p, static_cast<uint32_t>(members_.size()), limits_, last));
    }
    return !any;
  }

  Result<void> stand_all(bool& again) {
    for (Member& m : members_) CKPT_TRY(m.back->let_stand());
    late_.let_stand();
    for (Member& m : members_) CKPT_TRY(m.back->hear_standing());
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
    return {};
  }

  Result<void> plan(const std::vector<SharedParts>& parts) {
    std::vector<PlannedMember> planned;
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& m = members_[i];
      if (auto compared = m.back->compare(parts[i]); !compared.ok()) {
        const Error& why = compared.error();
        if (why.message().find(fmt::format("{} (", m.listed->pid)) != std::string_view::npos) return why;
        return make_error(why.code, why.sys_errno, "{}: {}", label_of(m.listed->pid, m.listed->name),
                          why.message());
      }
      PlannedMember p{m.listed, {}, &m.back->then(), &m.back->now(), &m.back->descriptors(), &parts[i]};
      if (!look_at_process(m.listed->pid, p.process))
        return failure(ExitCode::kUnsupported, label_of(m.listed->pid, m.listed->name), "has ended", kRemedy);
      planned.push_back(std::move(p));
    }
    CKPT_TRY(plan_channels(manifest_, planned));
    points::at("back.planned");
    for (Member& m : members_) CKPT_TRY(m.back->hand_plan(ended_));
    for (Member& m : members_) CKPT_TRY(m.back->hear_ready());
    points::at("back.ready");
    return {};
  }

  Result<void> commit() {
    if (!gate_->decide(BackDecision::kOpen, BackDecision::kCutting))
      return failure(ExitCode::kInternal, options_.directory, "a process of the job gave up",
                     "nothing was changed; see the log in the image directory");
    points::at("back.cutting");
    bool was_cut = false;
    for (Member& m : members_) {
      auto cut = m.back->cut_files();
      was_cut = was_cut || m.back->was_cut();
      if (cut.ok()) continue;
      if (was_cut) return kill_all(cut.error());
      gate_->decide(BackDecision::kCutting, BackDecision::kGivenUp);
      return cut.error();
    }
    points::at("back.cut");
    gate_->decide(BackDecision::kCutting, BackDecision::kCommitted);
    decided_ = true;
    limits_ = {kLongNs, 0};  // a slow one is not to be killed
    points::at("back.decided");
    late_.kill();
    if (auto ended = late_.wait_for_end(limits_.answer_ns); !ended.ok()) return kill_all(ended.error());
    for (Member& m : members_) (void)m.back->commit();
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
    return make_error(
        why.code, why.sys_errno,
        "the job was half way back and was killed: {}; restart it from a checkpoint with ckpt-restart",
        why.message());
  }

  static constexpr const char* kRemedy = "nothing was changed; restart the job with ckpt-restart";
  const JobBackOptions& options_;
  AskLimits limits_;
  const Manifest& manifest_;
  int64_t began_ns_ = 0;
  bool decided_ = false;
  JobGate gate_;
  std::unique_ptr<JobProcesses> processes_;
  std::vector<Member> members_;
  LateProcesses late_{gate_};
  std::vector<int32_t> ended_;
};

// Keeps checkpoints of the job from beginning. A coordinator that waits for the lock gives up.
Result<ScopedFd> lock_directory(const std::string& checkpoint, int64_t patience_ns) {
  std::string parent = checkpoint.substr(0, checkpoint.rfind('/'));
  if (checkpoint.find('/') == std::string::npos) parent = ".";
  ScopedFd directory(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid())
    return make_error(ExitCode::kPermission, errno, "{}: cannot be opened ({})", brief(parent),
                      errno_name(errno));
  const int64_t until = now_ns() + patience_ns;
  while (flock(directory.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) break;  // no locks there: nobody has one
    if (now_ns() > until)
      return failure(ExitCode::kTimeout, parent, "a checkpoint is being taken all the time", "ask again");
    wait_a_moment();
  }
  return directory;
}

// In the job itself it would be ended half way.
Result<void> check_outside(const Manifest& manifest) {
  const char* own = getenv("CKPT_JOB");
  if (own == nullptr || std::string_view(own).substr(0, manifest.job.size()) != manifest.job) return {};
  return failure(ExitCode::kUnsupported, "ckpt back", "was started by the job that is to go back",
                 "run it from outside of the job");
}

// Processes on other hosts have received what these sent since, and are asked by nobody here.
Result<void> check_one_host(const std::string& directory) {
  const std::string host = host_of_part(directory);
  if (host.empty()) return {};
  return failure(
      ExitCode::kUnsupported, directory,
      fmt::format("is the part of {} of a job over several hosts, which cannot go back in place yet",
                  printable(host)),
      "nothing was changed; restart the job with ckpt-restart --hosts");
}

}  // namespace

Result<Answer> back_job(const JobBackOptions& options) {
  constexpr int kAttempts = 6;
  CKPT_TRY(check_writer(options.directory));
  CKPT_TRY(check_writer(options.directory + "/" + kManifestName));
  auto manifest = read_manifest(options.directory);
  if (!manifest.ok()) return manifest.error();
  CKPT_TRY(check_one_host(options.directory));
  CKPT_TRY(check_outside(*manifest));
  auto lock = lock_directory(options.directory, options.limits.answer_ns);
  if (!lock.ok()) return lock.error();
  for (int attempt = 1;; ++attempt) {
    bool again = false;
    auto answer = JobBack(options, *manifest).run(again);
    if (answer.ok() || !again || attempt == kAttempts) return answer;
  }
}

}  // namespace ckpt::cli
