#include "libckpt_rt/capture/memory/memfd_views.h"

#include <fcntl.h>

#include <algorithm>

#include "image/format/object_number.h"
#include "libckpt_rt/capture/memory/lost_mappings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

bool leads_to_file_of(const CapturedDescriptor& d, const Mapping& m) {
  return d.kind == OpenFileKind::kMemfd && !d.in_flight && (d.now.open_flags & O_PATH) == 0 &&
         d.now.device == m.device && d.now.inode == m.inode;
}

bool shows_all_of(const Mapping& shared, const Mapping& m) {
  return shared.shared && shared.kind == MappingKind::kMemfd && shared.whole && shared.device == m.device &&
         shared.inode == m.inode && shared.file_offset <= m.file_offset &&
         shared.file_offset + shared.range.size() >= m.file_offset + m.range.size();
}

}  // namespace

void keep_views_of_memfds(std::span<Mapping> map, std::span<const CapturedDescriptor> descriptors) {
  for (Mapping& m : map) {
    if ((m.map_flags & kMapOfMemfd) == 0 || (m.map_flags & kMapHugeTlb) != 0) continue;
    if (std::none_of(descriptors.begin(), descriptors.end(),
                     [&](const CapturedDescriptor& d) { return leads_to_file_of(d, m); }) &&
        std::none_of(map.begin(), map.end(), [&](const Mapping& s) { return shows_all_of(s, m); }))
      continue;
    m.kind = MappingKind::kMemfd;
    m.object = object_number(m.device, m.inode);
    m.map_flags = (m.map_flags & ~uint32_t{kMapOfMemfd} & ~uint32_t{kMapFileDeleted}) | kMapPrivate;
    m.whole = false;
  }
}

}  // namespace ckpt
