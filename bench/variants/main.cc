// variants: the same work under several settings of the library, in turns, so that all of them meet the same
// machine. Prints a table in Markdown: medians, with the least and the largest.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "bench/latency/record.h"
#include "bench/latency/statistics.h"

namespace latency {
namespace {

struct Variant {
  std::string name;
  std::vector<std::string> settings;  // "CKPT_HEAP=jemalloc"
};

struct Figures {
  std::vector<double> stop_ms, longest_wait_ms, forced, image_mib, lost_ms, waits_us, plain_s, with_s;
  unsigned checkpoints = 0;
};

struct Arguments {
  Places places;
  std::vector<Variant> variants;
  std::vector<std::string> works;
  unsigned rounds = 3, checkpoints = 4;
  double rest_s = 0.3;
};

void rest(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void note(Figures& f, const Checkpoint& c) {
  f.stop_ms.push_back(c.answer.value("pause_ns", 0.0) / 1e6);
  f.longest_wait_ms.push_back(c.answer.value("longest_wait_ns", 0.0) / 1e6);
  f.forced.push_back(c.answer.value("forced_copies", 0.0));
  f.image_mib.push_back(c.answer.value("bytes_memory", 0.0) / 0x1p20);
  ++f.checkpoints;
}

// gaps: what threads saw, from inside.
void measure_gaps(const Arguments& a, const std::vector<std::string>& words, const Setup& setup, Figures& f) {
  std::vector<std::string> command = words;
  command.insert(command.end(), {"--seconds", "3600", "--record", "{directory}/record"});
  Child child(a.places, command, setup);
  child.read_until("ready");
  rest(a.rest_s);
  std::vector<Checkpoint> taken;
  for (unsigned i = 0; i < a.checkpoints; ++i) {
    taken.push_back(child.checkpoint());
    note(f, taken.back());
    rest(a.rest_s);
  }
  child.terminate();
  child.finish();
  const Seen seen = compare(read_record(child.directory() + "/record"), taken);
  for (double ns : seen.lost) f.lost_ms.push_back(ns / 1e6);
  for (double ns : seen.waits) f.waits_us.push_back(ns / 1e3);
}

// Any other program runs to its end, once without a checkpoint and once with some.
void measure_program(const Arguments& a, const std::vector<std::string>& command, const Setup& setup,
                     Figures& f) {
  {
    Child child(a.places, command, setup);
    child.finish();
    f.plain_s.push_back(child.seconds());
  }
  Child child(a.places, command, setup);
  unsigned taken = 0;
  for (rest(a.rest_s); taken < a.checkpoints; rest(a.rest_s)) {
    // A checkpoint that is asked for when the program has just ended is not taken; if the program has failed,
    // finish() says so.
    try {
      note(f, child.checkpoint());
      ++taken;
    } catch (const Failure&) {
      break;
    }
  }
  child.finish();
  f.with_s.push_back(child.seconds());
  if (taken > 0) f.lost_ms.push_back((f.with_s.back() - f.plain_s.back()) * 1e3 / taken);
}

std::string spread(const std::vector<double>& values, const char* format) {
  if (values.empty()) return "";
  auto text = [&](double v) { return fmt::format(fmt::runtime(format), v); };
  return fmt::format("{} ({}–{})", text(median(values)), text(smallest(values)), text(largest(values)));
}

void print(const std::string& work, const Variant& v, const Figures& f) {
  const std::string waits = f.waits_us.empty()
                                ? ""
                                : fmt::format("{:.0f} / {:.0f} / {:.0f}", median(f.waits_us),
                                              percentile(f.waits_us, 0.999), largest(f.waits_us));
  fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", work, v.name, f.checkpoints,
             spread(f.stop_ms, "{:.2f}"), spread(f.forced, "{:.0f}"), spread(f.longest_wait_ms, "{:.2f}"),
             waits, spread(f.image_mib, "{:.1f}"), spread(f.lost_ms, "{:.0f}"), spread(f.plain_s, "{:.2f}"));
  std::fflush(stdout);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find(at, from), text.size());
    if (end > from) parts.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return parts;
}

void run(const Arguments& a) {
  fmt::print(
      "| work | variant | checkpoints | stop, ms | forced copies | longest wait, ms | waits seen, median / "
      "99.9 % / largest, µs "
      "| image, MiB | work lost each, ms | without checkpoint, s |\n| --- | --- | --- | --- | --- | --- | "
      "--- | --- | --- | --- |\n");
  for (const std::string& work : a.works) {
    std::vector<std::string> command = split(work, ' ');
    const std::string name = command.front();
    for (const char* directory : {"/bench/", "/tests/programs/"}) {
      if (std::filesystem::exists(a.places.build + directory + name))
        command.front() = a.places.build + directory + name;
    }
    std::map<std::string, Figures> figures;
    for (unsigned round = 0; round < a.rounds; ++round) {
      for (size_t i = 0; i < a.variants.size(); ++i) {
        const Variant& v = a.variants[(i + round) % a.variants.size()];
        const Setup setup{.method = "auto", .settings = v.settings};
        if (name == "gaps")
          measure_gaps(a, command, setup, figures[v.name]);
        else
          measure_program(a, command, setup, figures[v.name]);
      }
    }
    for (const Variant& v : a.variants) print(work, v, figures[v.name]);
  }
}

}  // namespace
}  // namespace latency

int main(int argc, char** argv) {
  latency::Arguments arguments;
  arguments.places.build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  arguments.places.images = std::filesystem::current_path();
  std::vector<std::string> variants;
  CLI::App app("Measures the same work under several settings of the library, in turns.", "variants");
  app.footer(
      "A WORK is a program of bench or tests/programs, or a path, with its arguments: \"gaps --load "
      "server\".\n"
      "A VARIANT is a name and settings: jemalloc:CKPT_HEAP=jemalloc or plain: for none; several by commas.\n"
      "Exit codes: 0 measured; 1 a measurement failed; 64 wrong arguments.");
  app.add_option("--variant", variants, "A variant; as often as there are some")
      ->required()
      ->type_name("VARIANT");
  app.add_option("--images", arguments.places.images, "Where images go")->capture_default_str();
  app.add_option("--rounds", arguments.rounds, "How often each is measured")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  app.add_option("--checkpoints", arguments.checkpoints, "In each round")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  app.add_option("--rest", arguments.rest_s, "Seconds between them")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("WORK", arguments.works, "What to run")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 64;
  }
  for (const std::string& text : variants) {
    const size_t colon = text.find(':');
    if (colon == 0 || colon == std::string::npos) {
      fmt::print(
          stderr,
          "variants: --variant '{}' is not a name and settings; use for example cold:CKPT_ORDER=cold\n",
          text);
      return 64;
    }
    arguments.variants.push_back({text.substr(0, colon), latency::split(text.substr(colon + 1), ',')});
  }
  try {
    latency::run(arguments);
  } catch (const std::exception& e) {
    fmt::print(stderr, "variants: {}\n", e.what());
    return 1;
  }
  return 0;
}
