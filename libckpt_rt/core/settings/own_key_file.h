// The file with the key that images of this process are encrypted with. The key itself is read for one
// checkpoint, and is never here.
//
// Owner:     libckpt_rt, in its data, so that an image holds the name and a restarted process has the same.
// Callers:   choose(): the preload constructor, once. path(): any thread.
#pragma once

namespace ckpt::own_key_file {

// Absolute path of CKPT_KEY_FILE; empty: images are not encrypted.
const char* path();
// From what the user has set and the working directory of now.
void choose();

}  // namespace ckpt::own_key_file
