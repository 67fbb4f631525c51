// The image reader behind the decryption: any image, encrypted with the key that the reader has, so that what
// is wrong inside is reached; now and then a byte of the envelope is changed, or the input is taken for an
// envelope itself.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/format/encryption/block_cipher.h"
#include "image/read/sources/reading_key.h"
#include "tests/fuzz/image_mutator.h"
#include "tests/fuzz/verdict.h"
#include "tests/image/exercise_reader.h"

namespace {

// Blocks in their groups, tags behind them: what ImageSealer writes.
std::string sealed(std::string_view image) {
  const uint64_t n = image.size() / ckpt::kBlockSize;
  const uint8_t run_id[16] = {};
  ckpt::SealedHeader header;
  if (!ckpt::make_sealed_header(*ckpt::reading_key(), run_id, header)) abort();
  std::string file(ckpt::sealed_file_bytes(n), '\0');
  std::memcpy(file.data(), &header, sizeof(header));
  auto* to = reinterpret_cast<std::byte*>(file.data());
  auto* from = reinterpret_cast<const std::byte*>(image.data());
  ckpt::BlockCipher cipher(*ckpt::reading_key(), header);
  for (uint64_t i = 0; i < n; i++) {
    cipher.seal(i, i + 1 == n, from + i * ckpt::kBlockSize, to + ckpt::sealed_block_offset(i),
                to + ckpt::sealed_tag_offset(i, n));
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  char name[] = "/tmp/ckpt-fuzz-key-XXXXXX";
  int fd = mkstemp(name);
  if (fd < 0 || write(fd, "0123456789abcdef0123456789abcdef", 32) != 32) abort();
  close(fd);
  if (!ckpt::use_key_file(name).ok()) abort();
  unlink(name);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return ckpt::mutate_image(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view image(reinterpret_cast<const char*>(data), size);
  const ckpt::ScopedFd plain = ckpt::file_in_memory(image);
  ckpt::judge(ckpt::exercise_reader(plain), ckpt::path_of(plain));  // as it is: refused, or an envelope
  if (size < ckpt::kBlockSize) return 0;
  std::string file = sealed(image);
  const ckpt::ScopedFd encrypted = ckpt::file_in_memory(file);
  ckpt::judge(ckpt::exercise_reader(encrypted), ckpt::path_of(encrypted));
  size_t at = 0;
  for (size_t i = 0; i < size; i += 97) at = at * 31 + data[i];
  at %= file.size();
  file[at] = static_cast<char>(file[at] ^ 1);
  // No byte may change unseen.
  if (ckpt::exercise_reader(file)) abort();
  return 0;
}
