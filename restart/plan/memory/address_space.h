// Ranges of addresses: what ckpt-restart itself has mapped, and where room is for the restorer.
//
// Owner:     restart. Callers: restorer_range.cc, restart/plan/vdso/vdso.cc; one thread.
// Never:     maps anything: it only finds room.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace ckpt {

// End of the addresses that a program has without asking for more (4-level page tables): the last
// page below 2^47 is never mapped.
inline constexpr uint64_t kTaskEnd = (uint64_t{1} << 47) - kPageSize;
inline constexpr uint64_t kTaskEnd5Level = (uint64_t{1} << 56) - kPageSize;

struct OwnMapping {
  AddrRange range;
  std::string name;  // path or [name]
};

// /proc/self/maps, without [vsyscall], in address order.
Result<std::vector<OwnMapping>> own_mappings();

// Finds `bytes` of addresses that overlap none of `taken` (any order, may overlap one another), with
// `margin` bytes free on both sides; the lowest such place above `from`. kUnavailable if there is none.
Result<Addr> find_room(std::vector<AddrRange> taken, uint64_t bytes, uint64_t margin, Addr from);

}  // namespace ckpt
