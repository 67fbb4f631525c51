#include "restart/restart_job.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "image/read/sources/image_catalog.h"
#include "image/read/sources/reading_key.h"
#include "job/format/job_hold.h"
#include "job/format/job_name.h"
#include "restart/channels/hosts_plan.h"
#include "restart/files/dying_processes.h"
#include "restart/job/job_plan.h"
#include "restart/job/job_supervisor.h"
#include "restart/job/planter.h"
#include "restart/output.h"
#include "restart/plan/memory/layout.h"
#include "restart/reports/pipe.h"
#include "restart/tree/apart.h"
#include "restart/tree/stage_text.h"
#include "restart/tree/supervise.h"
#include "restart/tree/terminal.h"

namespace ckpt {
namespace {

using Json = nlohmann::json;

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Numbers tell which of two checkpoints is newer where one program took both.
bool is_older(std::string_view one, std::string_view other) {
  job::ParsedJobName a, b;
  return job::parse_job_name(one, &a) && job::parse_job_name(other, &b) && a.comm == b.comm &&
         a.sequence < b.sequence;
}

// unusable: names of checkpoints and why. used: the name of the one that is restarted, "": an image of one
// process.
std::vector<std::string> say_passed_over(const std::vector<std::pair<std::string, Error>>& unusable,
                                         const std::string& used) {
  std::vector<std::string> notes;
  for (const auto& [name, error] : unusable) {
    if (is_older(name, used)) continue;
    notes.push_back(fmt::format("{}; it is passed over: {}{} is restarted", error.message(),
                                used.empty() ? "an image of one process" : used,
                                is_older(used, name) ? ", which is older," : ""));
  }
  return notes;
}

Json describe(const JobPlan& job) {
  uint64_t bytes = 0, threads = 0;
  Json pids = Json::array();
  for (const auto& plan : job.plans) {
    if (plan == nullptr) continue;
    bytes += plan->fill.bytes + plan->lazy.bytes;
    threads += plan->tids.size();
    pids.push_back(plan->process().pid);
  }
  return Json{{"job", job.directory},     {"sequence", job.manifest.sequence},
              {"pid", job.manifest.root}, {"processes", std::move(pids)},
              {"threads", threads},       {"memory_bytes", bytes}};
}

// What one attempt has besides the plan. Its thread has ended when it goes.
class RestartAttempt {
 public:
  RestartAttempt(const JobPlan& job, const NamespaceChoice& choice, const RestartOptions& options)
      : job_(job), choice_(choice), options_(options) {}
  ~RestartAttempt() { stop_feeding(); }
  RestartAttempt(const RestartAttempt&) = delete;
  RestartAttempt& operator=(const RestartAttempt&) = delete;

  // From the planter's first instruction to the release of all threads.
  Result<JobOutcome> run() {
    CKPT_TRY(prepare());
    auto channel = make_report_channel();
    if (!channel.ok()) return channel.error();
    auto [ours, theirs] = std::move(*channel);
    auto launched = launch(launch_spec(), ours, theirs);
    if (!launched.ok()) return launched.error();
    namespaces_ = launched->namespaces;
    status_writes_.clear();
    together_read_.reset();
    go_read_.reset();
    late_go_read_.reset();
    supervisor_.emplace(job_, std::move(*launched), std::move(ours), std::move(channels_), meeting_);
    supervisor_->say_at_once(notes_at_once(options_));
    start_feeding();
    auto outcome = supervisor_->wait_until_running();
    stop_feeding();
    meeting_.close();
    if (fed_) return *fed_;  // the cause of whatever a process said
    return outcome;
  }

  JobSupervisor& supervisor() { return *supervisor_; }
  int ended_by() const { return supervisor_ ? supervisor_->ended_by() : 0; }
  const NamespaceChoice& namespaces() const { return namespaces_; }

