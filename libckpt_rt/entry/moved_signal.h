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
// `ckpt` finds the number in the name of a mapping (base/protocol/control_protocol.h). Who has looked for it just
// before sends the old one: our handler stays there until the program has one of its own, and takes cookies.
#pragma once

namespace ckpt::moved_signal {

void yield();
bool move();
// After a restart, or a move: the mapping whose name tells.
void show();

}  // namespace ckpt::moved_signal
