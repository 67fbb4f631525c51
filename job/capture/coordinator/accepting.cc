// How servers of the job get to accept what waits in them (job/session/connecting.h), while processes may
// still be made: some make one for each connection.
#include <utility>

#include "base/checks/named_points.h"
#include "base/clock.h"
#include "job/capture/coordinator/coordinator.h"
#include "job/session/connecting.h"
#include "job/session/creation.h"
#include "job/session/servers.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

// Who has not said kPrepared yet is told when it does.
Result<void> Coordinator::tell_prepared(Step step) {
  told_ = step;
  for (Member& m : members_) {
    if (m.state == Member::State::kWithUs && m.reached >= Step::kPrepared && !tell_of_connects(m, step))
      CKPT_TRY(lost(m));
  }
  return {};
}

bool Coordinator::tell_of_connects(const Member& m, Step step) const {
  const HoldConnects how{holds_connects_ == HoldsConnects::kAndCreation};
  return step == Step::kHoldConnects ? send_message(m.socket, step, &how, sizeof(how))
                                     : send_message(m.socket, step);
}

// A member that is late, or was lost and is asked anew, is waited for no longer than connections are held:
// what is found when all stand decides.
Result<void> Coordinator::let_servers_accept() {
  CKPT_TRY(tell_prepared(Step::kHoldConnects));
  points::at("coordinator.connects");
  Servers servers(own_descriptors, &pause_asleep, nullptr);
  holds_early_ = !servers.hold_in_turn() && holds_connects_ == HoldsConnects::kAndCreation;
  if (holds_early_) creation::hold();
  const int64_t until = now_ns() + connecting::kMostNs;
  auto all = have_come(Step::kConnectsHeld, until, Late::kIsNoMatter);
  if (!all.ok()) return all.error();
  CKPT_TRY(tell_prepared(Step::kAccept));
  points::at("coordinator.accepts");
  servers.await_accepted();
  all = have_come(Step::kAccepted, until, Late::kIsNoMatter);
  return all.ok() ? Result<void>() : all.error();
}

// A member that was lost has joined anew meanwhile.
Result<void> Coordinator::tell_again_of_connects(Member& m) {
  for (const Step step : {Step::kHoldConnects, Step::kAccept}) {
    if (told_ >= step && told_ < Step::kHold && !tell_of_connects(m, step)) return lost(m);
  }
  return {};
}

void Coordinator::release_if_late() {
  if (connecting::release_if_late() && std::exchange(holds_early_, false)) creation::release();
}

}  // namespace ckpt::job
