#include "libckpt_rt/capture/sockets/refusals.h"

#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

Result<void> forbid_for_now(DescriptorNotes& notes, const char* what, const CapturedDescriptor& d) {
  notes.say_passing();
  return notes.add(kNoRestart, "descriptor {} ({}): {}", d.fd, d.path, what);
}

Result<void> forbid_until_accepted(DescriptorNotes& notes, const char* what, const CapturedDescriptor& d) {
  notes.say_unaccepted();
  return forbid_for_now(notes, what, d);
}

Error has_no_turn(const CapturedDescriptor& d) {
  return make_error(
      ExitCode::kTimeout, 0,
      "descriptor {} ({}): another process has looked at this socket for longer than 5 s; is its "
      "checkpoint stopped?",
      d.fd, d.path);
}

}  // namespace ckpt
