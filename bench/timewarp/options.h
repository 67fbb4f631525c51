// What all models take as arguments and print: engine, way of going back, statistics.
//
// Owner: bench/timewarp. Callers: main of a model, one thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "ckpt_timewarp.h"

namespace timewarp_bench {

// Checks of arguments: finite numbers, and sizes without a sign. The checks say in a few words what would be
// right.
CLI::Validator zero_or_more();
CLI::Validator above_zero();
CLI::Validator share();  // 0 to 1
CLI::Validator size_in_bytes();

class Options {
 public:
  explicit Options(CLI::App& app);
  // After parsing. False: a message has been printed.
  bool settle();
  ckpt_tw_options engine;
  bool json = false;

  // Prints the result; returns the program's exit code. `extra`: more members of the JSON object, or nothing.
  int report(const ckpt_tw_model& model, const ckpt_tw_result& result, const std::string& name) const;

 private:
  std::string engine_ = "optimistic", way_ = "copy", queue_ = "ladder", copier_ = "device", pages_ = "2M";
  std::string every_ = "1", trace_, mpi_;
  bool check_ = false, colocate_ = false, no_prefetch_ = false, digest_ = false, mono_ = false;
};

}  // namespace timewarp_bench
