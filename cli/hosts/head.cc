#include "cli/hosts/head.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>

#include "base/clock.h"
#include "base/plan/best_interval.h"
#include "cli/hosts/askers.h"
#include "cli/hosts/bookmarks.h"
#include "cli/hosts/crew.h"
#include "cli/hosts/moving.h"
#include "cli/hosts/posts.h"
#include "cli/hosts/records.h"
#include "cli/hosts/recover.h"
#include "cli/keeper/disk_saves.h"
#include "cli/keeper/protect.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"
#include "cluster/protocol/head_machine.h"

namespace ckpt::cli {

namespace {

using cluster::HeadAction;
using cluster::Order;
using cluster::Step;

// Writing takes as long as it takes.
constexpr int64_t kPrepareNs = 60'000'000'000;
constexpr int64_t kWordNs = 5'000'000'000;  // less than a host waits for the head's decision
constexpr uint32_t kAttempts = 3;

class Head {
 public:
  Head(Crew& crew, std::string job, Json table, std::string name, std::string directory, HostsRun run)
      : crew_(crew),
        askers_(crew),
        job_(std::move(job)),
        table_(std::move(table)),
        name_(std::move(name)),
        directory_(std::move(directory)),
        run_(std::move(run)),
        records_(directory_, job_, run_.keep, run_.redundancy.empty() ? 0 : run_.increments),
        saves_(crew, directory_, job_, run_),
        machine_(static_cast<int>(crew.hosts().size())),
        posts_(names_of(crew)) {
    last_id_ = last_hosts_checkpoint(directory_);
  }

  Watched watch() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (int s : {SIGUSR1, SIGINT, SIGTERM, SIGHUP}) sigaddset(&wanted, s);
    signals_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    auto users = listen_to_users(head_socket_name(getpid()));
    if (!users.ok()) return {report(users.error())};
    users_ = std::move(*users);
    plan_next();
    while (!ended_) {
      for (size_t h = 0; h < crew_.hosts().size() && !ended_; ++h) {
        if (!crew_.hosts()[h].early.empty()) hear_host(static_cast<int>(h));
      }
      std::vector<pollfd> polls{{signals_.get(), POLLIN, 0}, {users_.get(), POLLIN, 0}};
      for (const CrewHost& h : crew_.hosts()) polls.push_back({h.link.valid() ? h.link.fd() : -1, POLLIN, 0});
      (void)!poll(polls.data(), polls.size(), time_left({deadline_ns_, next_ns_}));
      if (polls[0].revents != 0) hear_signal();
      if (polls[1].revents != 0) hear_user();
      for (size_t h = 0; h < crew_.hosts().size() && !ended_; ++h) {
        if (polls[h + 2].revents != 0 || broke_meanwhile(h)) hear_host(static_cast<int>(h));
      }
      const int64_t now = now_ns();
      if (deadline_ns_ != 0 && now >= deadline_ns_) {
        deadline_ns_ = 0;
        why_ = fmt::format("{}: was not {} in time", slowest(), cluster::name_of(machine_.awaited()));
        why_code_ = ExitCode::kTimeout;
        cluster::HeadMachine::Actions out;
        machine_.timed_out(out);
        act(out);
      }
      if (next_ns_ != 0 && now >= next_ns_) {
        plan_next();
        if (!askers_.waiting()) askers_.add_silent();
      }
      begin_next();
    }
    const bool in_between = was_idle_ && !lost_.empty();
    // A host's death may have ended the program before its agent's connection breaks.
    if (run_.recover && program_failed_ && lost_.empty()) lost_ = crew_.find_gone();
    if (!lost_.empty() && why_.empty()) {
      why_ = fmt::format("{}: its agent is gone", where(lost_.front()));
      why_code_ = ExitCode::kUnavailable;
    }
    if (!lost_.empty() || moved_)
      askers_.answer_all({{"code", static_cast<int>(why_code_)}, {"error", why_}});
    return {static_cast<ExitCode>(status_), lost_, false, false, std::move(moved_), in_between};
  }

 private:
  // While checks were made: poll() does not tell of a connection that is closed already.
  bool broke_meanwhile(size_t h) const { return !crew_.hosts()[h].link.valid() && !gone_.contains(h); }

