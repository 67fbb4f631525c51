#include "libckpt_rt/capture/descriptors/noted/file_signals.h"

#include <fcntl.h>

#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::file_signals {

constinit std::atomic<bool> any_chosen{false};

namespace {

struct Owner {
  int fd, tid;
};
constexpr int kMost = 256;
constinit Owner owners[kMost]{};
constinit int count = 0;

}  // namespace

void begin() {
  if (count != 0) count = 0;
}

bool add_thread(int fd, int tid) {
  if (count == kMost) return false;
  owners[count++] = {fd, tid};
  return true;
}

void take_again() {
  for (int i = 0; i < count; ++i) {
    const f_owner_ex owner{F_OWNER_TID, owners[i].tid};
    sys::call(__NR_fcntl, long{owners[i].fd}, long{F_SETOWN_EX}, &owner);
  }
}

}  // namespace ckpt::file_signals