 private:
  Result<void> prepare() {
    CKPT_TRY(meeting_.open());
    const auto all = static_cast<uint32_t>(job_.births.births.size()) + 1;
    uint32_t reapers = 1;  // ckpt-restart, for the planter
    for (const Birth& b : job_.births.births) reapers += b.kind != BirthKind::kHelper;
    for (Point p : {Point::kBorn, Point::kLed, Point::kJoined}) meeting_.expect(p, all);
    meeting_.expect(Point::kGone, reapers);
    const auto members = std::ranges::count_if(job_.plans, [](const auto& plan) { return plan != nullptr; });
    meeting_.expect(Point::kOpened, static_cast<uint32_t>(members));
    raise_limit();
    feeders_.resize(job_.plans.size());
    channels_.status.resize(job_.plans.size());
    status_writes_.resize(job_.plans.size());
    for (size_t m = 0; m < job_.plans.size(); ++m) {
      if (job_.plans[m] == nullptr) continue;
      std::tie(channels_.status[m], status_writes_[m]) = make_pipe();
      if (!status_writes_[m].valid()) return no_pipe();
      feeders_[m] = std::make_unique<Feeder>(*job_.plans[m]->image, job_.plans[m]->fill);
      if (!feeders_[m]->wanted()) {
        feeders_[m].reset();
      } else {
        CKPT_TRY(feeders_[m]->prepare());
      }
    }
    std::tie(together_read_, channels_.together) = make_pipe();
    std::tie(go_read_, channels_.go) = make_pipe();
    std::tie(late_go_read_, channels_.late_go) = make_pipe();
    return go_read_.valid() && late_go_read_.valid() && together_read_.valid() ? Result<void>() : no_pipe();
  }

  static Error no_pipe() {
    return make_error(ExitCode::kSystem, errno, "no pipe to a new process ({}): raise ulimit -n",
                      errno_name(errno));
  }

  // A few descriptors for each process.
  static void raise_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }

  LaunchSpec launch_spec() {
    const ProcessRecord& root = job_.root().process();
    LaunchSpec spec;
    spec.namespaces = choice_;
    spec.pid = job_.births.planter_pid;
    spec.watched = job_.manifest.root;
    spec.uid = root.uid[1];
    spec.gid = root.gid[1];
    spec.program = [this, restarter = getpid()](ReportChannel& report, bool in_new_user) {
      channels_ = {};
      PlanterSpec planter;
      planter.job = &job_;
      planter.meeting = &meeting_;
      for (const ScopedFd& fd : status_writes_) planter.fds.push_back({fd.get()});
      planter.feeders = &feeders_;
      planter.together_fd = together_read_.get();
      planter.go_fd = go_read_.get();
      planter.late_go_fd = late_go_read_.get();
      planter.restarter_pid = restarter;
      planter.new_pid_namespace = choice_.new_pid;
      run_planter(planter, report, in_new_user);
    };
    return spec;
  }

  // One process after the other is fed: each feeder starts as many threads as there are processors.
  void start_feeding() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    feeding_ = std::thread([this] {
      for (size_t m = 0; m < feeders_.size(); ++m) {
        if (feeders_[m] == nullptr || stop_.load(std::memory_order_relaxed)) continue;
        auto done = feeders_[m]->start({});
        if (done.ok()) done = feeders_[m]->join();
        if (!done.ok()) {
          const ManifestMember& member = job_.manifest.members[m];
          fed_ = make_error(done.error().code, done.error().sys_errno, "process {} ({}): {}", member.pid,
                            member.name, done.error().message());
          supervisor_->give_up(*fed_);
          return;
        }
        // The feeder stays: the restorer gives slots back after the last order.
      }
    });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void stop_feeding() {
    stop_.store(true, std::memory_order_relaxed);
    if (feeding_.joinable()) feeding_.join();
  }

