// How a checkpoint over many hosts goes: the real head (cli/hosts/head/head.h) and simulated agents
// (simulated_agents.h), over real sealed links, in one process. Prints for each case how long it took, how
// long the hosts stood, and the messages.
//
//   build/bench/hosts --hosts 10,100,1000
//   build/bench/hosts --hosts 200 --quick          what the tests run; not 0: something was not as it must be
//
// In every case: whether it counts; that nobody stands or waits at the end; that a checkpoint that failed
// leaves no part behind on a host whose agent is there, and one that counts has a part on each.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>

#include "base/clock.h"
#include "bench/hosts/simulated_agents.h"
#include "cli/hosts/head/head.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/job/users.h"

namespace {

using namespace ckpt;
using bench::Trouble;
using cluster::Step;

constexpr int64_t kMs = 1'000'000;

struct Case {
  const char* name;
  Trouble trouble;
  bool counts;
  bool goes_on;  // the next checkpoint of the job is taken as if nothing had happened
};

int wrong = 0;

void expect(bool good, const std::string& what) {
  if (good) return;
  ++wrong;
  fmt::print("WRONG: {}\n", what);
}

// One job of so many hosts, in one directory.
class Job {
 public:
  Job(int hosts, int64_t stop_timeout_ns) : directory_(fmt::format("/tmp/ckpt-bench-hosts.{}", getpid())) {
    std::filesystem::create_directory(directory_);
    std::filesystem::permissions(directory_, std::filesystem::perms::owner_all);
    std::vector<std::string> names;
    for (int i = 0; i < hosts; ++i) names.push_back(fmt::format("host{:04}", i));
    crew_.emplace(names, names, "false", cluster::SealedLink::kSilenceMs);
    agents_.emplace(*crew_, stop_timeout_ns);
    head_ = std::thread([this, stop_timeout_ns] {
      cli::HostsRun run;
      run.stop_timeout_ns = stop_timeout_ns;
      cli::watch_job(*crew_, "0123456789abcdef0123456789abcdef", cli::Json::object(), "app", directory_, run);
    });
  }
  ~Job() {
    agents_->end_program();
    head_.join();
    crew_.reset();
    agents_.reset();
    std::filesystem::remove_all(directory_);
  }

  cli::Json checkpoint() {
    cli::Json answer;
    const std::string name = cli::head_socket_name(getpid());
    const int64_t end = now_ns() + 10'000 * kMs;
    // The head's thread may not listen yet.
    while (!cli::ask_over_hosts(name, cli::Json::object(), answer) && now_ns() < end) usleep(1000);
    return answer;
  }
  bench::SimulatedAgents& agents() { return *agents_; }

 private:
  const std::string directory_;
  std::optional<cli::Crew> crew_;
  std::optional<bench::SimulatedAgents> agents_;
  std::thread head_;
};

void run_case(Job& job, int hosts, const Case& c) {
  const std::string name = fmt::format("{} hosts, {}", hosts, c.name);
  job.agents().begin(c.trouble);
  const int64_t began = now_ns();
  const cli::Json answer = job.checkpoint();
  const int64_t answered = now_ns() - began;
  expect(job.agents().settle(20'000 * kMs), name + ": a host stands or waits");
  const int64_t settled = now_ns() - began;
  const bench::Seen seen = job.agents().seen();
  const bool counts = !answer.contains("error");
  expect(counts == c.counts, fmt::format("{}: {}", name, answer.dump()));
  if (counts)
    expect(seen.parts == static_cast<uint32_t>(hosts), fmt::format("{}: {} parts", name, seen.parts));
  // A host that is cut off, or dead, may have kept its own: it does not know.
  if (!counts) expect(seen.parts <= 1, fmt::format("{}: {} parts are left", name, seen.parts));
  fmt::print("{:5} {:34} {:7} {:8.1f} {:9.1f} {:9.1f} {:7} {:7} {:9}\n", hosts, c.name,
             counts ? "counts" : "given up", static_cast<double>(answered) / 1e6,
             static_cast<double>(settled) / 1e6, static_cast<double>(seen.longest_stand_ns) / 1e6,
             seen.to_hosts, seen.to_head, seen.bytes);
}

std::vector<Case> cases_of(int hosts, bool quick, int64_t stop_timeout_ns) {
  const int victim = hosts / 2;
  using K = Trouble::Kind;
  std::vector<Case> cases{
      {"nothing happens", {}, true, true},
      {"once more", {}, true, true},
      {"one stands 300 ms late", {K::kSlow, victim, Step::kStanding, 300 * kMs}, true, true},
      {"one fails, prepared", {K::kFails, victim, Step::kPrepared, 0}, false, true},
      {"one fails, durable", {K::kFails, victim, Step::kDurable, 0}, false, true},
      {"one says late that it failed", {K::kFailedBefore, victim, Step::kPrepared, 0}, true, true}};
  if (!quick)
    cases.push_back(
        {"one stands too late", {K::kSlow, victim, Step::kStanding, 4 * stop_timeout_ns}, false, true});
  cases.push_back({"after all these", {}, true, true});
  for (Step s : {Step::kPrepared, Step::kStanding, Step::kDrained, Step::kSampled, Step::kDurable}) {
    static const char* names[] = {"",
                                  "one dies, prepared",
                                  "one dies, standing",
                                  "one dies, drained",
                                  "one dies, sampled",
                                  "one dies, durable"};
    if (quick && s != Step::kSampled) continue;
    cases.push_back({names[static_cast<int>(s)], {K::kDies, victim, s, 0}, false, false});
  }
  cases.push_back({"one is cut off, drained", {K::kCutOff, victim, Step::kDrained, 0}, false, false});
  return cases;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Checkpoints over many hosts, simulated: the real head and its links"};
  std::vector<int> counts{10, 100, 1000};
  bool quick = false;
  int stop_ms = 2000;
  app.add_option("--hosts", counts, "how many")->delimiter(',')->check(CLI::Range(2, 4000));
  app.add_option("--stop-timeout", stop_ms, "CKPT_STOP_TIMEOUT of the job, in ms")
      ->check(CLI::Range(100, 60000));
  app.add_flag("--quick", quick, "fewer cases");
  CLI11_PARSE(app, argc, argv);
  rlimit64 files{};
  getrlimit64(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit64(RLIMIT_NOFILE, &files);
  cli::block_signals();
  fmt::print("{:5} {:34} {:7} {:>8} {:>9} {:>9} {:>7} {:>7} {:>9}\n", "hosts", "what", "", "answer",
             "all go on", "stood", "to", "from", "bytes");
  fmt::print("{:5} {:34} {:7} {:>8} {:>9} {:>9} {:>7} {:>7} {:>9}\n", "", "", "", "ms", "ms", "ms", "hosts",
             "hosts", "");
  for (int hosts : counts) {
    std::optional<Job> job;
    for (const Case& c : cases_of(hosts, quick, stop_ms * kMs)) {
      if (!job) job.emplace(hosts, stop_ms * kMs);
      run_case(*job, hosts, c);
      // A job that has lost a host takes no more checkpoints.
      if (!c.goes_on) job.reset();
    }
  }
  return wrong == 0 ? 0 : 1;
}
