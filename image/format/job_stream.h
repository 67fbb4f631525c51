// A job's checkpoint as one stream of bytes: what the command of CKPT_TO gets, and `ckpt-restart -` reads.
//
//   JobStreamHead
//   JobStreamFrame and its bytes   those of one entry in order; entries mixed, as their processes write them
//   JobStreamFrame kWhole          of an entry: all of it was sent
//   JobStreamFrame kEnd            nothing follows
//
// An entry is a file of the checkpoint's directory (job/format/job_name.h): the image of a process by its
// pid, or 0, the manifest, which comes last. Images and manifest have checks of their own; a stream without
// kEnd was cut.
//
// Owner: image/format. Callers: who writes a stream: job/capture and image/write/job_stream_output.h, in the
// program; who reads one: ckpt-restart and ckpt.
#pragma once

#include <cstdint>

namespace ckpt {

inline constexpr char kJobStreamMagic[8] = {'C', 'K', 'P', 'T', 'J', 'O', 'B', 'S'};
inline constexpr uint32_t kJobStreamVersion = 1;

struct JobStreamHead {
  char magic[8];
  uint32_t version;
  uint32_t reserved;
};

enum class JobFrame : uint32_t { kBytes = 1, kWhole = 2, kEnd = 3 };

struct JobStreamFrame {
  uint32_t kind;   // JobFrame
  uint32_t entry;  // kEnd: how many there are
  uint64_t bytes;  // kBytes: that follow, kMostFrameBytes at most. kWhole: of the entry, all
};
inline constexpr uint64_t kMostFrameBytes = 64 << 20;
inline constexpr uint32_t kJobManifestEntry = 0;

}  // namespace ckpt
