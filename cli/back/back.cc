// ckpt back: a running program becomes again what it was at a checkpoint, in place (docs/back.md).
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/checks/named_points.h"
#include "base/settings/settings.h"
#include "cli/ask/answer_json.h"
#include "cli/back/back_hosts.h"
#include "cli/back/commands.h"
#include "cli/back/job/job_back.h"
#include "cli/back/process_back.h"
#include "cli/image/jobs/job_images.h"
#include "cli/image/key_option.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

struct BackOptions {
  std::string pid, image, timeout;
  bool json = false, anyway = false, only = false, trust = false;
};

// A member of a job may have left shared memory to the image of another (docs/shared_memory.md).
Result<void> check_is_whole(const ImageMeta& image, const std::string& path) {
  for (const ParsedMapping& m : image.mappings) {
    if ((m.record.flags & kMapElsewhere) == 0) continue;
    return failure(ExitCode::kUnsupported, path,
                   fmt::format("has not the memory at {:x}-{:x}, which the process shares with others of its "
                               "job: another's image has it",
                               m.record.start, m.record.end),
                   "take the whole job back, without --only");
  }
  return {};
}

Result<Answer> back_process(ProcessBack& back, const std::string& path) {
  auto prepare = [&]() -> Result<void> {
    CKPT_TRY(back.begin(nullptr));
    CKPT_TRY(back.hear_standing());
    points::at("back.standing");
    CKPT_TRY(back.compare({}, {}));
    CKPT_TRY(back.hand_plan({}, {}));
    return back.hear_ready();
  };
  CKPT_TRY(back.open(path));
  CKPT_TRY(check_is_whole(back.then(), path));
  if (auto prepared = prepare(); !prepared.ok()) {
    back.give_up();
    return prepared.error();
  }
  auto killed = [&](const Error& why) {
    back.kill();
    return make_error(why.code, why.sys_errno, "{} ({}) was killed half way back: {}", back.target().pid,
                      printable(back.target().name), why.message());
  };
  CKPT_TRY(back.tell_cutting());
  points::at("back.cutting");
  if (auto cut = back.cut_files({}); !cut.ok()) {
    if (back.was_cut()) return killed(cut.error());
    back.give_up();
    return cut.error();
  }
  points::at("back.cut");
  CKPT_TRY(back.commit());
  while (back.wants_pages()) {
    if (auto sent = back.send_pages(); !sent.ok()) return killed(sent.error());
  }
  return back.answer();
}

void print_cost(const Target& t, const Answer& a) {
  auto line = [](const char* what, const std::string& value) {
    fmt::print("  {:<24}{}\n", what, printable(value));
  };
  fmt::print("{} (pid {}) is back at checkpoint {}\n", printable(t.name), t.pid, text_of(a, "sequence"));
  line("image", text_of(a, "image"));
  line("threads stood", fmt::format("{} ({})", human_duration(static_cast<int64_t>(number_of(a, "pause_ns"))),
                                    plural(number_of(a, "threads"), "thread", "threads")));
  line("memory put back", fmt::format("{}{}", human_bytes(number_of(a, "bytes")),
                                      number_of(a, "watched") != 0 ? " (what was written since)" : ""));
  if (number_of(a, "threads_ended") != 0) line("threads ended", text_of(a, "threads_ended"));
  if (number_of(a, "threads_made") != 0) line("threads made again", text_of(a, "threads_made"));
  line("time in all", human_duration(static_cast<int64_t>(number_of(a, "total_ns"))));
  for (const auto& [key, value] : a) {
    if (key == "note") line("note", value);
  }
}

void print_job_cost(const Answer& a) {
  auto line = [](const char* what, const std::string& value) {
    fmt::print("  {:<24}{}\n", what, printable(value));
  };
  fmt::print("the job is back at checkpoint {}\n", text_of(a, "sequence"));
  line("checkpoint", text_of(a, "directory"));
  line("processes", text_of(a, "members"));
  if (number_of(a, "ended") != 0) line("born since, and ended", text_of(a, "ended"));
  line("threads stood", fmt::format("{} ({})", human_duration(static_cast<int64_t>(number_of(a, "pause_ns"))),
                                    plural(number_of(a, "threads"), "thread", "threads")));
  line("memory put back", human_bytes(number_of(a, "bytes")));
  line("time in all", human_duration(static_cast<int64_t>(number_of(a, "total_ns"))));
  for (const auto& [key, value] : a) {
    if (key == "note") line("note", value);
  }
}

nlohmann::json job_json(const Answer& a) {
  nlohmann::json json;
  auto notes = nlohmann::json::array();
  for (const auto& [key, value] : a) {
    if (key == "note")
      notes.push_back(printable(value));
    else if (key == "directory")
      json[key] = printable(value);
    else
      json[key] = number_of(a, key);
  }
  json["notes"] = notes;
  return json;
}

