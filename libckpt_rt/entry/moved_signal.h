// A program that uses the checkpoint's signal itself gets it: ours becomes another one.
//
// Owner:     libckpt_rt.
// Callers:   yield(): a thread of the program, from interposed calls (hooks::yield_signal). move(): the
//            agent, on its behalf. show(): the thread that restarts.
// Never:     moves while a thread runs: all stand for it, since each must have the new one open.
//
// Which one: the highest real-time signal that has the default action, is pending nowhere, and that no thread
// blocks but those that block all. A thread that blocks all (sigfillset) blocks the old one from then on and
// not the new one. Where all are in use ours stays, and the program's use of it stays without effect, which
// the log says.
//
// `ckpt` finds the number in the name of a mapping (base/protocol/control_protocol.h). An asker that has
// looked just before the move sends the old number: our handler stays there, and takes cookies. When the
// program has set its own, what another process sends with a cookie in the seconds after the move is still
// taken for an asker's (took()): top(1) ends at any signal.
#pragma once

namespace ckpt::moved_signal {

void yield();
bool move();
// See hooks::took_late_request. In a handler of the program, on any of its threads.
bool took(void* information, void* context);
// After a restart, or a move: makes the mapping whose name tells the number.
void show();

}  // namespace ckpt::moved_signal
