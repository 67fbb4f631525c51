// ckpt plan: how often to take checkpoints, from what they cost and how often machines fail.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/settings/settings.h"
#include "cli/ask/asker.h"
#include "cli/plan/commands.h"
#include "cli/plan/measured.h"
#include "cli/plan/plot.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/text_out.h"
#include "cluster/redundancy/code.h"

namespace ckpt::cli {

namespace {

struct PlanOptions {
  std::string of, mtbf, overhead, latency, recovery, repair, base, network, size, written, plot;
  std::vector<std::string> schemes;
  unsigned hosts = 1;
  bool json = false;
};

struct Row {
  Curve curve;
  unsigned hosts = 0, survives = 0;
};

Result<double> seconds(const char* name, const std::string& text, bool may_be_zero = true) {
  auto ns = parse_duration(name, text.c_str());
  if (!ns.ok()) return ns.error();
  if (*ns < 0 || (*ns == 0 && !may_be_zero))
    return failure(ExitCode::kUsage, name, "must be more than 0", "give for example 24h");
  return static_cast<double>(*ns) / 1e9;
}

// Bytes of data a second, of this code on one processor of this machine.
double encoding_rate(const redundancy::Code& code, bool recovering) {
  constexpr size_t kBlock = 1 << 20;
  const unsigned all = code.data() + code.checks();
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory;
  std::vector<std::byte*> blocks;
  for (unsigned i = 0; i < all; ++i) {
    memory.emplace_back(static_cast<std::byte*>(std::aligned_alloc(redundancy::Code::kAlignment, kBlock)),
                        &std::free);
    blocks.push_back(memory.back().get());
    std::fill_n(blocks.back(), kBlock, static_cast<std::byte>(i + 1));
  }
  const std::vector<const std::byte*> data(blocks.begin(), blocks.begin() + code.data());
  const redundancy::Blocks checks = redundancy::Blocks(blocks).subspan(code.data());
  std::vector<bool> lost(all);
  lost[0] = true;
  code.encode(data, checks, kBlock);
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  double took = 0;
  uint64_t bytes = 0;
  do {
    if (recovering) {
      if (!code.recover(blocks, lost, kBlock).ok()) return 0;
    } else {
      code.encode(data, checks, kBlock);
    }
    bytes += recovering ? kBlock : kBlock * code.data();
    took = std::chrono::duration<double>(Clock::now() - began).count();
  } while (took < 0.02);
  return static_cast<double>(bytes) / took;
}

class Plan {
 public:
  explicit Plan(const PlanOptions& options) : o_(options) {}

  Result<void> run() {
    CKPT_TRY(read_figures());
    add("disk", in_, o_.hosts, 0);
    CKPT_TRY(add_diskless());
    if (!o_.plot.empty()) {
      std::vector<Curve> curves;
      for (const Row& row : rows_) curves.push_back(row.curve);
      CKPT_TRY(write_plot(o_.plot, curves));
    }
    if (o_.json)
      print_json(json());
    else
      print();
    return {};
  }

 private:
  Result<void> read_figures() {
    auto mtbf = seconds("--mtbf", o_.mtbf, false);
    if (!mtbf.ok()) return mtbf.error();
    mtbf_ = *mtbf;
    if (o_.hosts == 0)
      return failure(ExitCode::kUsage, "--hosts", "must be more than 0", "give for example 4");
    if (!o_.of.empty()) CKPT_TRY(measure());
    struct Given {
      const char* name;
      const std::string& text;
      double& to;
    };
    if (measured_.checkpoints != 0) {
      in_.overhead = measured_.pause;
      in_.latency = measured_.durable;
      in_.recovery = measured_.durable;
    }
    bool recovery_given = !o_.recovery.empty();
    for (const Given& g :
         {Given{"--overhead", o_.overhead, in_.overhead}, Given{"--latency", o_.latency, in_.latency},
          Given{"--recovery", o_.recovery, in_.recovery}, Given{"--repair", o_.repair, in_.repair},
          Given{"--base", o_.base, in_.base}}) {
      if (g.text.empty()) continue;
      auto value = seconds(g.name, g.text);
      if (!value.ok()) return value.error();
      g.to = *value;
    }
    if (in_.overhead <= 0) {
      return failure(ExitCode::kUsage, "ckpt plan", "does not know what a checkpoint costs",
                     "name a program or its image directory, or give --overhead, --latency and --recovery");
    }
    in_.latency = std::max(in_.latency, in_.overhead);
    if (!recovery_given && measured_.checkpoints == 0) in_.recovery = in_.latency;
    for (auto [text, name, to] :
         {std::tuple(&o_.size, "--size", &size_), std::tuple(&o_.written, "--written", &written_),
          std::tuple(&o_.network, "--network", &network_)}) {
      if (text->empty()) continue;
      auto value = parse_size(name, text->c_str());
      if (!value.ok()) return value.error();
      *to = static_cast<double>(*value);
    }
    return {};
  }

