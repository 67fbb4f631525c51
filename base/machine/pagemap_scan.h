// PAGEMAP_SCAN, an ioctl(2) of /proc/PID/pagemap since Linux 6.7: headers of older systems lack it
// (Documentation/admin-guide/mm/pagemap.rst).
//
// Owner:     base. Header only. Callers: the probe of the kernel; capture/memory/page_scan.cc. Any thread.
#pragma once

#include <sys/ioctl.h>

#include <cstdint>

namespace ckpt {

// struct pm_scan_arg
struct PagemapScanArg {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct PageRegion {
  uint64_t start, end, categories;
};

inline constexpr unsigned long kPagemapScan = _IOWR('f', 16, PagemapScanArg);

inline constexpr uint64_t kPageIsWritten = 1 << 1;  // not protected by userfaultfd
inline constexpr uint64_t kPageIsFile = 1 << 2;
inline constexpr uint64_t kPageIsPresent = 1 << 3;
inline constexpr uint64_t kPageIsSwapped = 1 << 4;
inline constexpr uint64_t kPageIsZero = 1 << 5;
inline constexpr uint64_t kPageIsGuard = 1 << 8;  // Linux 6.15

}  // namespace ckpt
