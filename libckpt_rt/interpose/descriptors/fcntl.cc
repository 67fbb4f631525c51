// fcntl(2): libc does the work; F_NOTIFY and F_SETSIG are noted.
#include <fcntl.h>

#include "libckpt_rt/capture/descriptors/noted/directory_notices.h"
#include "libckpt_rt/capture/descriptors/noted/file_signals.h"
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/real.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

// The third argument is an int, a pointer or nothing: a register in any case.
CKPT_INTERPOSE(int, fcntl, int fd, int command, long argument) {
  const int r = real_function(RealFunction::kFcntl).as<int(int, int, long)>()(fd, command, argument);
  if (__builtin_expect(command == F_SETSIG, 0) && r == 0) file_signals::note_choice();
  if (__builtin_expect(command == F_NOTIFY, 0) && r == 0)
    directory_notices::note(fd, static_cast<uint32_t>(argument));
  return r;
}
CKPT_INTERPOSE_ALIAS(fcntl, fcntl64);
CKPT_INTERPOSE_ALIAS(fcntl, __fcntl);
