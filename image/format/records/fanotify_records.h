// Records of groups of fanotify(7). See descriptor_records.h.
//
// Owner: image/format. Callers: libckpt_rt/capture/descriptors writes them, restart/descriptors uses them.
#pragma once

#include <cstdint>

#include "image/format/records/descriptor_records.h"

namespace ckpt {

// Details: one FanotifyGroupDetail; FanotifyMarkDetail, one for each mark. kOpenFileEventsLost as of inotify.
inline constexpr auto kFanotify = static_cast<OpenFileKind>(44);
inline constexpr auto kFanotifyGroupDetail = static_cast<OpenFileDetail>(28);
inline constexpr auto kFanotifyMarkDetail = static_cast<OpenFileDetail>(29);

// Whether a group was made with CAP_SYS_ADMIN: the kernel does not tell. Bits.
enum class GroupMaker : uint32_t { kUnknown = 0, kHadRights = 1, kHadNone = 2, kBoth = 3 };

struct FanotifyGroupDetail {
  uint32_t flags;        // of fanotify_init(2)
  uint32_t event_flags;  // O_*, of the files that its events open
  uint32_t made_by;      // GroupMaker
  uint32_t reserved;
};

enum class MarkedObject : uint32_t { kFile = 0, kMount = 1, kFileSystem = 2, kMountNamespace = 3 };

struct FanotifyMarkDetail {
  uint32_t object;         // MarkedObject
  uint32_t flags;          // FAN_MARK_*, those that last, and FAN_MARK_DONT_FOLLOW
  uint64_t mask, ignored;  // FAN_*
  uint32_t path_len;
  uint32_t reserved;
  // then: path, padded to 8. Of a mount or file system: where it is mounted
};

// What watches files by name.
inline bool watches_files(OpenFileKind kind) { return kind == OpenFileKind::kInotify || kind == kFanotify; }

}  // namespace ckpt
