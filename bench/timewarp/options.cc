#include "bench/timewarp/options.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace timewarp_bench {

namespace {

// CLI::Range takes "nan", and names its end with 309 digits where there is none.
template <typename Right>
CLI::Validator number_that(Right right, const std::string& what) {
  return {[right, what](const std::string& text) {
            double value = 0;
            const bool is_number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
            return is_number && right(value) ? std::string() : text + " is not " + what;
          },
          "NUMBER"};
}

}  // namespace

CLI::Validator zero_or_more() {
  return number_that([](double x) { return x >= 0; }, "a number, 0 or more");
}
CLI::Validator above_zero() {
  return number_that([](double x) { return x > 0; }, "a number above 0");
}
CLI::Validator share() {
  return number_that([](double x) { return x >= 0 && x <= 1; }, "a number from 0 to 1");
}
CLI::Validator size_in_bytes() {
  return {[](const std::string& text) {
            return text.find('-') == std::string::npos ? std::string()
                                                       : text + " is not a size: 0 or more, as 64M";
          },
          "SIZE"};
}

Options::Options(CLI::App& app) {
  ckpt_tw_defaults(&engine);
  // One line.
  app.failure_message([](const CLI::App* of, const CLI::Error& error) {
    return of->get_name() + ": " + error.what() + " (--help lists the options)\n";
  });
  app.add_option("--threads", engine.threads, "threads; 0: the sequential engine")->capture_default_str();
  app.add_option("--engine", engine_, "optimistic or sequential")
      ->check(CLI::IsMember({"optimistic", "sequential"}))
      ->capture_default_str();
  app.add_option("--seed", engine.seed)->capture_default_str();
  app.add_option("--end", engine.end, "events before this time are executed")->capture_default_str();
  app.add_option("--way", way_, "how LPs go back: copy, incremental, reverse, ccl")
      ->check(CLI::IsMember({"copy", "incremental", "reverse", "ccl"}))
      ->capture_default_str();
  app.add_option("--every", every_, "copy: a copy before each n-th event, or auto")->capture_default_str();
  app.add_flag("--check", check_, "reverse: run each event forward, back, and compare");
  app.add_option("--queue", queue_, "ladder, heap, calendar, splay")
      ->check(CLI::IsMember({"ladder", "heap", "calendar", "splay"}))
      ->capture_default_str();
  app.add_option("--window", engine.window, "how far ahead of the slowest thread; 0: adapted")
      ->capture_default_str();
  app.add_option("--memory", engine.memory_bytes, "limit for events and history, in bytes (64M, 1G); 0: none")
      ->transform(CLI::AsSizeValue(false))
      ->transform(size_in_bytes());  // the one added last is asked first
  app.add_option("--gvt-events", engine.gvt_events, "events of a thread between two GVTs; 0: the default");
  app.add_option("--batch", engine.batch, "events between two looks at the other threads; 0: the default");
  app.add_option("--pages", pages_, "pages of events and states: 4K, 2M, 1G")
      ->check(CLI::IsMember({"4K", "2M", "1G"}))
      ->capture_default_str();
  app.add_flag("--colocate", colocate_, "the copy of a state lies behind its event");
  app.add_flag("--no-prefetch", no_prefetch_);
  app.add_option("--copier", copier_, "ccl: device, device-thread, helper, dsa")
      ->check(CLI::IsMember({"device", "device-thread", "helper", "dsa"}))
      ->capture_default_str();
  app.add_option("--threshold", engine.threshold, "ccl: less of a copy done, and it is given up")
      ->capture_default_str();
  app.add_flag("--mono", mono_, "ccl: one copy at a time");
  app.add_option("--device-speed", engine.device_bytes_per_second,
                 "ccl: bytes a second of the device; 0: not limited")
      ->transform(CLI::AsSizeValue(false))
      ->transform(size_in_bytes());  // the one added last is asked first
  app.add_option("--finish-speed", engine.finish_bytes_per_second,
                 "ccl: bytes a second of the processor that finishes a copy; 0: not limited")
      ->transform(CLI::AsSizeValue(false))
      ->transform(size_in_bytes());  // the one added last is asked first
  app.add_option("--burst", engine.burst_bytes, "ccl: bytes of one transfer; 0: 1024");
  app.add_option("--trace", trace_, "a file for a trace (chrome://tracing, ui.perfetto.dev)");
  app.add_option("--progress", engine.progress, "seconds between two lines on standard error")
      ->check(zero_or_more());
  app.add_option("--mpi", mpi_, "several processes: openmpi or mpich");
  app.add_flag("--digest", digest_, "a digest of all events, too");
  app.add_flag("--json", json, "the result as a JSON object");
}