  void plan_next() {
    const int64_t every = run_.every_auto ? automatic_.ns() : run_.every_ns;
    next_ns_ = every != 0 ? now_ns() + every : 0;
  }

  static int time_left(std::initializer_list<int64_t> deadlines) {
    int64_t left = 1'000'000'000;
    for (int64_t d : deadlines) {
      if (d != 0) left = std::min(left, std::max<int64_t>(d - now_ns(), 0));
    }
    return static_cast<int>((left + 999'999) / 1'000'000);
  }

  const std::string& where(int h) const { return crew_.hosts()[static_cast<size_t>(h)].where; }
  std::string slowest() const { return machine_.slowest() < 0 ? "a host" : where(machine_.slowest()); }

  void hear_signal() {
    signalfd_siginfo info;
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGUSR1) {
        askers_.add_silent();
      } else {
        ended_ = true;
        status_ = 128 + static_cast<int>(info.ssi_signo);
      }
    }
  }

  void hear_user() { askers_.add(ScopedFd(accept4(users_.get(), nullptr, nullptr, SOCK_CLOEXEC))); }

  void hear_host(int h) {
    std::vector<Json> messages;
    const bool there = crew_.hear(h, messages);
    const std::string& name = where(h);
    for (const Json& j : messages) {
      const std::string say = j.value("say", "");
      cluster::HeadMachine::Actions out;
      if (say == "posts") {
        if (j.value("id", uint64_t{0}) == machine_.id())
          posts_.hand_in(static_cast<size_t>(h), j.value("any", false), posts_in(j));
      } else if (say == "reached") {
        const auto step = static_cast<Step>(j.value("step", 0));
        if (j.value("id", uint64_t{0}) == machine_.id()) take_facts(h, step, j);
        if (why_.empty()) {
          machine_.reached(h, j.value("id", uint64_t{0}), step, out);
        } else {
          machine_.failed(h, j.value("id", uint64_t{0}), out);
        }
      } else if (say == "failed" && !j.contains("of")) {  // of an exchange: of one that was given up
        if (why_.empty()) {
          why_ = fmt::format("{}: {}", name, j.value("text", ""));
          why_code_ = static_cast<ExitCode>(j.value("code", 70));
        }
        machine_.failed(h, j.value("id", uint64_t{0}), out);
      } else if (say == "saved" || j.value("of", "") == "save") {
        saves_.heard(h, j);
      } else if (say == "ask") {
        askers_.add(h, j);
      } else if (say == "ended") {
        hear_end(h, j.value("status", 0));
      }
      act(out);
    }
    hand_out_posts();
    if (there || ended_ || !gone_.insert(static_cast<size_t>(h)).second) return;
    if (!run_.recover)
      fmt::print(stderr, "ckpt: {}: its agent is gone: no more checkpoints of this job can be taken\n",
                 printable(name));
    why_ = fmt::format("{}: its agent is gone", name);
    why_code_ = ExitCode::kUnavailable;
    was_idle_ = machine_.phase() == cluster::HeadMachine::Phase::kIdle;
    cluster::HeadMachine::Actions out;
    machine_.lost(h, out);
    act(out);
    if (run_.recover) {
      lost_.push_back(h);
      ended_ = true;
      status_ = static_cast<int>(ExitCode::kUnavailable);
      return;
    }
    const auto& hosts = crew_.hosts();
    // Only the first host's agent tells of the program's end.
    if (h == 0 ||
        std::none_of(hosts.begin(), hosts.end(), [](const CrewHost& one) { return one.link.valid(); })) {
      ended_ = true;
      status_ = static_cast<int>(ExitCode::kUnavailable);
    }
  }

  void hand_out_posts() {
    const auto all = posts_.hand_out();
    for (size_t h = 0; h < all.size(); ++h) {
      if (posts_.waits(h)) crew_.tell(static_cast<int>(h), said_of_delivery(all[h], machine_.id()));
    }
  }

