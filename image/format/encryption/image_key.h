// The key that encrypts and authenticates images (CKPT_KEY_FILE), and its file.
//
// Owner:     image/format. Callers: both halves; in the victim the agent only, for the time of one
//            checkpoint, in memory that no image holds. Raw system calls, no allocation; 8 KiB of stack,
//            wiped.
// Never:     taken from a file that somebody else could read or may have written.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace ckpt {

struct ImageKey {
  uint8_t bytes[32];
};

// Once in a process, on an ordinary thread, before images are sealed or opened: chooses the fastest code.
void prepare_ciphers();

// At least 32 bytes, best random, or 64 hexadecimal digits; mode 0600 or 0400, owned by the effective user.
Result<void> read_key_file(const char* path, ImageKey& key);

void wipe(void* memory, size_t bytes);

}  // namespace ckpt
