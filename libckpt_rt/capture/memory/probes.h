// Probes that the kernel has put into the program's code (uprobes: perf, bpftrace, SystemTap): an instruction
// is replaced by one that traps, or a nop by a call of the kernel's own code. It is in the image like any
// page that was written to. Without the probe a restarted process would end at it.
//
// Owner:     libckpt_rt. Callers: the agent, ahead of the stop: of a probe that is put in between nothing is
//            said.
#pragma once

#include "libckpt_rt/capture/memory/memory_map.h"
#include "libckpt_rt/capture/memory/page_scan.h"

namespace ckpt {

// Where the first is; 0: there is none, as far as files can still be opened.
Addr find_probe(const MemoryMap& map, PageScan& pages, Arena& arena);

}  // namespace ckpt