  // The first host's first process ends with the program. On others it ends only when something is wrong.
  void hear_end(int h, int status) {
    if (h == 0) {
      ended_ = true;
      status_ = status;
      program_failed_ = status != 0;
    } else {
      fmt::print(stderr, "ckpt: {}: the job's first process there has ended with {}\n", printable(where(h)),
                 status);
    }
  }

  void take_facts(int h, Step step, const Json& j) {
    CrewHost& host = crew_.hosts()[static_cast<size_t>(h)];
    if (step == Step::kPrepared) posts_.comes_no_more(static_cast<size_t>(h));
    if (step == Step::kDrained && j.contains("bookmarks")) {
      for (const auto& line : j["bookmarks"]) bookmarks_.take(host.name, line);
    }
    if (step == Step::kDrained && ++drained_ == static_cast<int>(crew_.hosts().size())) match_bookmarks();
    if (step == Step::kDurable) {
      parts_[static_cast<size_t>(h)] = {host.name, host.address, j.value("part", ""),
                                        j.value("checksum", "")};
      // It would count, and could not come back. Another attempt may succeed: the reason may be a connection that
      // was not accepted yet.
      if (j.contains("no_restart") && why_.empty()) {
        why_ = fmt::format("{}: {}", host.where, j.value("no_restart", ""));
        why_code_ = ExitCode::kNotRestartable;
        again_ = true;
      }
    }
  }

  void match_bookmarks() {
    auto verdict = bookmarks_.match(attempt_ >= kAttempts);
    connections_ = std::move(verdict.connections);
    if (verdict.why_not.empty()) return;
    why_ = verdict.why_not;
    why_code_ = ExitCode::kInternal;
    again_ = verdict.passing;
  }

  void begin_next() {
    if (!askers_.waiting() || machine_.phase() != cluster::HeadMachine::Phase::kIdle || askers_.served())
      return;
    askers_.serve_next();
    const Asker& asker = *askers_.served();
    attempt_ = 1;
    if (asker.back) return go_back(*asker.back);
    if (asker.move) {
      auto moving = Moving::prepare(crew_, run_, *asker.move, asker.host);
      if (!moving.ok()) return answer(said_of_error(moving.error()));
      moving_ = std::move(*moving);
    }
    begin();
  }

  void begin() {
    why_.clear();
    again_ = false;
    bookmarks_.clear();
    posts_.begin();
    drained_ = 0;
    parts_.assign(crew_.hosts().size(), {});
    began_ns_ = now_ns();
    stop_ns_ = pause_ns_ = 0;
    full_ = moving_ != nullptr || (!run_.redundancy.empty() && records_.next_is_full());
    cluster::HeadMachine::Actions out;
    machine_.request(++last_id_, out);
    act(out);
  }

  void act(const cluster::HeadMachine::Actions& actions) {
    using K = HeadAction::Kind;
    for (const HeadAction& a : actions) {
      switch (a.kind) {
        case K::kTell:
          if (a.order == Order::kStop && stop_ns_ == 0) stop_ns_ = now_ns();
          if (a.order == Order::kGo && pause_ns_ == 0) pause_ns_ = now_ns() - stop_ns_;
          crew_.tell(a.host, {{"say", "order"},
                              {"id", a.id},
                              {"order", static_cast<int>(a.order)},
                              {"attempt", attempt_},
                              {"full", full_},
                              {"stays", moving_ != nullptr},
                              {"leave_out", askers_.served() ? askers_.served()->leave_out : ""}});
          break;
        case K::kSetTimer:
          deadline_ns_ =
              a.order == Order::kGo
                  ? 0
                  : now_ns() + (a.order == Order::kPrepare ? kPrepareNs : 3 * run_.stop_timeout_ns);
          break;
        case K::kStopTimer:
          deadline_ns_ = 0;
          break;
        case K::kRecord: {
          auto recorded = record(a.id);
          if (!recorded.ok()) {
            why_ = std::string(recorded.error().message());
            why_code_ = recorded.error().code;
          } else if (moving_ != nullptr && move(a.id)) {
            return;
          }
          cluster::HeadMachine::Actions more;
          machine_.recorded(recorded.ok(), more);
          act(more);
          break;
        }
        case K::kSucceeded: {
          Json done{{"id", a.id},
                    {"hosts", parts_.size()},
                    {"checkpoint", path_},
                    {"stop_ns", pause_ns_},
                    {"durable_ns", now_ns() - began_ns_},
                    {"connections", connections_.size()},
                    {"attempts", attempt_}};
          if (run_.every_auto) {
            automatic_.learn(pause_ns_, now_ns() - began_ns_, mtbf_of_job(run_, crew_.hosts().size()));
            plan_next();
            done["every_ns"] = automatic_.ns();
          }
          answer(why_.empty() ? std::move(done)
                              : Json{{"code", static_cast<int>(why_code_)}, {"error", why_}});
          give_up_older();
          saves_.counts(recorded_);
          break;
        }
        case K::kFailed:
          records_.failed();
          if (again_ && attempt_ < kAttempts && !current_lost()) {
            ++attempt_;
            begin();
            break;
          }
          if (why_.empty()) {
            why_ = a.host >= 0 ? fmt::format("{}: is not there any more", where(a.host))
                               : "the checkpoint was given up";
            why_code_ = ExitCode::kUnavailable;
          }
          answer({{"code", static_cast<int>(why_code_)}, {"error", why_}});
          break;
      }
    }
  }

