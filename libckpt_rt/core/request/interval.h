// The timer of CKPT_EVERY: one for a job, in its first process. The other members have one that goes off only
// when nothing has been heard of the job for twice as long: then the first is gone, and one of them takes
// over.
//
// Owner:     libckpt_rt. Callers: the constructor and a forked child (arm); the agent (put_off, is_due,
//            learn, learned); threads of the program (suspend, resume); the restart entry (came_back).
#pragma once

#include <cstdint>

#include "base/settings/best_interval.h"

namespace ckpt::interval {

void arm();
// Has this process one, so that a child of it is to have one? A child asks before it touches anything else.
extern bool wanted;
// A checkpoint of the job has been taken.
void put_off();
// CKPT_EVERY=auto: a checkpoint was taken, and the timer is set to what its cost says.
void learn(int64_t pause_ns, int64_t durable_ns);
// What it has come to; measured(): whether anything was learned.
const AutoInterval& learned();
// The program was brought back: a failure.
void came_back();
// The timer is off until resume(), which sets it anew. A thread of the program calls them.
void suspend();
void resume();
// The signal is another one: the timer is made again.
void renew();
// The timer has gone off: is a checkpoint due, or has another member just taken one?
bool is_due();

}  // namespace ckpt::interval
