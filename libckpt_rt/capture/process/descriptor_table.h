// Segment descriptors of the program's own (modify_ldt(2)): Wine and DOS emulators run old code in them.
//
// Owner:     libckpt_rt: one table in its data, which the image holds.
// Callers:   note_stopped(): the agent, threads standing. restore(): the leader at restart, ahead of the
//            threads, whose segment registers may name a descriptor.
// Never:     asks in a process whose calls are filtered: a filter may end it for the question.
// Source:    modify_ldt(2), arch/x86/kernel/ldt.c; "Segment descriptors" in Intel's manual, volume 3.
#pragma once

#include <cstdint>

namespace ckpt::descriptor_table {

void note_stopped(bool filtered);
// A LibraryNote of descriptors that could not be made again, or 0.
uint32_t restore();

}  // namespace ckpt::descriptor_table
