#include "libckpt_rt/capture/memory/lost_mappings.h"

#include "base/machine/known_devices.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

LostMapping what_is_lost(const Mapping& m) {
  if (m.kind == MappingKind::kVdso) return {};
  if ((m.map_flags & kMapUnsure) != 0)
    return {"droppable memory (MAP_DROPPABLE)", "after a restart the kernel keeps it", false};
  if ((m.map_flags & kMapOfMemfd) != 0) {
    return {"a memfd privately", "after a restart what is written to the memfd is not seen there any more",
            false};
  }
  if (m.path_len == 0) return {};
  const std::string_view path(m.path, m.path_len);
  struct Known {
    std::string_view start;
    LostMapping lost;
  };
  static constexpr Known kKnown[] = {
      {"/[aio]",
       {"a context of asynchronous I/O (io_setup)",
        "it has requests that do not end, or was made past libc and libaio: run the program without "
        "asynchronous "
        "I/O"}},
      {"/secretmem", {"secret memory (memfd_secret)", "nobody but the program may read it"}},
  };
  for (const Known& known : kKnown) {
    if (path.starts_with(known.start)) return known.lost;
  }
  if (const KnownDevice* device = known_device(path)) return {device->what, device->why};
  const bool from_file = m.kind == MappingKind::kFileShared || m.kind == MappingKind::kFilePrivate;
  if (from_file && !path.starts_with('/') && !path.starts_with('[')) {
    return {"memory of an object without a name", "no other process can make it again"};
  }
  if (m.kind == MappingKind::kDevice && !path.starts_with("/dev/zero") && !path.starts_with("/dev/null")) {
    return {"memory of a device", "it is mapped again, and what is in it then is the device's business",
            false};
  }
  return {};
}

}  // namespace ckpt
