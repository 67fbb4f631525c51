#include "cli/hosts/head/head.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "cli/hosts/head/head_of_job.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/job/users.h"
#include "cli/hosts/posts.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

using cluster::Step;

constexpr int64_t kWordNs = 5'000'000'000;  // less than a host waits for the head's decision

}  // namespace

Head::Head(Crew& crew, std::string job, Json table, std::string name, std::string directory, HostsRun run)
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

Watched Head::watch() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (int s : {SIGUSR1, SIGINT, SIGTERM, SIGHUP}) sigaddset(&wanted, s);
  signals_.reset(signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  auto users = listen_to_users(head_socket_name(getpid()));
  if (!users.ok()) return {report(users.error())};
  users_ = std::move(*users);
  plan_next();
  while (!end_.has_come) {
    for (size_t h = 0; h < crew_.hosts().size() && !end_.has_come; ++h) {
      if (!crew_.hosts()[h].early.empty()) hear_host(static_cast<int>(h));
    }
    std::vector<pollfd> polls{{signals_.get(), POLLIN, 0}, {users_.get(), POLLIN, 0}};
    for (const CrewHost& h : crew_.hosts()) polls.push_back({h.link.valid() ? h.link.fd() : -1, POLLIN, 0});
    (void)!poll(polls.data(), polls.size(), time_left({deadline_ns_, next_ns_}));
    if (polls[0].revents != 0) hear_signal();
    if (polls[1].revents != 0) hear_user();
    for (size_t h = 0; h < crew_.hosts().size() && !end_.has_come; ++h) {
      if (polls[h + 2].revents != 0 || broke_meanwhile(h)) hear_host(static_cast<int>(h));
    }
    const int64_t now = now_ns();
    if (deadline_ns_ != 0 && now >= deadline_ns_) {
      deadline_ns_ = 0;
      fails(ExitCode::kTimeout,
            fmt::format("{}: was not {} in time", slowest(), cluster::name_of(machine_.awaited())));
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
  const bool in_between = end_.was_idle && !end_.lost.empty();
  // A host's death may have ended the program before its agent's connection breaks.
  if (run_.recover && end_.program_failed && end_.lost.empty()) end_.lost = crew_.find_gone();
  if (!end_.lost.empty() && why_.text.empty())
    fails(ExitCode::kUnavailable, fmt::format("{}: its agent is gone", where(end_.lost.front())));
  if (!end_.lost.empty() || end_.moved) askers_.answer_all(why_.answer());
  return {static_cast<ExitCode>(end_.status), end_.lost, false, false, std::move(end_.moved), in_between};
}

void Head::plan_next() {
  const int64_t every = run_.every_auto ? automatic_.ns() : run_.every_ns;
  next_ns_ = every != 0 ? now_ns() + every : 0;
}

int Head::time_left(std::initializer_list<int64_t> deadlines) {
  int64_t left = 1'000'000'000;
  for (int64_t d : deadlines) {
    if (d != 0) left = std::min(left, std::max<int64_t>(d - now_ns(), 0));
  }
  return static_cast<int>((left + 999'999) / 1'000'000);
}

void Head::hear_signal() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    if (info.ssi_signo == SIGUSR1) {
      askers_.add_silent();
    } else {
      end_.has_come = true;
      end_.status = 128 + static_cast<int>(info.ssi_signo);
    }
  }
}

void Head::hear_user() { askers_.add(ScopedFd(accept4(users_.get(), nullptr, nullptr, SOCK_CLOEXEC))); }

void Head::hear_host(int h) {
  std::vector<Json> messages;
  const bool there = crew_.hear(h, messages);
  const std::string& name = where(h);
  for (const Json& j : messages) {
    const std::string say = j.value("say", "");
    cluster::HeadMachine::Actions out;
    if (say == "posts") {
      if (j.value("id", uint64_t{0}) == machine_.id())
        posts_.submit(static_cast<size_t>(h), j.value("any", false), posts_in(j));
    } else if (say == "reached") {
      const auto step = static_cast<Step>(j.value("step", 0));
      if (j.value("id", uint64_t{0}) == machine_.id()) take_facts(h, step, j);
      if (why_.text.empty()) {
        machine_.reached(h, j.value("id", uint64_t{0}), step, out);
      } else {
        machine_.failed(h, j.value("id", uint64_t{0}), out);
      }
    } else if (say == "failed" && !j.contains("of")) {  // with "of": an exchange or a save failed
      // Late words about a checkpoint before this one say nothing about this one.
      if (why_.text.empty() && j.value("id", uint64_t{0}) == machine_.id()) {
        fails(static_cast<ExitCode>(j.value("code", 70)), fmt::format("{}: {}", name, j.value("text", "")));
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
  if (there || end_.has_come || !gone_.insert(static_cast<size_t>(h)).second) return;
  if (!run_.recover)
    fmt::print(stderr, "ckpt: {}: its agent is gone: no more checkpoints of this job can be taken\n",
               printable(name));
  fails(ExitCode::kUnavailable, fmt::format("{}: its agent is gone", name));
  end_.was_idle = machine_.phase() == cluster::HeadMachine::Phase::kIdle;
  cluster::HeadMachine::Actions out;
  machine_.lost(h, out);
  act(out);
  if (run_.recover) {
    end_.lost.push_back(h);
    end_.has_come = true;
    end_.status = static_cast<int>(ExitCode::kUnavailable);
    return;
  }
  const auto& hosts = crew_.hosts();
  // Only the first host's agent tells of the program's end.
  if (h == 0 ||
      std::none_of(hosts.begin(), hosts.end(), [](const CrewHost& one) { return one.link.valid(); })) {
    end_.has_come = true;
    end_.status = static_cast<int>(ExitCode::kUnavailable);
  }
}

void Head::hand_out_posts() {
  const auto all = posts_.hand_out();
  for (size_t h = 0; h < all.size(); ++h) {
    if (posts_.waits(h)) crew_.tell(static_cast<int>(h), message_of_delivery(all[h], machine_.id()));
  }
}

// The first host's first process ends with the program. On others it ends only when something is wrong.
void Head::hear_end(int h, int status) {
  if (h == 0) {
    end_.has_come = true;
    end_.status = status;
    end_.program_failed = status != 0;
  } else {
    fmt::print(stderr, "ckpt: {}: the job's first process there has ended with {}\n", printable(where(h)),
               status);
  }
}

void Head::take_facts(int h, Step step, const Json& j) {
  CrewHost& host = crew_.hosts()[static_cast<size_t>(h)];
  if (step == Step::kPrepared) posts_.comes_no_more(static_cast<size_t>(h));
  if (step == Step::kDrained && j.contains("bookmarks")) {
    for (const auto& line : j["bookmarks"]) attempt_.bookmarks.take(host.name, line);
  }
  if (step == Step::kDrained && ++attempt_.drained == static_cast<int>(crew_.hosts().size()))
    match_bookmarks();
  if (step == Step::kDurable) {
    attempt_.parts[static_cast<size_t>(h)] = {host.name, host.address, j.value("part", ""),
                                              j.value("checksum", "")};
    for (const auto& [key, all] :
         {std::pair("no_restart", &attempt_.no_restart), {"notes", &attempt_.notes}}) {
      for (const Json& line : j.value(key, Json::array()))
        all->push_back(fmt::format("{}: {}", host.where, line.get<std::string>()));
    }
  }
}

void Head::match_bookmarks() {
  auto verdict = attempt_.bookmarks.match(attempt_.number >= kAttempts);
  attempt_.connections = std::move(verdict.connections);
  if (verdict.why_not.empty()) return;
  fails(ExitCode::kInternal, verdict.why_not);
  attempt_.again = verdict.passing;
}

// While checks are made: users and signals are heard, and no host is in doubt whether this head lives.
Result<void> Head::meanwhile(uint64_t id) {
  hear_signal();
  pollfd user{users_.get(), POLLIN, 0};
  if (poll(&user, 1, 0) > 0) hear_user();
  if (now_ns() >= next_word_ns_) {
    next_word_ns_ = now_ns() + kWordNs;
    crew_.tell_all({{"say", "wait"}, {"id", id}});
  }
  return end_.has_come ? Result<void>(make_error(ExitCode::kUnavailable, 0, "the job is about to end"))
                       : Result<void>();
}

void Head::answer(Json what) {
  moving_.reset();
  askers_.answer(std::move(what));
}

Watched watch_job(Crew& crew, std::string job, Json table, std::string name, std::string directory,
                  HostsRun run) {
  Head head(crew, std::move(job), std::move(table), std::move(name), std::move(directory), std::move(run));
  Watched end = head.watch();
  head.leave_hosts(end);
  return end;
}

// A checkpoint may have failed with the job: agents end its processes, and these give nothing up any more.
void Head::leave_hosts(const Watched& end) {
  if (!run_.redundancy.empty()) crew_.leave_parts(records_.parts(crew_.hosts().size()));
  crew_.end_at_once(run_.recover && !end.lost.empty() && !newest_to_go_on_from(directory_, job_).empty());
}

}  // namespace ckpt::cli
