// What differs between two images: of the same run at two instants, or of two runs.
//
// Owner:     cli. Ordinary code, one thread.
// Callers:   `ckpt diff`.
// Compared:  threads by their id, descriptors by their number, mappings by where they begin (stacks: where
//            they end), memory page by page. Not compared: clocks, timers, costs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "image/read/image_chain.h"

namespace ckpt::cli {

enum class Change { kAdded, kRemoved, kChanged };

struct ThreadDiff {
  int tid;
  std::string name;
  Change change;
  std::vector<std::string> what;  // of kChanged: "registers", "name", "signal mask", ...
};

struct MappingDiff {
  uint64_t start, end;  // in the second image, of kRemoved in the first
  std::string path;
  uint32_t kind;
  Change change;
  std::vector<std::string> what;  // of kChanged: "size 4096 -> 8192", "protection", "file"
  uint64_t pages = 0;             // that both have
  uint64_t pages_different = 0;   // of these; of kAdded and kRemoved: pages in the image
};

struct DescriptorDiff {
  int fd;
  std::string path;
  uint32_t kind;
  Change change;
  std::vector<std::string> what;
};

struct ImageDiff {
  std::vector<std::string> process;  // "working directory", "signal action of SIGINT", …
  std::vector<ThreadDiff> threads;
  std::vector<MappingDiff> mappings;
  std::vector<DescriptorDiff> descriptors;
  uint64_t pages_different = 0;  // in mappings that both have

  bool same() const { return process.empty() && threads.empty() && mappings.empty() && descriptors.empty(); }
};

// Bytes of memory compared so far, and in all.
using DiffProgress = std::function<void(uint64_t done, uint64_t total)>;

Result<ImageDiff> compare_images(const ImageChain& a, const ImageChain& b, const DiffProgress& progress);

}  // namespace ckpt::cli
