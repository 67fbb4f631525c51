// The image reader on any bytes. Most inputs get right checksums before they are tried, so that the
// checks behind the checksums are reached; the rest arrive as they are.
#include "tests/fuzz/image_mutator.h"
#include "tests/fuzz/verdict.h"
#include "tests/image/exercise_reader.h"

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return ckpt::mutate_image(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ckpt::ScopedFd file = ckpt::file_in_memory({reinterpret_cast<const char*>(data), size});
  ckpt::judge(ckpt::exercise_reader(file), ckpt::path_of(file));
  return 0;
}
