// What the machine as a whole did while a checkpoint was taken: time that its host took, and interrupts.
//
// Owner: ckpt. Callers: the one thread of a command.
#pragma once

#include <cstdint>
#include <optional>

namespace ckpt::cli {

// Of all processors since the machine started, in ns, as /proc/stat has it (hundredths of a second).
struct MachineTime {
  int64_t stolen_ns = 0;  // ready to run, and the host ran another machine
  int64_t interrupts_ns =
      0;  // hard and soft ones, where the kernel counts them apart (CONFIG_IRQ_TIME_ACCOUNTING)
};

// Nothing: there is no /proc/stat.
std::optional<MachineTime> machine_time();

}  // namespace ckpt::cli
