// Records of the META section for file descriptors. See process_records.h for the rules.
//
// An OpenFileRecord is an open file description (offset, flags); several DescriptorRecords may
// share one (dup, dup2). Contents that exist nowhere else (deleted files, memfds, pipes) are in
// FileContentRecords that name the open file.
#pragma once

#include <cstdint>

namespace ckpt {

enum class OpenFileKind : uint32_t {
  kRegular = 0,
  kDirectory = 1,
  kDevice = 2,      // /dev/null and its like: opened again by path
  kTerminal = 3,    // a tty: comes back as the restarting terminal
  kPipe = 4,        // both ends in this process
  kStandard = 5,    // descriptor 0, 1, 2 that leads outside (pipe, socket): the restarter's own
  kMemfd = 6,
  kEventFd = 7,
  kOther = 8,       // cannot be saved: comes back as a descriptor that gives errors, a note says so
};

enum OpenFileFlag : uint32_t {
  kOpenFileDeleted = 1u << 0,      // has no name any more: contents saved
  kOpenFilePipeReadEnd = 1u << 1,
  kOpenFilePipeWriteEnd = 1u << 2,
};

struct OpenFileRecord {
  uint32_t id;          // from 1, unique in the image
  uint32_t kind;        // OpenFileKind
  uint32_t flags;       // OpenFileFlag
  uint32_t open_flags;  // O_*, as in /proc/PID/fdinfo
  uint64_t offset;      // bytes
  uint64_t size;        // bytes at the stop
  uint64_t device, inode, rdev;
  uint32_t mode;        // st_mode
  uint32_t seals;       // memfd: F_GET_SEALS
  int32_t owner;        // F_GETOWN
  int32_t owner_signal; // F_GETSIG
  uint64_t object;      // pipes: same for both ends; memfds: as in MappingRecord::object
  uint64_t value;       // eventfd: counter
  uint32_t pipe_size;   // F_GETPIPE_SZ
  uint32_t path_len;
  // then: path (of a memfd: its name; of kOther: what /proc/PID/fd says)
};

struct DescriptorRecord {
  int32_t fd;
  uint32_t open_file;  // OpenFileRecord::id
  uint32_t fd_flags;   // FD_CLOEXEC
  uint32_t reserved;
};

struct FileContentRecord {
  uint32_t open_file;  // OpenFileRecord::id, or 0 for a mapping's object
  uint32_t reserved;
  uint64_t object;     // MappingRecord::object when open_file is 0
  uint64_t offset;     // bytes in the file
  uint64_t length;     // bytes that follow
  // then: contents
};

}  // namespace ckpt
