#include <chrono>
#include <cstdio>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>

#include "bench/common.h"

namespace bench {

void Results::add(const std::string& name, const std::string& text) {
  values_.push_back({name, text, nlohmann::json(text).dump()});
}

void Results::add(const std::string& name, double number) {
  const std::string digits = nlohmann::json(number).dump();
  values_.push_back({name, digits, digits});
}

void Results::print(bool json) const {
  std::string object;
  for (const Value& v : values_) {
    if (json)
      object += fmt::format("{}{}:{}", object.empty() ? "{" : ",", nlohmann::json(v.name).dump(), v.json);
    else
      fmt::print("{} {}\n", v.name, v.text);
  }
  if (json) fmt::print("{}\n", object.empty() ? "null" : object + "}");
}

int run_program(const Program& program, int argc, char** argv) {
  CommonArguments common;
  CommandLine line(
      program.name, program.description,
      "Sizes may end in K, M or G (powers of 1024).\n"
      "The output depends on the arguments alone.\n\n"
      "Exit codes: 0 done and verified; 1 the result is wrong; 64 wrong arguments; 71 not enough memory or "
      "threads; 74 the output could not be written.");
  line.number("-t,--threads", common.threads, "Threads that compute", 1, 4096);
  line.number("--seed", common.seed, "Start of the pseudo-random input");
  line.flag("--json", common.json, "Print the result as one JSON object");
  line.flag("--time", common.time, "Print the time it took to standard error");
  program.configure(line);
  if (const auto ended = line.parse(argc, argv)) return *ended;
  auto start = std::chrono::steady_clock::now();
  int code = kExitOk;
  try {
    Results results;
    code = program.run(common, results);
    results.print(common.json);
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "{}: not enough memory; use a smaller size\n", program.name);
    return kExitSystem;
  } catch (const std::system_error& e) {
    fmt::print(stderr, "{}: {}; use fewer --threads\n", program.name, e.what());
    return kExitSystem;
  } catch (const std::invalid_argument& e) {
    fmt::print(stderr, "{}: {}\n", program.name, e.what());
    return kExitUsage;
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}: {}\n", program.name, e.what());
    return kExitIo;
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    fmt::print(stderr, "{}: cannot write to standard output\n", program.name);
    return kExitIo;
  }
  if (common.time) {
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fmt::print(stderr, "{}: {:.3f} s\n", program.name, took.count());
  }
  return code;
}

}  // namespace bench
