// The key that this process opens encrypted images with.
//
// Owner:     image/read. Callers: main() of ckpt and ckpt-restart, before any image is opened;
//            ordinary C++, one thread. With a key only encrypted images are opened, without one only the
//            others.
#pragma once

#include <string>

#include "base/result.h"
#include "image/format/encryption/image_key.h"

namespace ckpt {

// From now on; `path` empty: what CKPT_KEY_FILE says, if anything.
Result<void> use_key_file(const std::string& path);
// nullptr: none.
const ImageKey* reading_key();
// Wipes it. Nothing that was opened with it may be read any more.
void forget_reading_key();

}  // namespace ckpt
