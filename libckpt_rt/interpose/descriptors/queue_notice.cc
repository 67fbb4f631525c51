// mq_notify(3): the kernel ends the notice when the process closes any descriptor of the queue. The agent's
// table of descriptors begins as a copy of the program's. A checkpoint says so.
#include <mqueue.h>
#include <signal.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

CKPT_INTERPOSE(int, mq_notify, mqd_t queue, const sigevent* event) {
  using Notify = int(mqd_t, const sigevent*);
  if (event != nullptr) hooks::note_queue_notice();
  return real_function(RealFunction::kMqNotify).as<Notify>()(queue, event);
}
