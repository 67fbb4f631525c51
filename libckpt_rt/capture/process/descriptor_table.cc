#include "libckpt_rt/capture/process/descriptor_table.h"

#include <asm/ldt.h>
#include <sys/prctl.h>

#include "base/memory/large_table.h"
#include "base/protocol/restart_protocol.h"
#include "base/sys.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::descriptor_table {

namespace {

constexpr long kRead = 0, kWrite = 0x11;  // what modify_ldt(2) is asked to do

CKPT_LARGE_TABLE constinit uint64_t descriptors[LDT_ENTRIES];
constinit bool has_some = false;

// The words that modify_ldt(2) makes this descriptor of (fill_ldt in the kernel).
user_desc words_of(uint32_t number, uint64_t descriptor) {
  auto bits = [&](int first, int count) {
    return static_cast<unsigned>(descriptor >> first & ((uint64_t{1} << count) - 1));
  };
  user_desc d{};
  d.entry_number = number;
  d.base_addr = bits(16, 24) | bits(56, 8) << 24;
  d.limit = bits(0, 16) | bits(48, 4) << 16;
  d.read_exec_only = bits(41, 1) ^ 1;
  d.contents = bits(42, 2);
  d.seg_not_present = bits(47, 1) ^ 1;
  d.useable = bits(52, 1);
  d.seg_32bit = bits(54, 1);
  d.limit_in_pages = bits(55, 1);
  return d;
}

}  // namespace

void note_stopped(bool filtered) {
  // The kernel says 0 where there is no table; else it fills all that it is given.
  // A filter may have come since `filtered` was read.
  has_some = !filtered && sys::call(__NR_prctl, PR_GET_SECCOMP, 0L, 0L, 0L, 0L) == 0 &&
             sys::call(__NR_modify_ldt, kRead, descriptors, sizeof(descriptors[0])) > 0 &&
             sys::call(__NR_modify_ldt, kRead, descriptors, sizeof(descriptors)) > 0;
}

uint32_t restore() {
  if (!has_some) return 0;
  uint32_t notes = 0;
  for (uint32_t i = 0; i < LDT_ENTRIES; ++i) {
    if (descriptors[i] == 0) continue;
    user_desc d = words_of(i, descriptors[i]);
    if (sys::call(__NR_modify_ldt, kWrite, &d, sizeof(d)) != 0) notes |= kNoteSegments;
  }
  return notes;
}

}  // namespace ckpt::descriptor_table
