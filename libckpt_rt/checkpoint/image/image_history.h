// What the images of this process so far leave for the next one.
//
// Owner:     libckpt_rt: one object in its data. An image holds it; going back keeps what is known by then.
// Callers:   the agent, before and after an image; the thread that writes one, while it does.
#pragma once

#include "image/write/compress/compression_gauge.h"

namespace ckpt {

struct ImageHistory {
  CompressionKnowledge compression;  // how fast the disk and the compressor were
  uint64_t last_streamed = 0;        // sequence of the newest image that went to CKPT_TO's command
};

extern ImageHistory image_history;

}  // namespace ckpt
