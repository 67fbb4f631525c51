#include "cli/back/job_back.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/named_points.h"
#include "base/protocol/back_gate.h"
#include "cli/back/channel_plan.h"
#include "cli/back/job_processes.h"
#include "cli/back/process_back.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"
#include "image/read/manifest.h"

namespace ckpt::cli {

namespace {

constexpr int64_t kLongNs = 3600'000'000'000;
constexpr int64_t kStartNs = 5'000'000'000;  // between exec and the library's start

void wait_a_moment() {
  const timespec moment{0, 5'000'000};
  nanosleep(&moment, nullptr);
}

std::string label_of(int pid, const std::string& name) {
  return fmt::format("{} ({})", pid, printable(name));
}

// A manifest says what is killed and what is put back.
Result<void> check_writer(const std::string& path) {
  struct stat st;
  if (lstat(path.c_str(), &st) != 0)
    return make_error(ExitCode::kNotFound, errno, "{}: cannot be read ({})", brief(path), errno_name(errno));
  if ((st.st_uid == geteuid() || st.st_uid == 0) && (st.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
  return failure(ExitCode::kPermission, path, "belongs to somebody else, or others may write it",
                 "use a checkpoint of your own");
}

// The memory that all processes of the job map, and its file.
class Gate {
 public:
  ~Gate() {
    if (gate_ != nullptr) munmap(gate_, kBackGateBytes);
  }
  Result<void> open(uint32_t members) {
    fd_ = ScopedFd(memfd_create("ckpt back gate", MFD_CLOEXEC));
    void* p = fd_.valid() && ftruncate(fd_.get(), kBackGateBytes) == 0
                  ? mmap(nullptr, kBackGateBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0)
                  : MAP_FAILED;
    if (p == MAP_FAILED) {
      return make_error(ExitCode::kSystem, errno, "no memory that the job's processes have in common ({})",
                        errno_name(errno));
    }
    gate_ = static_cast<BackGate*>(p);
    gate_->members = members;
    return {};
  }
  BackGate* operator->() const { return gate_; }
  int fd() const { return fd_.get(); }

 private:
  ScopedFd fd_;
  BackGate* gate_ = nullptr;
};

// Born since the checkpoint: it stands with the others, and is ended.
struct LateProcess {
  Target target;
  ScopedFd connection;
};

// One attempt.
class JobBack {
 public:
  JobBack(const JobBackOptions& options, const Manifest& manifest)
      : options_(options), limits_(options.limits), manifest_(manifest) {}
  ~JobBack() {
    if (!decided_) give_up();
  }

  // again: a process came that nobody could hold; another attempt may do.
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

  // Where a connection broke off somebody has ended, or is about to.
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
      // Between exec and the library's start: who it is then it says itself.
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

  bool is_member(const JobProcess& p) const {
    return manifest_.member(p.pid) != nullptr ||
           std::any_of(late_.begin(), late_.end(), [&](const auto& l) { return l->target.pid == p.pid; });
  }

  // True: nobody was new. last: who cannot be asked yet is not waited for.
  Result<bool> add_late(bool last) {
    bool any = false;
    for (const JobProcess& p : processes_->list()) {
      if (is_member(p) || p.ended()) continue;
      any = true;
      const std::string label = label_of(p.pid, p.name);
      if (borrows_memory(p) && !last) {
        wait_a_moment();
        continue;
      }
      if (borrows_memory(p)) {
        return failure(ExitCode::kUnsupported, label,
                       "was born since the checkpoint and uses its parent's memory (vfork)",
                       "end it first; nothing was changed");
      }
      auto asked = ask_to_stand(p);
      if (asked.ok()) continue;
      JobProcess now;
      if (!look_at_process(p.pid, now) || now.ended() || now.started != p.started) continue;
      if (!last) {
        wait_a_moment();
        continue;
      }
      return failure(
          ExitCode::kUnsupported, label,
          fmt::format("was born since the checkpoint and cannot be stopped: {}", asked.error().message()),
          "end it first; nothing was changed");
    }
    return !any;
  }

  Result<void> ask_to_stand(const JobProcess& p) {
    auto target = examine_target(p.pid);
    if (!target.ok()) return target.error();
    auto late = std::make_unique<LateProcess>();
    late->target = std::move(*target);
    // A signal that falls between fork and the library's notice of it is lost: then it is sent again.
    AskLimits brief;
    brief.answer_ns = 1'000'000'000;
    brief.total_ns = brief.answer_ns;
    AskWishes wishes;
    wishes.back_of_job = true;
    auto connection = call(late->target, ControlOperation::kBack, brief, wishes);
    if (!connection.ok()) return connection.error();
    late->connection = std::move(*connection);
    BackOrder order{};
    order.flags = kBackOnlyStands;
    order.members = static_cast<uint32_t>(members_.size());
    auto gate = open_gate({0, order.members, gate_.fd()}, false);
    if (!gate.ok()) return gate.error();
    if (!send_order(late->connection.get(), order, {gate->get()}))
      return failure(ExitCode::kInternal, label_of(p.pid, p.name), "hung up", "try again");
    CKPT_TRY(hear(*late, BackSays::kHeld));
    late_.push_back(std::move(late));
    return {};
  }

  Result<void> hear(const LateProcess& late, BackSays what) const {
    BackMessage heard{};
    CKPT_TRY(read_exactly(late.target, late.connection.get(), limits_, &heard, sizeof(heard)));
    if (heard.says == static_cast<uint32_t>(what)) return {};
    heard.text[sizeof(heard.text) - 1] = '\0';
    return make_error(static_cast<ExitCode>(heard.code), 0, "{}: {}",
                      label_of(late.target.pid, late.target.name), printable(heard.text));
  }

  Result<void> stand_all(bool& again) {
    for (Member& m : members_) CKPT_TRY(m.back->let_stand());
    const BackReply go{static_cast<uint32_t>(BackReplyKind::kGo), 0, 0, 0};
    for (const auto& l : late_) (void)send(l->connection.get(), &go, sizeof(go), MSG_NOSIGNAL);
    for (Member& m : members_) CKPT_TRY(m.back->hear_standing());
    for (const auto& l : late_) CKPT_TRY(hear(*l, BackSays::kStanding));
    points::at("back.standing");
    for (const JobProcess& p : processes_->list()) {
      if (p.ended() && manifest_.member(p.pid) == nullptr) ended_.push_back(p.pid);
      if (p.ended() || is_member(p)) continue;
      again = true;
      return failure(ExitCode::kUnavailable, label_of(p.pid, p.name), "was made while the others stopped",
                     "ask again");
    }
    for (const auto& l : late_) ended_.push_back(l->target.pid);
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
    CKPT_TRY(end_late());
    for (Member& m : members_) (void)m.back->commit();
    points::at("back.committed");
    return {};
  }

  Result<void> end_late() {
    for (const auto& l : late_) syscall(SYS_pidfd_send_signal, l->target.pidfd.get(), SIGKILL, nullptr, 0);
    for (const auto& l : late_) {
      pollfd gone{l->target.pidfd.get(), POLLIN, 0};
      const int64_t until = now_ns() + limits_.answer_ns;
      while (poll(&gone, 1, 1000) <= 0) {
        if (now_ns() < until) continue;
        return kill_all(failure(ExitCode::kTimeout, label_of(l->target.pid, l->target.name),
                                "was killed and does not end", "see what it waits for"));
      }
    }
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
    const BackReply reply{static_cast<uint32_t>(BackReplyKind::kGiveUp), 0, 0, 0};
    for (const auto& l : late_) (void)send(l->connection.get(), &reply, sizeof(reply), MSG_NOSIGNAL);
  }

  // Some are as they were then and some as they are now: none may go on.
  Error kill_all(const Error& why) {
    decided_ = true;
    gate_->fail();
    for (const Member& m : members_) m.back->kill();
    for (const auto& l : late_) syscall(SYS_pidfd_send_signal, l->target.pidfd.get(), SIGKILL, nullptr, 0);
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
  Gate gate_;
  std::unique_ptr<JobProcesses> processes_;
  std::vector<Member> members_;
  std::vector<std::unique_ptr<LateProcess>> late_;
  std::vector<int32_t> ended_;
};

// No checkpoint of the job meanwhile. Who waits for the lock makes way.
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

}  // namespace

Result<Answer> back_job(const JobBackOptions& options) {
  constexpr int kAttempts = 6;
  static const int own_pid = getpid();
  if (const char* point = getenv("CKPT_TEST_POINT")) points::want(point, "ckpt", &own_pid);
  CKPT_TRY(check_writer(options.directory));
  CKPT_TRY(check_writer(options.directory + "/" + kManifestName));
  auto manifest = read_manifest(options.directory);
  if (!manifest.ok()) return manifest.error();
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
