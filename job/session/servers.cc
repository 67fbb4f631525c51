#include "job/session/servers.h"

#include <algorithm>

#include "base/clock.h"
#include "job/session/connecting.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

bool pause_asleep(void*, int64_t ns) {
  const timespec moment{0, ns};
  sys::call(__NR_nanosleep, &moment, nullptr);
  return true;
}

void Servers::wait_until_taken(int64_t until_ns) {
  constexpr int64_t kFirstNs = 500'000,
                    kMostNs = 16'000'000;  // a look costs more where there are many sockets
  ListeningSockets sockets;
  if (!sockets.open(&reserve_own) || !sockets.look(descriptors_)) return;
  sockets.remember_unread();
  for (int64_t ns = kFirstNs; sockets.any_remembered(); ns = std::min(2 * ns, kMostNs)) {
    if (now_ns() >= until_ns || !pause_(argument_, ns) || !sockets.look(descriptors_)) return;
  }
}

bool Servers::hold_in_turn(int64_t others_first_ns) {
  ListeningSockets sockets;
  const bool known = sockets.open(&reserve_own) && sockets.look(descriptors_);
  if (known && sockets.any()) wait_until_taken(now_ns() + others_first_ns);
  // Where nothing is known nobody could tell when to go on; and a filter may forbid what a thread asks about
  // its socket.
  if (known && !is_filtered()) connecting::hold();
  return !known || sockets.any();
}

void Servers::await_accepted() {
  if (connecting::is_holding()) wait_until_taken(connecting::holds_until());
}

}  // namespace ckpt::job