  bool current_lost() const {
    for (const CrewHost& h : crew_.hosts()) {
      if (!h.link.valid()) return true;
    }
    return false;
  }

  // The job's processes go back in place. Those of some hosts may not get there when others have: then all are restarted from the
  // same checkpoint, where they are.
  void go_back(const std::string& wish) {
    auto back = GoingBack::prepare(crew_, table_, job_, wish.empty() ? directory_ : wish);
    if (!back.ok()) return answer(said_of_error(back.error()));
    auto done = back->run([this, &back] { return back->was_decided() ? Result<void>() : meanwhile(0); });
    if (done.ok()) return answer(std::move(*done));
    if (!back->was_decided()) {
      Json said = said_of_error(done.error());
      said["error"] = fmt::format("{}; the job goes on as it was", done.error().message());
      return answer(std::move(said));
    }
    ended_ = true;
    why_ = fmt::format("the job was half way back when this failed: {}", done.error().message());
    why_code_ = done.error().code;
    askers_.answer_on_host(
        {{"code", static_cast<int>(why_code_)},
         {"error", fmt::format("{}; all of it is restarted from {}", why_, back->path())}});
    if (auto gone = back->end_all(); !gone.ok()) {
      const Error error =
          make_error(ExitCode::kUnavailable, 0,
                     "{}; whether its processes have ended is not known ({}): when they have, "
                     "ckpt-restart --hosts {} brings the job back",
                     why_, gone.error().message(), back->path());
      status_ = static_cast<int>(report(error));
      return answer(said_of_error(error));
    }
    moved_ = Moved{{}, "", "", back->path(), now_ns(), askers_.take_connection(), why_};
  }

  // The checkpoint counts, and all stand. True: nothing of the job runs any more, and it is to come back. False: it goes on as it was.
  bool move(uint64_t id) {
    bool decided = false;
    Result<void> result = moving_->bring(parts_, [this, id] { return meanwhile(id); });
    if (result.ok()) {
      result = moving_->end_all(id, [this, &decided] {
        decided = true;
        // Its agent ends with the processes.
        askers_.answer_on_host({{"from", moving_->from()}, {"to", moving_->to()}, {"checkpoint", path_}});
      });
    }
    if (!result.ok() && !decided) {
      why_ = fmt::format("{}; the job goes on where it was", result.error().message());
      why_code_ = result.error().code;
      return false;
    }
    ended_ = true;
    why_ = "the job's processes are on their way to another host (ask again)";
    why_code_ = ExitCode::kUnavailable;
    Moved moved{moving_->parts(), moving_->from(), moving_->to(), path_, stop_ns_, {}, ""};
    if (!result.ok()) {
      // Some of it may run there still: it must not run twice.
      const Error error = make_error(ExitCode::kUnavailable, 0,
                                     "{}; whether its processes have ended is not known: when they have, "
                                     "ckpt-restart --hosts {} brings the job back",
                                     result.error().message(), path_);
      status_ = static_cast<int>(report(error));
      answer(said_of_error(error));
      return true;
    }
    moved.answer = askers_.take_connection();
    moved_ = std::move(moved);
    return true;
  }

