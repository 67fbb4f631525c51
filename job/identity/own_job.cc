#include "job/identity/own_job.h"

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

constinit OwnJob own_job;

}  // namespace ckpt::job
