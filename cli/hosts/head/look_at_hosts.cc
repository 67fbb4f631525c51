// What a job would find on these hosts: `ckpt hosts`.
#include <cstdio>

#include "cli/hosts/crew/crew.h"
#include "cli/hosts/head/head.h"
#include "cli/hosts/hosts.h"
#include "cli/hosts/job/adapters.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"

namespace ckpt::cli {

ExitCode look_at_hosts(const HostsRun& run, bool json) {
  block_signals();
  Crew crew(run.hosts, run.hosts, run.launch, run.silence_ms);
  if (auto r = crew.assemble(); !r.ok()) return report(r.error());
  if (auto r = crew.measure_clocks(); !r.ok()) return report(r.error());
  const Result<void> alike = crew.check_alike();
  if (json) {
    Json all{{"hosts", Json::array()}, {"fit", alike.ok()}};
    if (!alike.ok()) all["why"] = std::string(alike.error().message());
    for (const CrewHost& h : crew.hosts()) {
      Json one = h.here;
      one.erase("say");
      one["clock_offset_ns"] = h.clock_offset_ns;
      one["round_trip_ns"] = h.round_trip_ns;
      all["hosts"].push_back(one);
    }
    fmt::print("{}\n", all.dump(1));
  } else {
    fmt::print("{:<16}{:<18}{:<10}{:<22}{:>14}{:>12}\n", "host", "address", "ckpt", "kernel", "clock offset",
               "round trip");
    for (const CrewHost& h : crew.hosts()) {
      fmt::print("{:<16}{:<18}{:<10}{:<22}{:>11.3f} ms{:>9.3f} ms\n", printable(h.name), printable(h.address),
                 printable(h.here.value("version", "")), printable(h.here.value("kernel", "")),
                 static_cast<double>(h.clock_offset_ns) / 1e6, static_cast<double>(h.round_trip_ns) / 1e6);
    }
    for (const CrewHost& h : crew.hosts()) {
      if (const auto adapters = adapters_of(h); !adapters.empty())
        fmt::print("{}\n", printable(words_on_adapters(h.name, adapters)));
    }
    if (alike.ok())
      fmt::print(
          "the same ckpt and the same C library on all: a job can be spread over them, and come back on "
          "any\n");
  }
  crew.dismiss();
  return alike.ok() ? ExitCode::kOk : report(alike.error());
}

}  // namespace ckpt::cli