  Result<void> record(uint64_t id) {
    HostsManifest m;
    m.id = id;
    m.job = job_;
    m.name = name_;
    m.time_ns = now_ns(CLOCK_REALTIME);
    m.parts = parts_;
    m.connections = connections_;
    m.table = table_;
    for (const auto& p : m.parts) {
      if (p.directory.empty() || p.checksum.empty())
        return failure(ExitCode::kInternal, p.host, "its part has no manifest", "see its log");
    }
    m.run = remembered(run_);
    if (!run_.redundancy.empty()) {
      auto redundancy =
          protect_parts(crew_, id, m.parts, run_.redundancy, [this, id] { return meanwhile(id); });
      if (!redundancy.ok()) return redundancy.error();
      m.redundancy = std::move(*redundancy);
      m.redundancy["needs"] = records_.needed(full_);
    }
    if (run_.keeper_bytes != 0) m.redundancy["memory"] = run_.keeper_bytes;
    CKPT_TRY(write_hosts_manifest(directory_, m));
    path_ = find_hosts_manifest(directory_);
    records_.counts(m, full_ || run_.redundancy.empty());
    recorded_ = std::move(m);
    return {};
  }

  // While checks are made: users and signals are heard, and no host is in doubt whether this head lives.
  Result<void> meanwhile(uint64_t id) {
    hear_signal();
    pollfd user{users_.get(), POLLIN, 0};
    if (poll(&user, 1, 0) > 0) hear_user();
    if (now_ns() >= next_word_ns_) {
      next_word_ns_ = now_ns() + kWordNs;
      crew_.tell_all({{"say", "wait"}, {"id", id}});
    }
    return ended_ ? Result<void>(make_error(ExitCode::kUnavailable, 0, "the job is about to end"))
                  : Result<void>();
  }

  // First the older .hosts files, by which checkpoints count; the hosts then remove the parts. With redundancy a host does not
  // know what the others need of its parts.
  void give_up_older() {
    const auto stay = records_.give_up_older();
    if (run_.redundancy.empty()) return;
    for (size_t i = 0; i < stay.size(); ++i)
      crew_.tell(static_cast<int>(i), {{"say", "stay"}, {"parts", stay[i]}});
  }

  void answer(Json what) {
    moving_.reset();
    askers_.answer(std::move(what));
  }

  Crew& crew_;
  Askers askers_;
  const std::string job_;
  const Json table_;
  const std::string name_, directory_;
  const HostsRun run_;
  Records records_;
  DiskSaves saves_;
  cluster::HeadMachine machine_;
  ScopedFd signals_, users_;
  cluster::PostOffice posts_;
  std::unique_ptr<Moving> moving_;  // the user who is answered has asked for it
  std::optional<Moved> moved_;
  uint64_t last_id_ = 0;
  uint32_t attempt_ = 1;
  int drained_ = 0;
  std::string why_, path_;
  ExitCode why_code_ = ExitCode::kInternal;
  bool again_ = false, ended_ = false, full_ = false, program_failed_ = false, was_idle_ = false;
  int status_ = 0;
  int64_t deadline_ns_ = 0, began_ns_ = 0, stop_ns_ = 0, pause_ns_ = 0;
  Bookmarks bookmarks_;
  std::vector<HostsManifest::Part> parts_;
  std::vector<HostsManifest::Connection> connections_;
  HostsManifest recorded_;
  std::vector<int> lost_;
  std::set<size_t> gone_;  // hosts whose agent's end was noticed
  AutoInterval automatic_;
  int64_t next_ns_ = 0, next_word_ns_ = 0;
};

}  // namespace

Watched watch_job(Crew& crew, std::string job, Json table, std::string name, std::string directory,
                  HostsRun run) {
  return Head(crew, std::move(job), std::move(table), std::move(name), std::move(directory), std::move(run))
      .watch();
}

}  // namespace ckpt::cli
