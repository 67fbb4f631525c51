// The identity of files that mappings refer to: restart maps them again and must find the same bytes.
//
// Owner:     libckpt_rt. Callers: the agent, before the stop: it reads files; look_again() in the stop.
// Rule:      an ELF file's build id; else the xxh3 of the file's bytes (files above 64 MiB: of pieces spread
//            over the file, image/format/file_hash.h) with its size and modification time.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "libckpt_rt/capture/memory/memory_map.h"

namespace ckpt {

struct FileIdentity {
  uint64_t device = 0, inode = 0;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  // 0: there is a build id, the file could not be read, or the program may write to it (MAP_SHARED).
  uint64_t hash = 0;
  uint8_t build_id[64] = {};
  uint32_t build_id_len = 0;
  bool of_job = false;  // made, or changed, since the job began
};

class MappedFiles {
 public:
  explicit MappedFiles(Arena& arena) : files_(arena) {}
  Result<void> read(const MemoryMap& map, Arena& scratch);
  // All threads stand: files in /dev/shm that the program maps to read, and has mapped or changed since
  // read().
  void look_again(const MemoryMap& map);
  const FileIdentity* find(const Mapping& m) const;

 private:
  static constexpr uint32_t kMostLooks = 256;

  ArenaVector<FileIdentity> files_;
};

}  // namespace ckpt
