// setuid(2) and its kin: a process that gives up root's rights may not write into root's image directory any
// more. So, while it still may, a directory for its next user is made (own_directory.h).
#include <sys/types.h>

#include "libckpt_rt/core/hooks.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

CKPT_INTERPOSE(int, setuid, uid_t user) {
  hooks::before_user(user);
  return real_function(RealFunction::kSetuid).as<int(uid_t)>()(user);
}

CKPT_INTERPOSE(int, seteuid, uid_t user) {
  hooks::before_user(user);
  return real_function(RealFunction::kSeteuid).as<int(uid_t)>()(user);
}

CKPT_INTERPOSE(int, setreuid, uid_t real, uid_t effective) {
  hooks::before_user(effective);
  return real_function(RealFunction::kSetreuid).as<int(uid_t, uid_t)>()(real, effective);
}

CKPT_INTERPOSE(int, setresuid, uid_t real, uid_t effective, uid_t saved) {
  hooks::before_user(effective);
  return real_function(RealFunction::kSetresuid).as<int(uid_t, uid_t, uid_t)>()(real, effective, saved);
}
