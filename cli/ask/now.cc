// ckpt now: take a checkpoint of a running program, wait until it is durable, say what it cost.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/settings/settings.h"
#include "cli/ask/answer_json.h"
#include "cli/ask/asker.h"
#include "cli/ask/commands.h"
#include "cli/ask/job_coordinator.h"
#include "cli/ask/machine_time.h"
#include "cli/hosts/job/ask_job.h"
#include "cli/image/key_option.h"
#include "cli/image/restartable.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/json_lines.h"
#include "cli/text/progress.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

namespace {

struct NowOptions {
  std::string pid, timeout, leave_out;
  bool json = false, only = false;
};

void print_cost(const Target& t, const Answer& a) {
  auto line = [](const char* what, const std::string& value) {
    fmt::print("  {:<24}{}\n", what, printable(value));
  };
  const uint64_t members = number_of(a, "members");
  if (members == 0) {
    fmt::print("checkpoint {} of {} (pid {}) is durable\n", text_of(a, "sequence"), printable(t.name), t.pid);
    line("image", text_of(a, "image"));
  } else {
    fmt::print("checkpoint {} of the job of {} (pid {}) is durable\n", text_of(a, "sequence"),
               printable(t.name), t.pid);
    line("job", text_of(a, "job"));
    std::string processes = plural(members, "process", "processes");
    if (const uint64_t ended = number_of(a, "members_ended"); ended != 0)
      processes += fmt::format(", {} that ended and were not waited for", ended);
    if (const uint64_t left_out = number_of(a, "members_left_out"); left_out != 0)
      processes += fmt::format(", {} left out", left_out);
    line("processes", processes);
    line("all stood", human_duration(static_cast<int64_t>(number_of(a, "job_pause_ns"))));
    fmt::print("of these process {}\n", t.pid);
    line("image", text_of(a, "image"));
  }
  line("mode", text_of(a, "mode"));
  if (const uint64_t parent = number_of(a, "parent_sequence"); parent != 0)
    line("increment to", fmt::format("{}", parent));
  line("threads stood", fmt::format("{} ({})", human_duration(static_cast<int64_t>(number_of(a, "pause_ns"))),
                                    plural(number_of(a, "threads"), "thread", "threads")));
  line("longest wait on a page",
       fmt::format("{} ({})", human_duration(static_cast<int64_t>(number_of(a, "longest_wait_ns"))),
                   plural(number_of(a, "faults"), "write waited", "writes waited")));
  // A larger CKPT_POOL or a faster disk helps.
  if (const uint64_t waits = number_of(a, "buffer_waits"); waits != 0) {
    line("of these for a buffer", fmt::format("{} (the pool was empty: see CKPT_POOL)", waits));
  }
  line("forced copies", plural(number_of(a, "forced_copies"), "segment", "segments"));
  if (const uint64_t ours = number_of(a, "processor_ns"); ours != 0) {
    auto part = [&](const char* key) { return human_duration(static_cast<int64_t>(number_of(a, key))); };
    line("processor time of ours",
         fmt::format("{} (agent {}, handler {}, writer {}, helpers {}, child {})", part("processor_ns"),
                     part("processor_agent_ns"), part("processor_handler_ns"), part("processor_writer_ns"),
                     part("processor_helpers_ns"), part("processor_child_ns")));
  }
  line("sequential copies", plural(number_of(a, "sequential_copies"), "segment", "segments"));
  line("memory in the image", fmt::format("{} ({}, {})", human_bytes(number_of(a, "bytes_memory")),
                                          plural(number_of(a, "mappings"), "mapping", "mappings"),
                                          plural(number_of(a, "descriptors"), "descriptor", "descriptors")));
  line("bytes written", human_bytes(number_of(a, "bytes_written")));
  line("time until durable", human_duration(static_cast<int64_t>(number_of(a, "durable_ns"))));
  if (number_of(a, "attempts") > 1) line("attempts", text_of(a, "attempts"));
  for (const auto& [key, value] : a) {
    if (key == "note") line("note", value);
    if (key == "no_restart") line("NO RESTART", value);
  }
}

// What comes back changed, or cannot: said now, not only when it is too late. The image has it in words.
void add_notes(Answer* answer) {
  for (const auto& [key, value] : *answer) {
    if (key == "note") return;
  }
  const std::string job = text_of(*answer, "job");
  auto reached = reach_keeper_images(job.empty() ? text_of(*answer, "image") : job);
  if (!reached.ok()) return;
  const ImageNotes said = job.empty() ? notes_of_image(*reached) : notes_of_job(*reached);
  for (const std::string& note : said.notes) answer->emplace_back("note", printable(note));
  for (const std::string& why : said.no_restart) answer->emplace_back("no_restart", printable(why));
}

// A job over several hosts: the agent of this host, or the head, is asked for it. Nothing: it is no such job.
std::optional<Result<ExitCode>> now_over_hosts(int pid, const NowOptions& o) {
  Json answer;
  const Json question{{"leave_out", o.leave_out}};
  const JobAnswers job = ask_job_over_hosts(pid, question, answer);
  if (job == JobAnswers::kNoSuchJob) return {};
  if (job == JobAnswers::kNobody)
    return failure(ExitCode::kUnavailable, std::to_string(pid),
                   "belongs to a job over several hosts whose agent does not answer here",
                   "look for ckpt run --hosts, or take one process with --only");
  answer.erase("say");
  answer.erase("number");
  const auto lines = [&answer](const char* key, const char* what) {
    for (const Json& one : answer.value(key, Json::array()))
      fmt::print("  {:<24}{}\n", what, printable(one.get<std::string>()));
  };
  if (answer.contains("error")) {
    // All reasons; the error has the first.
    if (answer.contains("why_not_restartable")) {
      if (o.json)
        print_json(answer);
      else
        lines("why_not_restartable", "NO RESTART");
    }
    return make_error(static_cast<ExitCode>(answer.value("code", 70)), 0, "{}",
                      printable(answer.value("error", "")));
  }
  if (o.json) {
    print_json(answer);
  } else {
    std::string steps;
    for (const char* step : {"standing", "drained", "sampled"}) {
      steps += fmt::format("{}{} {}", steps.empty() ? "" : ", ", step,
                           human_duration(answer.value("steps_ns", Json::object()).value(step, int64_t{0})));
    }
    fmt::print("checkpoint {} of the job is durable on {} hosts\n  {:<24}{}\n  {:<24}{} ({})\n  {:<24}{}\n",
               answer.value("id", 0), answer.value("hosts", 0), "checkpoint",
               printable(answer.value("checkpoint", "")), "from stop to go",
               human_duration(answer.value("stop_ns", int64_t{0})), steps, "time until durable",
               human_duration(answer.value("durable_ns", int64_t{0})));
    lines("notes", "note");
  }
  return ExitCode::kOk;
}

Result<ExitCode> now(const NowOptions& o) {
  auto pid = parse_pid(o.pid);
  if (!pid.ok()) return pid.error();
  // Cut short, it could name other processes.
  if (o.leave_out.size() >= sizeof(LeaveOutList::text))
    return failure(ExitCode::kUsage, "--leave-out", "is too long", "name programs, or say all");
  if (!o.only) {
    if (auto done = now_over_hosts(*pid, o)) return *done;
  }
  AskLimits limits;
  CKPT_TRY(set_timeout(o.timeout, limits));
  auto target = o.timeout.empty() ? await_target(*pid) : await_target(*pid, limits.answer_ns);
  if (!target.ok()) return target.error();
  if (!o.only) target = coordinator_for(std::move(*target), limits);
  Progress progress(fmt::format("checkpoint of {}", target->name));
  const auto before = machine_time();
  auto answer =
      ask(*target, ControlOperation::kCheckpoint, limits,
          [&](uint64_t done, uint64_t total) { progress.update(done, total); }, {o.only, o.leave_out});
  progress.clear();
  if (!answer.ok()) return answer.error();
  if (const auto after = machine_time(); before && after) {
    answer->emplace_back("stolen_ns", std::to_string(after->stolen_ns - before->stolen_ns));
    answer->emplace_back("interrupts_ns", std::to_string(after->interrupts_ns - before->interrupts_ns));
  }
  add_notes(&*answer);
  if (o.json) {
    print_json(answer_json(*target, *answer));
  } else {
    print_cost(*target, *answer);
  }
  // Of a job the asked process knows its own image only.
  const bool forbidden = std::any_of(answer->begin(), answer->end(),
                                     [](const auto& entry) { return entry.first == "no_restart"; });
  if (text_of(*answer, "restartable") != "no" && !forbidden) return ExitCode::kOk;
  fmt::print(stderr, "ckpt: {}: is durable, but cannot be restarted ({})\n",
             printable(brief(text_of(*answer, "image"))), "ckpt show says why");
  return ExitCode::kNotRestartable;
}

}  // namespace

