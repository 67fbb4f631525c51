#include "cli/image/core/saved_vdso.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace ckpt::cli {

Blob saved_vdso(const ImageMeta& meta) {
  const ProcessRecord& p = meta.process.record;
  if (p.vdso_start >= p.vdso_end) return {};
  uint64_t bytes = p.vdso_end - p.vdso_start;
  for (const ParsedFileContent& c : meta.contents) {
    if (c.record.open_file == 0 && c.record.object == kVdsoContentObject && c.record.offset == 0) {
      return c.bytes.first(std::min<uint64_t>(bytes, c.bytes.size()));
    }
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long start = 0, end = 0;
    if (!line.ends_with("[vdso]") || sscanf(line.c_str(), "%llx-%llx", &start, &end) != 2) continue;
    auto* ours = reinterpret_cast<const std::byte*>(start);
    if (end - start == bytes && XXH3_64bits(ours, bytes) == p.vdso_hash) return {ours, bytes};
  }
  return {};
}

}  // namespace ckpt::cli
