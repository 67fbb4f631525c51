#include "libckpt_rt/checkpoint/account/account.h"

#include "base/sys.h"
#include "libckpt_rt/core/threads/of_ours/own_threads.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Accounting::Accounting(bool measured) {
  thread_times::allow(measured);
  agent_ = thread_times::of(sys::gettid());
  handler_ = own_threads.fault_handler.times();
  writer_ = own_threads.writer.times();
  engine_ = own_threads.engine.times();
}

void Accounting::end(Account& account) const {
  account.agent = thread_times::of(sys::gettid()) - agent_;
  account.handler = own_threads.fault_handler.times() - handler_;
  account.writer = own_threads.writer.times() - writer_;
  account.helpers += own_threads.engine.times() - engine_;
}

}  // namespace ckpt