  Result<void> measure() {
    std::string directory = o_.of;
    int pid = 0;
    if (directory.find_first_not_of("0123456789") == directory.npos) {
      auto parsed = parse_pid(directory);
      if (!parsed.ok()) return parsed.error();
      auto target = await_target(*parsed);
      if (!target.ok()) return target.error();
      auto stat = ask(*target, ControlOperation::kStat, {}, {});
      if (!stat.ok()) return stat.error();
      directory = text_of(*stat, "directory");
      pid = target->inner_pid;
    }
    auto measured = read_measured(directory, pid);
    if (!measured.ok()) return measured.error();
    measured_ = *measured;
    size_ = static_cast<double>(measured_.full_bytes);
    written_ = static_cast<double>(measured_.bytes);
    return {};
  }

  void add(const std::string& name, PlanInput in, unsigned hosts, unsigned survives) {
    in.mtbf = mtbf_ / hosts;
    rows_.push_back({{name, in, make_plan(in)}, hosts, survives});
  }

  // Each host sends what was written to as many others as there are checks; the sums are made as it comes.
  // After a failure one host gets what all the others have.
  Result<void> add_diskless() {
    if (o_.hosts < 2 && o_.schemes.empty()) return {};
    if (network_ <= 0 || size_ <= 0) {
      if (o_.schemes.empty()) return {};
      return failure(ExitCode::kUsage, "--redundancy",
                     "needs the rate of the network and the size of a checkpoint",
                     "give --network 1.1G and --size 1G");
    }
    const double written = written_ > 0 ? written_ : size_;
    std::vector<std::string> schemes = o_.schemes;
    if (schemes.empty()) schemes = {"mirror", "parity", "evenodd", fmt::format("rs:{}+2", o_.hosts)};
    for (const std::string& text : schemes) {
      auto scheme = redundancy::parse_scheme(text, o_.hosts);
      if (!scheme.ok()) return scheme.error();
      auto code = redundancy::Code::make(*scheme);
      if (!code.ok()) return code.error();
      const unsigned copies = scheme->kind == redundancy::Kind::kMirror ? 1 : scheme->checks;
      const bool on_hosts = scheme->kind == redundancy::Kind::kMirror;
      PlanInput in = in_;
      in.latency = in_.overhead + copies * written / network_ + written / encoding_rate(**code, false);
      const double sources = scheme->kind == redundancy::Kind::kMirror ? 1 : scheme->data;
      in.recovery = sources * size_ / network_ + size_ / encoding_rate(**code, true);
      add(text, in, o_.hosts + (on_hosts ? 0 : scheme->checks), redundancy::survives(*scheme));
    }
    return {};
  }

  static std::string time_of(double s) {
    return std::isfinite(s) && s < 1e10 ? human_duration(static_cast<int64_t>(s * 1e9)) : "never";
  }

  void print() const {
    if (measured_.checkpoints != 0) {
      fmt::print("from {} of {}: threads stood {}, durable after {}, {} written (medians)\n",
                 plural(measured_.checkpoints, "checkpoint", "checkpoints"), printable(o_.of),
                 time_of(measured_.pause), time_of(measured_.durable), human_bytes(measured_.bytes));
    }
    fmt::print("a host fails once in {} on average\n\n", time_of(mtbf_));
    fmt::print("{:<12}{:>6}{:>9}{:>14}{:>14}{:>14}{:>16}{:>16}{:>12}\n", "where", "hosts", "survives",
               "overhead", "latency", "recovery", "interval", "expected", "lost");
    for (const Row& row : rows_) {
      const PlanInput& in = row.curve.input;
      const PlanResult& out = row.curve.best;
      fmt::print("{:<12}{:>6}{:>9}{:>14}{:>14}{:>14}{:>16}{:>16}{:>11.4g}%\n", row.curve.name, row.hosts,
                 row.survives == 0 ? "all" : fmt::format("{}", row.survives), time_of(in.overhead),
                 time_of(in.latency), time_of(in.recovery), time_of(out.interval), time_of(out.expected),
                 100 * out.ratio);
    }
    if (in_.base > 0) {
      fmt::print("\na run of {}:\n", time_of(in_.base));
      for (const Row& row : rows_)
        fmt::print("  {:<10} {} with checkpoints, {} without\n", row.curve.name, time_of(row.curve.best.with),
                   time_of(row.curve.best.without));
    }
  }

