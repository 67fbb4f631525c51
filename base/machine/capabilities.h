// The capabilities of the calling thread (capabilities(7)) as masks of 64 bits.
//
// Owner:     base. Header only. Callers: any thread, in the victim too.
// Never:     libc's functions, which tell all threads; touches errno.
#pragma once

#include <linux/capability.h>

#include <cstdint>

#include "base/sys.h"

namespace ckpt {

struct Capabilities {
  uint64_t effective = 0, permitted = 0, inheritable = 0;
  bool operator==(const Capabilities&) const = default;
};

// None, if the kernel refuses to tell.
inline Capabilities own_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2] = {};
  Capabilities all;
  if (sys::call(__NR_capget, &header, data) != 0) return all;
  for (int i = 0; i < 2; ++i) {
    all.effective |= uint64_t{data[i].effective} << (32 * i);
    all.permitted |= uint64_t{data[i].permitted} << (32 * i);
    all.inheritable |= uint64_t{data[i].inheritable} << (32 * i);
  }
  return all;
}

// 0 or -errno.
inline long set_own_capabilities(const Capabilities& all) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2];
  for (int i = 0; i < 2; ++i) {
    data[i].effective = static_cast<uint32_t>(all.effective >> (32 * i));
    data[i].permitted = static_cast<uint32_t>(all.permitted >> (32 * i));
    data[i].inheritable = static_cast<uint32_t>(all.inheritable >> (32 * i));
  }
  return sys::call(__NR_capset, &header, data);
}

}  // namespace ckpt
