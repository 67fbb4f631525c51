// The job of this process, and what shows it to others.
//
// Owner:     libckpt_rt: one object in its data: a forked child inherits it, an image holds it.
// Callers:   any thread reads. Written by the preload constructor, while one thread runs; the page is made
//            again by the leader of a restart, and kept when the process goes back
//            (libckpt_rt/back/present_state.h).
#pragma once

#include "base/units.h"
#include "job/identity/identity.h"

namespace ckpt::job {

struct OwnJob {
  Identity identity;
  bool inherited = false;  // it was there before this program
  AddrRange sign{};        // show_identity()
};

extern OwnJob own_job;

}  // namespace ckpt::job