  nlohmann::ordered_json json() const {
    nlohmann::ordered_json all;
    auto ns = [](double s) -> nlohmann::ordered_json {
      if (!std::isfinite(s) || s > 9e9) return nullptr;
      return static_cast<int64_t>(s * 1e9);
    };
    all["mtbf_ns"] = ns(mtbf_);
    all["measured_checkpoints"] = measured_.checkpoints;
    for (const Row& row : rows_) {
      const PlanInput& in = row.curve.input;
      const PlanResult& out = row.curve.best;
      nlohmann::ordered_json r{{"where", row.curve.name},         {"hosts", row.hosts},
                               {"survives", row.survives},        {"overhead_ns", ns(in.overhead)},
                               {"latency_ns", ns(in.latency)},    {"recovery_ns", ns(in.recovery)},
                               {"repair_ns", ns(in.repair)},      {"interval_ns", ns(out.interval)},
                               {"expected_ns", ns(out.expected)}, {"overhead_ratio", out.ratio}};
      if (in.base > 0) {
        r["base_ns"] = ns(in.base);
        r["with_ns"] = ns(out.with);
        r["without_ns"] = ns(out.without);
      }
      all["schemes"].push_back(r);
    }
    return all;
  }

  const PlanOptions& o_;
  double mtbf_ = 0, size_ = 0, written_ = 0, network_ = 0;
  PlanInput in_;
  Measured measured_;
  std::vector<Row> rows_;
};

}  // namespace

void add_plan(CLI::App& app, ExitCode& exit) {
  CLI::App* command =
      app.add_subcommand("plan", "how often to take checkpoints, and what they cost in the long run");
  auto o = std::make_shared<PlanOptions>();
  command->add_option("OF", o->of,
                      "process id of a program, or an image directory: what its checkpoints have cost");
  command->add_option("--mtbf", o->mtbf, "mean time between failures of a host, for example 24h or 720h")
      ->required();
  command->add_option("--hosts", o->hosts, "hosts of the job (default: 1)");
  command->add_option("--overhead", o->overhead,
                      "what a checkpoint adds to the program's time (default: the pause)");
  command->add_option("--latency", o->latency, "until a checkpoint counts (default: until it is durable)");
  command->add_option("--recovery", o->recovery,
                      "from a failure until the program is where the checkpoint was\n"
                      "(default: as long as until it was durable)");
  command->add_option("--repair", o->repair, "until there is a host again (default: 0s)");
  command->add_option("--base", o->base, "the program's time without checkpoints and failures");
  command->add_option("--redundancy", o->schemes,
                      "schemes without a disk: mirror, parity, parity:M, evenodd, rs:K+M");
  command->add_option("--network", o->network, "bytes a second between two hosts, for example 1.1G");
  command->add_option("--size", o->size,
                      "bytes of a host's memory that a recovery moves (default: of the full image)");
  command->add_option("--written", o->written, "bytes that a checkpoint sends (default: of the images)");
  command->add_option("--plot", o->plot, "draw the overhead over the interval into this file (SVG)");
  command->add_flag("--json", o->json, "print it as JSON: times in ns");
  command->footer(
      "Equations 1 to 7 of Plank, Li and Puening 1998 (Vaidya's), docs/plan.md. Encoding is measured on this "
      "machine.\n"
      "Exit codes: 0, 64 wrong arguments or too few figures, 66 no checkpoints there, 67 no such process, 74 "
      "no plot.");
  command->callback([o, &exit] {
    auto done = Plan(*o).run();
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });
}

}  // namespace ckpt::cli
