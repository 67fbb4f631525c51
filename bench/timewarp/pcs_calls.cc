// Personal communication services, call-initiated: build/bench/pcs_calls.
#include "bench/timewarp/options.h"
#include "bench/timewarp/pcs_calls_model.h"

int main(int argc, char** argv) {
  CLI::App app("PCS, call-initiated (Santoro and Quaglia, CCL v3.0)", "pcs_calls");
  timewarp_bench::Options options(app);
  options.engine.end = 20000;
  timewarp_bench::PcsCallsParameters p;
  app.add_option("--lps", p.cells, "cells")->check(CLI::Range(1u, 1u << 30))->capture_default_str();
  app.add_option("--columns", p.columns, "cells in a row; 0: about as many as rows");
  app.add_option("--call-interval", p.call_interval, "mean in each cell, seconds")
      ->check(timewarp_bench::above_zero())
      ->capture_default_str();
  app.add_option("--holding", p.holding, "of a call, mean, seconds")
      ->check(timewarp_bench::above_zero())
      ->capture_default_str();
  app.add_option("--fast", p.residence[0], "mean residence, seconds")
      ->check(timewarp_bench::above_zero())
      ->capture_default_str();
  app.add_option("--slow", p.residence[1], "mean residence, seconds")
      ->check(timewarp_bench::above_zero())
      ->capture_default_str();
  app.add_option("--handoff", p.handoff, "delay of a hand-off, seconds")
      ->check(timewarp_bench::zero_or_more());
  app.add_option("--grain", p.grain, "how often each power is computed: a slower processor")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : CKPT_TW_USAGE;
  }
  if (!options.settle()) return CKPT_TW_USAGE;
  const ckpt_tw_model model = pcs_calls_model(p);
  ckpt_tw_result result;
  ckpt_tw_run(&model, &options.engine, &result);
  return options.report(model, result, "pcs_calls");
}
