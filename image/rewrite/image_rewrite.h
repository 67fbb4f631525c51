// Writes an image anew: the memory of a whole chain as one full image, with the same identity and the
// same description of the process. Those that are increments to it do not notice: a parent is known by
// what it says, not by its bytes.
//
// Owner:     image/rewrite. Callers: ckpt compact, ckpt cat; ordinary C++, one thread.
// Never:     touches the old file before the new one is durable; rename(2) then replaces it. Whenever
//            this is interrupted, one of the two is there, complete.
#pragma once

#include "image/read/image_chain.h"
#include "image/write/direct_sink.h"

namespace ckpt {

// The codec that the images of the chain use, if they use one.
Codec codec_of(const ImageChain& image);

// Where the options say: as `name` in directory dir_fd, or to their output. Every byte that is read is
// checked. Progress: bytes of memory.
Result<SinkStats> rewrite_as_full(const ImageChain& image, const SinkOptions& options, int dir_fd,
                                  const char* name, const VerifyProgress& progress);

}  // namespace ckpt