void add_now(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand("now", "take a checkpoint of a running program");
  auto o = std::make_shared<NowOptions>();
  command->add_option("PID", o->pid, "process id of the program")->required();
  command->add_flag("--json", o->json, "print what it cost as JSON: times in ns, sizes in bytes");
  command->add_option("--timeout", o->timeout,
                      "give up waiting after this time, for example 30s (default: 10s for\n"
                      "the program to answer, then as long as it takes)");
  command->add_flag("--only,--without-children", o->only,
                    "save this process alone, not the job that it belongs to");
  command->add_option("--leave-out", o->leave_out,
                      "processes of the job without the library that need not be saved: PIDs and program\n"
                      "names, separated by commas, or all");
  add_key_option(command);
  command->footer(
      "Exit codes: 0 durable, 64 wrong arguments, 67 no such process or not preloaded, 69 not ready, or "
      "stopped and not to be traced,\n"
      "70 given up (the program goes on), 73 directory cannot be made, 74 write error or disk full,\n"
      "75 no answer in time, 76 durable, but no restart of it can be, 77 not yours, 78 state that cannot be "
      "saved,\n"
      "or a process of the job without the library.");
  command->callback([o, &exit] {
    auto done = now(*o);
    exit = done.ok() ? *done : report(done.error());
  });
}

}  // namespace ckpt::cli
