// Personal communication services, portable-initiated: build/bench/pcs.
#include "bench/timewarp/options.h"
#include "bench/timewarp/pcs_model.h"

int main(int argc, char** argv) {
  CLI::App app("PCS, portable-initiated (Carothers et al. 1999)", "pcs");
  timewarp_bench::Options options(app);
  options.engine.end = 2000;
  timewarp_bench::PcsParameters p;
  app.add_option("--width", p.width, "cells")->check(CLI::Range(1, 65535))->capture_default_str();
  app.add_option("--height", p.height)->check(CLI::Range(1, 65535))->capture_default_str();
  app.add_option("--portables", p.portables, "in each cell at the beginning")->capture_default_str();
  app.add_option("--channels", p.channels, "in each cell")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--reserved", p.reserved, "of them for portables that move in")->capture_default_str();
  app.add_option("--call-interval", p.call_interval, "mean, seconds")
      ->check(timewarp_bench::above_zero())
      ->capture_default_str();
  app.add_option("--call-time", p.call_time, "mean, seconds")
      ->check(timewarp_bench::above_zero())
      ->capture_default_str();
  app.add_option("--residence", p.residence, "mean, seconds")
      ->check(timewarp_bench::above_zero())
      ->capture_default_str();
  app.add_option("--lookahead", p.lookahead, "of a move, seconds")
      ->check(timewarp_bench::zero_or_more())
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    if (p.reserved >= p.channels) throw CLI::ValidationError("--reserved", "must be less than --channels");
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : CKPT_TW_USAGE;
  }
  if (!options.settle()) return CKPT_TW_USAGE;
  const ckpt_tw_model model = pcs_model(p);
  ckpt_tw_result result;
  ckpt_tw_run(&model, &options.engine, &result);
  return options.report(model, result, "pcs");
}
