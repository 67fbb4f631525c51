// The image reader on any bytes. Most inputs get right checksums before they are tried, so that the
// checks behind the checksums are reached; the rest arrive as they are.
#include "tests/writer/exercise_reader.h"
#include "tests/writer/mutate.h"
#include "tests/writer/reseal.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  std::mt19937 random(seed);
  if (random() % 3 == 0) {
    size = LLVMFuzzerMutate(data, size, max_size);
    if (random() % 4 == 0) return size;
  }
  std::string bytes(reinterpret_cast<const char*>(data), size);
  ckpt::mutate(bytes, random);
  ckpt::reseal(bytes);
  size = std::min(bytes.size(), max_size);
  std::memcpy(data, bytes.data(), size);
  return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckpt::exercise_reader(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
