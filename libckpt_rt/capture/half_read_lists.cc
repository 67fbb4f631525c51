#include "libckpt_rt/capture/half_read_lists.h"

#include <unistd.h>

#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::half_read_lists {
namespace {

constexpr int kMost = 16;
constinit int descriptors[kMost] = {};
constinit int count = 0;

}  // namespace

bool is_list(std::string_view rest) { return rest == "/maps" || rest == "/smaps" || rest == "/numa_maps"; }

void begin() { count = 0; }

void add(int fd) {
  if (count < kMost) descriptors[count++] = fd;
}

void find_places() {
  for (int i = 0; i < count; ++i) {
    const long place = sys::call(__NR_lseek, descriptors[i], 0L, SEEK_CUR);
    // To the place where it stands the kernel does not seek.
    if (place > 0 && sys::call(__NR_lseek, descriptors[i], 0L, SEEK_SET) == 0)
      sys::call(__NR_lseek, descriptors[i], place, SEEK_SET);
  }
}

}  // namespace ckpt::half_read_lists
