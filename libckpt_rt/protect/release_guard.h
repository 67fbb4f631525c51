// What the program's wrappers of munmap, mremap, madvise, brk … call before memory goes: segments in it
// that are not in a buffer yet are copied first (copier.h).
//
// The copying is done by the thread that serves faults: a thread of the program has another descriptor
// table, in which our userfaultfd does not exist. It leaves a request here, rings, and sleeps until it is
// done. The bell is a page of ours that is registered with the userfaultfd: giving it back (madvise) makes
// the kernel queue a remove event, which needs no descriptor of the caller.
//
// The other request is to forget memory: registration keeps mappings apart that would be one.
//
// Owner:     libckpt_rt. Callers: before_release, forget: any thread of the program, also in a signal
//            handler. serve: the thread that serves faults. The rest: the agent.
// Never:     allocates, touches errno, lets a signal handler of the program run while its thread asks. Costs
//            one load when no copy is under way.
#pragma once

#include "copier/copier.h"

namespace ckpt {

class WriteProtection;

namespace release_guard {

void before_release(AddrRange range);
void forget(AddrRange range);
// Shared memory gets another owner: what is still to be copied of it is copied before that.
void before_sharing();

// Memory is registered from now on, and somebody serves. bell: the page to give back.
void begin(Addr bell);
// Something else was registered. Called by the agent.
void note_registration();
// From the stop on, until close(): ask this copier.
void open(Copier& copier);
// The bell rang: does what is requested.
void serve(WriteProtection& protection);
// Returns when no thread is inside before_release any more, or after 10 s.
void close();
// Nothing is registered any more, and no thread serves: those that asked are told so. Then waits as close()
// does.
void end();
void reset_after_restart();
void reset_in_child();

}  // namespace release_guard
}  // namespace ckpt