Result<void> back_whole_job(const BackOptions& o, const std::string& directory, const AskLimits& limits) {
  auto answer = back_job({directory, limits, o.anyway, o.trust});
  if (!answer.ok()) return answer.error();
  if (o.json)
    print_json(job_json(*answer));
  else
    print_job_cost(*answer);
  return {};
}

// The directory of the job's checkpoint that the image is a part of; "": the image was taken of a process
// alone.
std::string checkpoint_of_job(const std::string& image) {
  const size_t slash = image.rfind('/');
  return slash == std::string::npos ? "" : job_of(image.substr(0, slash));
}

Result<void> back(const BackOptions& o) {
  static const int own_pid = getpid();
  if (const char* point = getenv("CKPT_TEST_POINT")) points::want(point, "ckpt", &own_pid);
  AskLimits limits;
  limits.answer_ns = 120'000'000'000;
  CKPT_TRY(set_timeout(o.timeout, limits));
  if (const std::string job = job_of(o.pid); !job.empty()) {
    if (o.only || !o.image.empty())
      return failure(ExitCode::kUsage, o.pid, "is a checkpoint of a job: it says all", "give nothing else");
    return back_whole_job(o, job, limits);
  }
  if (!o.only) {
    auto done = back_over_hosts(o.pid, o.image, o.json, o.anyway || !o.timeout.empty());
    if (!done.ok()) return done.error();
    if (*done) return {};
  }
  auto pid = parse_pid(o.pid);
  if (!pid.ok()) return pid.error();
  auto target = await_target(*pid);
  if (!target.ok()) return target.error();
  CKPT_TRY(refuse_stopped(*target));
  std::string path = o.image;
  if (path.empty()) {
    auto stat = ask(*target, ControlOperation::kStat, limits, {});
    if (!stat.ok()) return stat.error();
    path = text_of(*stat, "last_image");
    if (path.empty()) {
      return failure(ExitCode::kNotFound, fmt::format("{} ({})", target->pid, target->name),
                     "has taken no checkpoint yet", "take one with ckpt now, or name an image");
    }
    auto reached = reach_keeper_images(path);
    if (!reached.ok()) return reached.error();
    path = *reached;
  }
  std::string job = job_of(path);
  if (job.empty() && o.image.empty() && !o.only) job = checkpoint_of_job(path);
  if (!job.empty() && o.only) path = fmt::format("{}/{}.ckpt", job, target->pid);
  if (!job.empty() && !o.only) {
    auto manifest = read_manifest(job);
    if (!manifest.ok()) return manifest.error();
    if (manifest->member(target->pid) == nullptr) {
      return failure(ExitCode::kUsage, job, fmt::format("has no process {}", target->pid),
                     "ckpt show tells of which it is");
    }
    return back_whole_job(o, job, limits);
  }
  ProcessBack process(*target, limits, o.anyway, o.trust);
  auto answer = back_process(process, path);
  if (!answer.ok()) return answer.error();
  if (o.json)
    print_json(answer_json(*target, *answer));
  else
    print_cost(*target, *answer);
  return {};
}

}  // namespace

void add_back(CLI::App& app, ExitCode& exit) {
  CLI::App* command =
      app.add_subcommand("back", "take a running program or job back to a checkpoint, in place");
  auto o = std::make_shared<BackOptions>();
  command
      ->add_option("PID", o->pid,
                   "process id of the program, of any process of the job; or the directory of a job's\n"
                   "checkpoint")
      ->required();
  command->add_option(
      "IMAGE", o->image,
      "an image of this very program, or a checkpoint of its job: of one over several hosts a .hosts file\n"
      "(default: the newest)");
  command->add_flag("--only", o->only, "this process alone, whatever else is in its job");
  command->add_flag("--trust", o->trust, "an image that somebody else owns or may have written");
  command->add_flag("--json", o->json, "print what it cost as JSON: times in ns, sizes in bytes");
  command->add_flag("--anyway", o->anyway,
                    "also where something cannot go back: children born since live on, what was\n"
                    "closed and cannot be opened again stays closed");
  command->add_option("--timeout", o->timeout,
                      "give up waiting after this time, for example 30s (default: 120s)");
  add_key_option(command);
  command->footer(
      "Memory, threads, descriptors, files' lengths, signals and timers become what they were; the process "
      "is not\n"
      "ended. What cannot go back is said, and nothing is changed then.\n"
      "Exit codes: 0 it is back, 64 wrong arguments or an image of another run, 65 image damaged, 66 no such "
      "image,\n"
      "67 no such process or not preloaded, 68 library or kernel changed, 69 a thread cannot be made again,\n"
      "70 given up (the message says whether the program goes on), 72 a file is gone or shorter, 75 no "
      "answer in\n"
      "time, 77 not yours, 78 something cannot go back.");
  command->callback([o, &exit] {
    auto done = back(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
