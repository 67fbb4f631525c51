// ckpt-restart: plan and checks, the new process, then its parent until it ends. Stages: docs/restart.md.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "base/files/standard_descriptors.h"
#include "image/read/image_chain.h"
#include "image/read/sources/image_catalog.h"
#include "image/read/sources/image_spool.h"
#include "image/read/sources/job_spool.h"
#include "image/read/sources/keeper_images.h"
#include "image/read/sources/reading_key.h"
#include "image/read/sources/reading_trust.h"
#include "restart/files/dying_processes.h"
#include "restart/options.h"
#include "restart/output.h"
#include "restart/plan/memory/layout.h"
#include "restart/plan/memory/memory_plan.h"
#include "restart/plan/plan.h"
#include "restart/reports/pipe.h"
#include "restart/restart_job.h"
#include "restart/tree/launch.h"
#include "restart/tree/lost_children.h"
#include "restart/tree/process.h"
#include "restart/tree/stage_text.h"
#include "restart/tree/supervise.h"
#include "restart/tree/terminal.h"

namespace ckpt {
namespace {

using Json = nlohmann::json;

// Instants of CLOCK_MONOTONIC, in nanoseconds: when the restart began, and when all checks were done.
struct Costs {
  int64_t start_ns = now_ns();
  int64_t checked_ns = 0;
};

Json describe(const RestartPlan& plan) {
  const ProcessRecord& p = plan.process();
  return Json{{"image", plan.image->path()},
              {"sequence", plan.image->brief().sequence},
              {"pid", p.pid},
              {"threads", plan.tids.size()},
              {"mappings", plan.image->meta().mappings.size()},
              {"memory_bytes", plan.fill.bytes + plan.lazy.bytes},
              {"lazy_bytes", plan.lazy.bytes},
              {"images", plan.image->size()},
              {"image_bytes", plan.image->file_bytes()}};
}

void report_costs(const RestartOptions& options, const RestartPlan& plan, const Loader& loader,
                  const Launched& launched, const Outcome& outcome, const Costs& costs,
                  const std::vector<std::string>& notes) {
  double check_ms = static_cast<double>(costs.checked_ns - costs.start_ns) / 1e6;
  double restart_ms = static_cast<double>(outcome.go_ns() - costs.start_ns) / 1e6;
  if (options.json) {
    Json j = describe(plan);
    j["ok"] = true;
    j["outer_pid"] = outcome.outer_pid;
    if (loader.started()) j["loader_pid"] = loader.pid();
    j["new_pid_namespace"] = launched.namespaces.new_pid;
    j["new_user_namespace"] = launched.namespaces.new_user;
    j["check_ns"] = costs.checked_ns - costs.start_ns;
    j["restart_ns"] = outcome.go_ns() - costs.start_ns;
    Json& stages = j["stages_ns"];
    for (size_t i = 0; i < kRestartStages; ++i) {
      if (outcome.stage_ns[i] != 0)
        stages[stage_name(static_cast<RestartStage>(i))] = outcome.stage_ns[i] - costs.start_ns;
    }
    j["notes"] = notes;
    std::fprintf(stderr, "%s\n", j.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else if (options.verbose) {
    std::fprintf(stderr,
                 "ckpt-restart: %s: pid %d, %zu threads, %.1f MiB of memory, running after %.1f ms (%.1f ms "
                 "of it to check "
                 "the image)\n",
                 plan.image->path().c_str(), plan.process().pid, plan.tids.size(),
                 static_cast<double>(plan.fill.bytes + plan.lazy.bytes) / (1 << 20), restart_ms, check_ms);
    if (plan.lazy.any()) {
      std::fprintf(stderr, "ckpt-restart: %.1f MiB of it are loaded while it runs, by process %d\n",
                   static_cast<double>(plan.lazy.bytes) / (1 << 20), loader.pid());
    }
    if (launched.namespaces.new_pid) {
      std::fprintf(stderr, "ckpt-restart: in a pid namespace of its own (%s); its pid outside is %d\n",
                   launched.namespaces.reason.c_str(), outcome.outer_pid);
    }
  }
}

// One attempt: from the start of the loader to the library's release of the threads.
Result<Outcome> bring_back(const RestartOptions& options, const RestartPlan& plan,
                           const NamespaceChoice& choice, std::optional<Supervisor>& supervisor,
                           Loader& loader, Launched& launched_copy) {
  // The loader starts first, so that it inherits none of the descriptors that are made later.
  loader.forget();
  if (plan.lazy.any()) CKPT_TRY(loader.start(*plan.image, plan.lazy, {options.quiet, options.json}));
  auto channel = make_report_channel();
  if (!channel.ok()) return channel.error();
  auto [ours, theirs] = std::move(*channel);
  auto [status_read, status_write] = make_pipe();
  if (!status_read.valid()) {
    return make_error(ExitCode::kSystem, errno, "no pipe to the new process ({})", errno_name(errno));
  }
  Feeder feeder(*plan.image, plan.fill);
  if (feeder.wanted()) CKPT_TRY(feeder.prepare());
  LaunchSpec spec;
  spec.namespaces = choice;
  spec.pid = plan.process().pid;
  spec.uid = plan.process().uid[1];
  spec.gid = plan.process().gid[1];
  const JobPlace place = job_place(plan.image->meta());
  spec.program = [&, status = status_write.get(), feed = feeder.process_fds()](ReportChannel& report,
                                                                               bool in_new_user) {
    feeder.give_up_our_ends();
    ProcessSpec process = process_of(plan);
    process.status_fd = status;
    process.feed = feed;
    process.loader_fd = loader.process_fd();
    process.place = place;
    process.is_alone = true;
    become_program(process, report, in_new_user);
  };
  auto launched = launch(spec, ours, theirs);
  if (!launched.ok()) return launched.error();
  status_write.reset();
  loader.give_up_process_end();
  launched_copy.namespaces = launched->namespaces;
  supervisor.emplace(
      std::move(*launched), std::move(ours), std::move(status_read),
      [&plan](uint32_t index) { return mapping_name(plan.image->meta(), index); },
      loader.started() ? &loader : nullptr, place);
  supervisor->say_at_once(notes_at_once(options));
  if (feeder.wanted()) CKPT_TRY(feeder.start(progress_on_terminal(options, "loading")));
  auto outcome = supervisor->wait_until_running();
  auto fed = feeder.join();
  if (!fed.ok()) return fed.error();  // the cause of whatever the process said
  return outcome;
}

// What each host's ckpt-restart is to be told as well. A path is one of here: where it is the same elsewhere
// it is found there.
std::vector<std::string> words_of_parts(const RestartOptions& options) {
  std::vector<std::string> words;
  const auto add = [&words](const std::string& word) { words.push_back("--with=" + word); };
  if (options.trust) add("--trust");
  if (options.quiet) add("--quiet");
  if (options.verbose) add("--verbose");
  if (options.loading == Loading::kEager) add("--eager");
  if (options.loading == Loading::kLazy) add("--lazy");
  if (options.namespaces == NamespacePolicy::kNever) add("--namespaces=never");
  if (options.namespaces == NamespacePolicy::kAlways) add("--namespaces=always");
  if (!options.key_file.empty()) {
    std::error_code ignored;
    add("--key-file=" + std::filesystem::absolute(options.key_file, ignored).string());
  }
  return words;
}

// The head of a job over several hosts is ckpt's: it starts agents there, and each its ckpt-restart. Without
// --hosts it is on the nodes of Slurm's allocation, if there is one.
int restart_on_hosts(const RestartOptions& options) {
  if (options.detach) {
    return finish_with_error(
        options, make_error(ExitCode::kUsage, 0,
                            "--detach: the job over several hosts ends with its ckpt-restart; use nohup or "
                            "setsid"));
  }
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
  std::string ckpt(path, n > 0 ? static_cast<size_t>(n) : 0);
  ckpt = ckpt.substr(0, ckpt.rfind('/')) + "/ckpt";
  if (options.json) {
    return finish_with_error(
        options, make_error(ExitCode::kUsage, 0,
                            "--json: each host has a restart of its own; ckpt stat and ckpt show tell of the "
                            "job"));
  }
  std::vector<const char*> words{ckpt.c_str(), "restart-hosts"};
  if (!options.hosts.empty()) words.insert(words.end(), {"--hosts", options.hosts.c_str()});
  const std::vector<std::string> of_parts = words_of_parts(options);
  for (const std::string& word : of_parts) words.push_back(word.c_str());
  if (!options.launch.empty()) words.insert(words.end(), {"--launch", options.launch.c_str()});
  if (!options.spares.empty()) words.insert(words.end(), {"--spare", options.spares.c_str()});
  if (options.recover) words.push_back("--recover");
  if (options.check) words.push_back("--check");
  words.insert(words.end(), {"--", options.image.c_str(), nullptr});
  execv(ckpt.c_str(), const_cast<char**>(words.data()));
  return finish_with_error(options, make_error(ExitCode::kNotFound, errno,
                                               "{}: cannot be started ({}): install it beside ckpt-restart",
                                               ckpt, errno_name(errno)));
}

// A .hosts file, or a directory that has one.
bool is_over_hosts(const std::string& image) {
  constexpr std::string_view kSuffix = ".hosts";
  if (image.ends_with(kSuffix)) return true;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(image.c_str()), closedir);
  for (const dirent* e; dir != nullptr && (e = readdir(dir.get())) != nullptr;) {
    const std::string_view name = e->d_name;
    if (name.ends_with(kSuffix) && name[0] != '.') return true;
  }
  return false;
}

// The checkpoint of a job that comes as one stream. choose_mmap_base() may execute this program again: then
// it is there already.
Result<std::unique_ptr<JobSpool>> spooled_job(const std::string& image) {
  if (auto before = JobSpool::left_before()) return before;
  auto spool = JobSpool::of(image);
  if (spool.ok() && *spool != nullptr) {
    if (image == "-") CKPT_TRY(leave_standard_input());
    (*spool)->leave_to_next_execution();
  }
  return spool;
}

// choose_mmap_base() may execute this program again. So only the description is read here, not the list of
// all memory, which is long.
Result<void> choose_own_place(const std::string& path, char** argv) {
  auto description = path == "-" ? open_standard_input(ImageParts::kDescription)
                                 : ImageReader::open(path, ImageParts::kDescription);
  if (!description.ok()) return description.error();
  description->read_ahead();
  const ImageMeta* metas[] = {&description->meta()};
  choose_mmap_base(metas, argv);
  return {};
}

// When memory is loaded. Adds a note where that is not as the user wanted. confined: in a user namespace of
// its own the process may not have the userfaultfd that lazy memory needs.
Loading choose_loading(const RestartOptions& options, bool confined, RestartPlan& plan) {
  // A thread that waits for a page must get it soon: the extents of an encrypted image are not loaded lazily.
  bool sealed = false;
  for (size_t i = 0; i < plan.image->size(); ++i) sealed |= !plan.image->image(i).stored_plainly();
  if (sealed && options.loading == Loading::kLazy) {
    plan.notes.push_back("all memory is loaded before the program runs: the image is encrypted");
  }
  if (confined && options.loading == Loading::kLazy) {
    plan.notes.push_back(
        "all memory is loaded before the program runs: it comes back in a user namespace of its own");
  }
  if (options.check) return Loading::kNone;
  return confined || sealed ? Loading::kEager : options.loading;
}

// --check: it can be restarted.
void say_checked(const RestartOptions& options, const RestartPlan& plan, const NamespaceChoice& choice) {
  Json j = describe(plan);
  j["ok"] = true;
  j["new_pid_namespace"] = choice.new_pid;
  j["new_user_namespace"] = choice.new_user;
  j["notes"] = plan.notes;
  if (options.json) {
    std::printf("%s\n", j.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
    return;
  }
  for (const std::string& note : plan.notes) print_note(options, note);
  if (!options.quiet)
    std::printf("%s: can be restarted here%s\n", plan.image->path().c_str(),
                choice.new_pid ? ", in a pid namespace of its own" : "");
}

// All is checked: from the new process to its end, which is this process's.
int run_program(const RestartOptions& options, RestartPlan& plan, const std::vector<int>& ids,
                NamespaceChoice choice, const Costs& costs) {
  Supervisor::block_signals();
  Terminal terminal;
  if (!options.detach) terminal.set_as_saved(plan.image->meta());
  Loader loader;
  std::optional<Supervisor> supervisor;
  Launched launched;
  auto begin_again_in_namespace = [&]() -> Result<Outcome> {
    auto own = choose_namespaces(ids, NamespacePolicy::kAlways);
    if (!own.ok()) return own.error();
    choice = *own;
    choice.reason = "a thread id was taken meanwhile";
    if (choice.new_user && plan.lazy.any())
      CKPT_TRY(load_eagerly(plan, progress_on_terminal(options, "checking")));
    supervisor.reset();
    return bring_back(options, plan, choice, supervisor, loader, launched);
  };
  auto outcome = bring_back(options, plan, choice, supervisor, loader, launched);
  if (!outcome.ok() && outcome.error().code == ExitCode::kUnavailable &&
      outcome.error().sys_errno == EEXIST && !choice.new_pid &&
      options.namespaces == NamespacePolicy::kAuto) {
    // Somebody took an id since we looked: nothing of the program has run, so start over in a namespace.
    outcome = begin_again_in_namespace();
  }
  if (!outcome.ok()) {
    terminal.put_back();
    return finish_with_error(options, outcome.error());
  }
  if (terminal.other_size()) supervisor->send(SIGWINCH);

  std::vector<std::string> notes = plan.notes;
  notes.insert(notes.end(), outcome->notes.begin(), outcome->notes.end());
  for (std::string& line : restorer_note_lines(outcome->restorer_notes)) notes.push_back(std::move(line));
  for (std::string& line : library_note_lines(outcome->library_notes)) notes.push_back(std::move(line));
  for (const std::string& note : notes) print_note(options, note);
  report_costs(options, plan, loader, launched, *outcome, costs, notes);
  if (options.detach) {
    supervisor->detach();
    std::printf("%d\n", outcome->outer_pid);
    return 0;
  }
  plan.image.reset();  // its memory and descriptor are not needed for the rest of a long life
  forget_reading_key();
  std::fflush(nullptr);
  int status = supervisor->wait_until_ended([&] {
    if (options.json) {
      std::fprintf(stderr, "%s\n", loader.loaded_text(true).c_str());
    } else {
      print_note(options, loader.loaded_text(false));
    }
  });
  if (loader.error()) return finish_with_error(options, *loader.error());
  end_like(status);
}

int restart(RestartOptions options, char** argv) {
  if (!options.hosts.empty()) return restart_on_hosts(options);
  auto image = reach_keeper_images(options.image);
  if (!image.ok()) return finish_with_error(options, image.error());
  options.image = *image;
  if (options.image.ends_with(".hosts")) return restart_on_hosts(options);
  Costs costs;
  if (auto r = use_key_file(options.key_file); !r.ok()) return finish_with_error(options, r.error());
  if (!options.trust) trust_own_images_only();
  auto spool = spooled_job(options.image);
  if (!spool.ok()) return finish_with_error(options, spool.error());
  if (*spool != nullptr) return restart_job(options, (*spool)->directory(), argv, spool->get(), {});
  std::vector<std::string> passed_over;
  auto job = find_job(options.image, passed_over);
  if (!job.ok()) return finish_with_error(options, job.error());
  if (*job) return restart_job(options, **job, argv, nullptr, passed_over);
  auto path = resolve_image(options.image);
  if (!path.ok() && is_over_hosts(options.image)) return restart_on_hosts(options);
  if (!path.ok()) return finish_with_error(options, path.error());
  if (!options.check) {
    if (auto r = choose_own_place(*path, argv); !r.ok()) return finish_with_error(options, r.error());
  }
  auto plan = open_plan(*path);
  if (!plan.ok()) return finish_with_error(options, plan.error());
  if (auto r = check_is_whole(*plan); !r.ok()) return finish_with_error(options, r.error());
  plan->notes.insert(plan->notes.begin(), passed_over.begin(), passed_over.end());
  if (*path == "-") {
    if (auto r = leave_standard_input(); !r.ok()) return finish_with_error(options, r.error());
  }
  std::vector<int> ids = plan->tids;
  for (int child : lost_children(plan->image->meta())) ids.push_back(child);
  await_dying(ids);
  auto choice = choose_namespaces(ids, options.namespaces);
  const Loading loading = choose_loading(options, choice.ok() && choice->new_user, *plan);
  if (auto r = check_plan(*plan, loading, progress_on_terminal(options, "checking")); !r.ok()) {
    return finish_with_error(options, r.error());
  }
  if (!choice.ok()) return finish_with_error(options, choice.error());
  costs.checked_ns = now_ns();
  if (!options.check) return run_program(options, *plan, ids, std::move(*choice), costs);
  say_checked(options, *plan, *choice);
  return 0;
}

}  // namespace
}  // namespace ckpt

int main(int argc, char** argv) {
  // CKPT_TEST_POINT="POINT=kill:0": this process is killed, and the one that has come to the point.
  static const int own_pid = getpid();
  if (const char* point = getenv("CKPT_TEST_POINT")) ckpt::points::want(point, "ckpt-restart", &own_pid);
  ckpt::take_standard_descriptors();
  return ckpt::restart(ckpt::parse_options(argc, argv), argv);
}
