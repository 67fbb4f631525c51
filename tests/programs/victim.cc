#include "tests/programs/victim.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace victim {

void broken(const std::string& text) {
  std::string line = "BROKEN: " + text + "\n";
  [[maybe_unused]] ssize_t n = write(STDERR_FILENO, line.data(), line.size());
  _exit(1);
}

void require_call(bool worked, const char* what) {
  if (!worked) [[unlikely]]
    broken(fmt::format("{}: {}", what, std::strerror(errno)));
}

void require_zero(int error, const char* what) {
  if (error != 0) [[unlikely]]
    broken(fmt::format("{}: {}", what, std::strerror(error)));
}

std::byte* map_pages(uint64_t pages) {
  void* p = mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require_call(p != MAP_FAILED, "mmap");
  return static_cast<std::byte*>(p);
}

void run_threads(unsigned threads, const std::function<void(unsigned)>& work) {
  std::vector<std::thread> others;
  for (unsigned t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (auto& t : others) t.join();
}

int64_t now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return int64_t{ts.tv_sec} * 1'000'000'000 + ts.tv_nsec;
}

int run_victim(const Victim& victim, int argc, char** argv) {
  std::vector<std::string> only;
  uint64_t work = 100;
  bool restartable = false, list = false;
  CLI::App app(victim.description, victim.name);
  app.footer("Exit codes: 0 every invariant held; 1 one broke (the message names it); 64 wrong arguments.");
  app.add_option("--only", only, "Exercises to run, separated by commas")->delimiter(',')->type_name("NAMES");
  app.add_option("--work", work, "Amount of work in percent")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--restartable", restartable, "Leave out what a restart does not bring back");
  app.add_flag("--list", list, "Print the names of the exercises");
  try {
    app.parse(argc, argv);
    for (const auto& name : only) {
      bool known = std::any_of(victim.exercises.begin(), victim.exercises.end(),
                               [&](const Exercise& e) { return name == e.name; });
      if (!known) throw CLI::ValidationError("--only", "no exercise is named " + name + "; see --list");
    }
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 64;
  }
  std::vector<const Exercise*> chosen;
  for (const auto& e : victim.exercises) {
    if (list) fmt::print("{:<12} {}\n", e.name, e.description);
    if (restartable && !e.restartable) continue;
    if (only.empty() || std::find(only.begin(), only.end(), e.name) != only.end()) chosen.push_back(&e);
  }
  if (list) return 0;

  std::vector<std::string> results(chosen.size());
  run_threads(static_cast<unsigned>(chosen.size()), [&](unsigned i) {
    results[i] = chosen[i]->run(std::max<uint64_t>(1, chosen[i]->iterations * work / 100));
  });
  for (size_t i = 0; i < chosen.size(); ++i) fmt::print("{}: {}\n", chosen[i]->name, results[i]);
  fmt::print("{} exercises ok\n", chosen.size());
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace victim