  const JobPlan& job_;
  const NamespaceChoice& choice_;
  const RestartOptions& options_;
  Meeting meeting_;
  NamespaceChoice namespaces_;
  JobChannels channels_;
  std::vector<ScopedFd> status_writes_;
  ScopedFd together_read_, go_read_, late_go_read_;
  std::vector<std::unique_ptr<Feeder>> feeders_;
  std::thread feeding_;
  std::atomic<bool> stop_{false};  // relaxed: it only tells the thread to begin with no other feeder
  std::optional<Error> fed_;       // by the thread, read after it
  std::optional<JobSupervisor> supervisor_;
};

void report_costs(const RestartOptions& options, const JobPlan& job, const NamespaceChoice& namespaces,
                  const JobOutcome& outcome, int64_t start_ns, int64_t checked_ns,
                  const std::vector<std::string>& notes) {
  if (options.json) {
    Json j = describe(job);
    j["ok"] = true;
    j["outer_pids"] = outcome.outer_pids;
    j["new_pid_namespace"] = namespaces.new_pid;
    j["new_user_namespace"] = namespaces.new_user;
    j["check_ns"] = checked_ns - start_ns;
    j["restart_ns"] = outcome.go_ns() - start_ns;
    Json& stages = j["stages_ns"];
    for (size_t i = 0; i < kRestartStages; ++i) {
      if (outcome.stage_ns[i] != 0)
        stages[stage_name(static_cast<RestartStage>(i))] = outcome.stage_ns[i] - start_ns;
    }
    j["notes"] = notes;
    std::fprintf(stderr, "%s\n", j.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else if (options.verbose) {
    std::fprintf(
        stderr,
        "ckpt-restart: %s: %zu processes, running after %.1f ms (%.1f ms of it to check the images)\n",
        job.directory.c_str(), job.manifest.members.size(),
        static_cast<double>(outcome.go_ns() - start_ns) / 1e6,
        static_cast<double>(checked_ns - start_ns) / 1e6);
    if (namespaces.new_pid) {
      std::fprintf(stderr, "ckpt-restart: in a pid namespace of its own (%s)\n", namespaces.reason.c_str());
    }
  }
}

// Never lazily: that takes a loader for each process, which is not built yet.
Loading loading_of(const RestartOptions& options, JobPlan& job) {
  if (options.check) return Loading::kNone;
  if (options.loading == Loading::kLazy)
    job.notes.push_back("all memory is loaded before the job runs: it is of several processes");
  return Loading::kEager;
}

int say_checked(const RestartOptions& options, const JobPlan& job, const NamespaceChoice& choice) {
  if (options.json) {
    Json j = describe(job);
    j["ok"] = true;
    j["new_pid_namespace"] = choice.new_pid;
    j["new_user_namespace"] = choice.new_user;
    j["notes"] = job.notes;
    std::printf("%s\n", j.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    for (const std::string& note : job.notes) print_note(options, note);
    if (!options.quiet) {
      std::printf("%s: %zu processes can be restarted here%s\n", job.directory.c_str(),
                  job.manifest.members.size(), choice.new_pid ? ", in a pid namespace of their own" : "");
    }
  }
  return 0;
}

Result<void> check_ids(const JobPlan& job) {
  for (int id : job.ids()) {
    if (id == 1) {
      return make_error(ExitCode::kUnavailable, 0,
                        "process 1 is in the job: the first process of a namespace comes back alone only");
    }
  }
  return {};
}

}  // namespace

Result<std::optional<std::string>> find_job(const std::string& argument, std::vector<std::string>& notes) {
  const std::string path = without_slash(argument);
  if (is_job_directory(path)) return std::optional(path);
  struct stat st;
  if (stat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode)) return std::optional<std::string>();
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
  std::optional<std::string> newest;
  std::optional<Error> why_not;
  std::vector<std::pair<std::string, Error>> unusable;
  int64_t newest_ns = -1;
  while (dir != nullptr) {
    const dirent* entry = readdir(dir.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name, whole = path + "/" + name;
    if (!name.ends_with(kJobSuffix) || !is_job_directory(whole)) continue;
    auto manifest = read_manifest(whole);
    if (!manifest.ok()) {
      why_not = manifest.error();
      // A checkpoint that is gone meanwhile was removed because there are newer ones.
      if (why_not->code != ExitCode::kNotFound) unusable.emplace_back(name, *why_not);
      continue;
    }
    if (manifest->time_ns <= newest_ns) continue;
    newest_ns = manifest->time_ns;
    newest = whole;
  }
  if (!newest && !why_not) return newest;
  // Images of one process may be there as well, and taken later. When files were written says nothing: they
  // may be copies.
  int64_t newest_image_ns = -1;
  if (auto images = ImageCatalog::list(path); images.ok()) {
    for (const CatalogEntry& image : images->entries()) {
      if (image.complete) newest_image_ns = std::max(newest_image_ns, image.brief.realtime_ns);
    }
  }
  if (!newest && newest_image_ns < 0) return *why_not;
  if (newest_image_ns > newest_ns) newest.reset();
  notes = say_passed_over(unusable, newest ? newest->substr(path.size() + 1) : "");
  return newest;
}

namespace {

// choose_mmap_base() may execute this program again.
Result<void> choose_own_place(const Manifest& manifest, const std::string& directory, bool trust,
                              char** argv) {
  auto descriptions = open_descriptions(manifest, directory, trust);
  if (!descriptions.ok()) return descriptions.error();
  std::vector<const ImageMeta*> metas;
  for (const ImageReader& image : *descriptions) metas.push_back(&image.meta());
  choose_mmap_base(metas, argv);
  return {};
}

// A part of a job over hosts is restarted by the ckpt-restart that has all of them.
Result<void> refuse_part_alone(const RestartOptions& options, const std::string& directory) {
  const std::string host = host_of_part(directory);
  if (host.empty() || options.hosts_fd >= 0 || options.check) return {};
  return make_error(
      ExitCode::kUsage, 0,
      "{}: is the part of host {} in a job over several: ckpt-restart --hosts h1,h2 with the directory "
      "that has its .hosts file",
      directory, host);
}

// Opens the job and checks all of it.
Result<JobPlan> checked_job(const RestartOptions& options, const std::string& directory, Manifest manifest,
                            bool spooled, const std::vector<std::string>& notes_of_choice) {
  auto job = open_job(directory, std::move(manifest), options.trust);
  if (!job.ok()) return job.error();
  job->notes.insert(job->notes.begin(), notes_of_choice.begin(), notes_of_choice.end());
  if (spooled) {
    unsetenv("CKPT_RESTART_SPOOL");
    // The later contents of files that are put back are saved in the working directory, as with an image from
    // standard input.
    for (auto& plan : job->plans) {
      if (plan != nullptr) plan->image_directory = std::filesystem::current_path();
    }
  }
  CKPT_TRY(plan_tree(*job));
  CKPT_TRY(check_ids(*job));
  await_dying(job->ids());
  CKPT_TRY(check_job(*job, loading_of(options, *job), {}));
  return job;
}

// The second attempt, in a namespace, if somebody has taken an id since we looked: nothing of the job has
// run.
Result<JobOutcome> run_attempts(const RestartOptions& options, const JobPlan& job, NamespaceChoice& choice,
                                std::optional<RestartAttempt>& attempt) {
  // Orphans of the present pid namespace are ours until all are where they belong.
  if (!choice.new_pid) prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  attempt.emplace(job, choice, options);
  auto outcome = attempt->run();
  if (!outcome.ok() && outcome.error().code == ExitCode::kUnavailable &&
      outcome.error().sys_errno == EEXIST && !choice.new_pid &&
      options.namespaces == NamespacePolicy::kAuto && hosts_plan() == nullptr) {
    auto own = choose_namespaces(job.ids(), NamespacePolicy::kAlways);
    if (own.ok()) {
      choice = *own;
      choice.reason = "an id was taken meanwhile";
      attempt.emplace(job, choice, options);
      outcome = attempt->run();
    } else {
      outcome = own.error();
    }
  }
  prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
  return outcome;
}

}  // namespace

int restart_job(const RestartOptions& options, const std::string& directory, char** argv, JobSpool* spool,
                const std::vector<std::string>& notes_of_choice) {
  const int64_t start_ns = now_ns();
  auto manifest = read_manifest(directory);
  if (!manifest.ok()) return finish_with_error(options, manifest.error());
  // Until all is loaded; of a stream nobody knows.
  auto held = spool != nullptr ? Result<ScopedFd>(ScopedFd()) : job::hold_job(directory.c_str());
  if (!held.ok()) return finish_with_error(options, held.error());
  if (auto r = refuse_part_alone(options, directory); !r.ok()) return finish_with_error(options, r.error());
  if (!options.check) {
    if (auto r = choose_own_place(*manifest, directory, options.trust, argv); !r.ok())
      return finish_with_error(options, r.error());
  }
  // Not before: the block above may have begun again from main().
  if (options.hosts_fd >= 0) {
    if (auto r = receive_hosts_plan(options.hosts_fd); !r.ok()) return finish_with_error(options, r.error());
    if (auto r = shares_host() ? live_apart() : Result<void>(); !r.ok())
      return finish_with_error(options, r.error());
  }
  auto job = checked_job(options, directory, std::move(*manifest), spool != nullptr, notes_of_choice);
  if (!job.ok()) return finish_with_error(options, job.error());
  auto choice = choose_namespaces(job->ids(), shares_host() ? NamespacePolicy::kAlways : options.namespaces);
  if (!choice.ok()) return finish_with_error(options, choice.error());
  const int64_t checked_ns = now_ns();
  if (options.check) return say_checked(options, *job, *choice);

  Supervisor::block_signals();
  Terminal terminal;
  if (!options.detach) terminal.set_as_saved(job->root().image->meta());
  std::optional<RestartAttempt> attempt;
  auto outcome = run_attempts(options, *job, *choice, attempt);
  if (!outcome.ok()) {
    terminal.put_back();
    constexpr int kBySignal = 128;  // as a shell says it
    const int code = finish_with_error(options, outcome.error());
    return attempt->ended_by() != 0 ? kBySignal + attempt->ended_by() : code;
  }
  const NamespaceChoice namespaces = attempt->namespaces();
  Supervisor supervisor(
      attempt->supervisor().take_launched(), attempt->supervisor().take_report(), ScopedFd(),
      [](uint32_t) { return std::string(); }, nullptr, job->place);
  if (!namespaces.new_pid) supervisor.adopt_orphans();
  if (terminal.other_size()) supervisor.send(SIGWINCH);
  // All is loaded.
  if (spool != nullptr) spool->remove();
  job::release_job(*held);
  held->reset();

  const int root_member = job->births.births[static_cast<size_t>(job->root_birth())].member;
  const int outer_pid = outcome->outer_pids[static_cast<size_t>(root_member)];
  if (hosts_plan() != nullptr) hosts_plan()->say_running(outer_pid);
  std::vector<std::string> notes = job->notes;
  notes.insert(notes.end(), outcome->notes.begin(), outcome->notes.end());
  for (const std::string& note : notes) print_note(options, note);
  report_costs(options, *job, namespaces, *outcome, start_ns, checked_ns, notes);
  if (options.detach) {
    supervisor.detach();
    std::printf("%d\n", outer_pid);
    return 0;
  }
  attempt.reset();
  for (auto& plan : job->plans) plan.reset();  // of no use for the rest of a long life
  forget_reading_key();
  std::fflush(nullptr);
  for (const Report& report : outcome->of_program) supervisor.take_report(report, ScopedFd());
  end_like(supervisor.wait_until_ended([] {}));
}

}  // namespace ckpt
