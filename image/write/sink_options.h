// How an image is to be written: what DirectSink and its parts are told.
//
// Owner:     image/write. A value; what its pointers name must outlive the image. Callers: who makes a
//            DirectSink.
#pragma once

#include "base/clock.h"
#include "base/settings/settings.h"
#include "image/format/encryption/block_cipher.h"
#include "image/format/image_format.h"
#include "image/write/backend/file_backend.h"
#include "image/write/backend/ring_guard.h"
#include "image/write/compress/compression_gauge.h"
#include "image/write/compress/helper_threads.h"
#include "image/write/image_output.h"

namespace ckpt {

struct SinkOptions {
  Codec codec = Codec::kNone;
  int level = 1;          // of zstd
  bool adaptive = false;  // compress only where that is sooner (compression_gauge.h)
  CompressionKnowledge* knowledge =
      nullptr;  // of the images before, and of this one when it is committed; nullptr: none is kept
  FileBackend* backend = nullptr;  // nullptr: the fastest that works here
  ImageOutput* output = nullptr;   // ready to be written to; nullptr: a file of the directory given to open()
  HelperThreads* helpers = nullptr;       // for compression, as many as pay; nullptr: none
  const ImageKey* key = nullptr;          // encrypt with it; it must outlive the image
  bool direct = true;                     // try O_DIRECT
  bool uring = true;                      // try io_uring, where O_DIRECT is in effect
  const RingGuard* ring_guard = nullptr;  // nullptr: nobody forks
  uint32_t chunk_bytes = 1u << 20;        // of a whole chunk, a multiple of 4096
  uint32_t head_bytes = kBlockSize;
  uint32_t in_flight = 4;                        // chunks
  size_t held_buffers = 0;                       // see DirectSink::hold_buffers()
  bool replace = false;                          // an image of this name, in one step, instead of refusing to
  int64_t (*clock)() = [] { return now_ns(); };  // of gauge and pace

  bool compressing() const { return codec != Codec::kNone; }
  // Is the time measured for which the writer waits for the device?
  bool is_measured() const { return adaptive || codec == Codec::kLz4; }
};

// codec, level and adaptive, as a setting says it.
void set_compression(SinkOptions& options, const CompressionSetting& setting);

}  // namespace ckpt