bool Options::settle() {
  engine.engine = engine_ == "sequential" || engine.threads == 0 ? CKPT_TW_SEQUENTIAL : CKPT_TW_OPTIMISTIC;
  engine.saving.way = way_ == "incremental" ? CKPT_TW_INCREMENTAL
                      : way_ == "reverse"   ? CKPT_TW_REVERSE
                      : way_ == "ccl"       ? CKPT_TW_CCL
                                            : CKPT_TW_COPY;
  engine.saving.check = check_;
  if (every_ == "auto") {
    engine.saving.every = 0;
  } else {
    char* end = nullptr;
    const unsigned long n = std::strtoul(every_.c_str(), &end, 10);
    if (*end != '\0' || n < 1 || n > 65535) {
      std::fprintf(stderr, "--every %s: a number from 1 to 65535, or auto\n", every_.c_str());
      return false;
    }
    engine.saving.every = static_cast<uint32_t>(n);
  }
  engine.queue = queue_ == "heap"       ? CKPT_TW_HEAP
                 : queue_ == "calendar" ? CKPT_TW_CALENDAR
                 : queue_ == "splay"    ? CKPT_TW_SPLAY
                                        : CKPT_TW_LADDER;
  engine.copier = copier_ == "device-thread" ? CKPT_TW_DEVICE_THREAD
                  : copier_ == "helper"      ? CKPT_TW_HELPER
                  : copier_ == "dsa"         ? CKPT_TW_DSA
                                             : CKPT_TW_DEVICE;
  engine.page_kib = pages_ == "4K" ? 4 : pages_ == "1G" ? 1048576 : 2048;
  engine.colocate = colocate_;
  engine.prefetch = !no_prefetch_;
  engine.digest = digest_;
  engine.monoprogrammed = mono_;
  engine.trace = trace_.empty() ? nullptr : trace_.c_str();
  engine.mpi = mpi_.empty() ? nullptr : mpi_.c_str();
  return true;
}

int Options::report(const ckpt_tw_model& model, const ckpt_tw_result& r, const std::string& name) const {
  if (r.code != CKPT_TW_OK) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), r.error);
    return r.code;
  }
  if (r.process != 0) return 0;  // the first process speaks for all
  const double rate = r.seconds > 0 ? static_cast<double>(r.committed) / r.seconds : 0;
  const double distance = r.saves > 0 ? static_cast<double>(r.executed) / static_cast<double>(r.saves) : 0;
  char digest[32], events[32];
  std::snprintf(digest, sizeof(digest), "%016llx", static_cast<unsigned long long>(r.state_digest));
  std::snprintf(events, sizeof(events), "%016llx", static_cast<unsigned long long>(r.events_digest));
  if (json) {
    nlohmann::ordered_json j{{"model", name},
                             {"seconds", r.seconds},
                             {"committed", r.committed},
                             {"events_per_second", rate},
                             {"executed", r.executed},
                             {"rolled_back", r.rolled_back},
                             {"rollbacks", r.rollbacks},
                             {"stragglers", r.stragglers},
                             {"cancelled", r.cancelled},
                             {"repeated", r.repeated},
                             {"gvt_rounds", r.gvt_rounds},
                             {"saves", r.saves},
                             {"save_bytes", r.save_bytes},
                             {"restores", r.restores},
                             {"events_between_copies", distance},
                             {"copies_committed", r.copies_committed},
                             {"copies_aborted", r.copies_aborted},
                             {"copies_finished", r.copies_finished},
                             {"copies_forced", r.copies_forced},
                             {"remote_messages", r.remote_messages},
                             {"stalls", r.stalls},
                             {"cancelbacks", r.cancelbacks},
                             {"peak_bytes", r.peak_bytes},
                             {"lps", model.lps},
                             {"bytes_an_lp", r.bytes_an_lp},
                             {"processes", r.processes},
                             {"window", std::isfinite(r.window) ? nlohmann::ordered_json(r.window) : nullptr},
                             {"state_digest", digest}};
    if (digest_) j["events_digest"] = events;
    std::puts(j.dump(2).c_str());
    return 0;
  }
  const auto u = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf("seconds            %.6f\n", r.seconds);
  std::printf("committed          %llu\n", u(r.committed));
  std::printf("events a second    %.0f\n", rate);
  std::printf(
      "executed           %llu, %llu undone in %llu rollbacks (%llu stragglers), %llu messages cancelled\n",
      u(r.executed), u(r.rolled_back), u(r.rollbacks), u(r.stragglers), u(r.cancelled));
  std::printf("repeated           %llu (coasting forward)\n", u(r.repeated));
  std::printf("saved              %llu times, %llu bytes; restored %llu times\n", u(r.saves), u(r.save_bytes),
              u(r.restores));
  if (r.copies_committed + r.copies_aborted + r.copies_forced > 0) {
    std::printf(
        "copies             %llu committed, %llu of them finished by the processor; %llu aborted, %llu "
        "forced\n",
        u(r.copies_committed), u(r.copies_finished), u(r.copies_aborted), u(r.copies_forced));
  }
  std::printf("GVT                %llu rounds; %llu stalls, %llu cancelbacks; window %g\n", u(r.gvt_rounds),
              u(r.stalls), u(r.cancelbacks), r.window);
  std::printf("memory             %llu bytes for events and history, %llu for each LP\n", u(r.peak_bytes),
              u(r.bytes_an_lp));
  std::printf("state digest       %s\n", digest);
  if (digest_) std::printf("events digest      %s\n", events);
  return 0;
}

}  // namespace timewarp_bench
