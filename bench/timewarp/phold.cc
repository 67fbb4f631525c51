// PHOLD, sequential, optimistic on threads or over MPI: build/bench/phold.
#include "bench/timewarp/options.h"
#include "bench/timewarp/phold_model.h"

int main(int argc, char** argv) {
  CLI::App app("PHOLD: each event schedules one more", "phold");
  timewarp_bench::Options options(app);
  options.engine.end = 20;
  timewarp_bench::PholdParameters p;
  app.add_option("--lps", p.lps)->capture_default_str();
  app.add_option("--events", p.events, "of each LP at the beginning")->capture_default_str();
  app.add_option("--remote", p.remote, "share of messages for any LP, 0 to 1")
      ->check(timewarp_bench::share());
  app.add_option("--mean", p.mean, "the delay is lookahead + exp(mean)")
      ->check(timewarp_bench::zero_or_more());
  app.add_option("--lookahead", p.lookahead)->check(timewarp_bench::zero_or_more());
  app.add_option("--state", p.state_bytes, "bytes, at least 32")->check(CLI::Range(32, 1 << 30));
  app.add_option("--grain", p.grain, "rounds of arithmetic in each event");
  app.add_option("--touch", p.touch, "bytes of the state that each event writes");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : CKPT_TW_USAGE;
  }
  if (!options.settle()) return CKPT_TW_USAGE;
  const ckpt_tw_model model = phold_model(p);
  ckpt_tw_result result;
  ckpt_tw_run(&model, &options.engine, &result);
  return options.report(model, result, "phold");
}
