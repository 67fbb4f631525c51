// Thousands of spoiled images with fixed seeds: the reader must survive each, and must not take one
// whose checksums are wrong. The fuzz target (tests/fuzz) does the same without end.
#include <random>

#include "tests/image/exercise_reader.h"
#include "tests/image/image_fixture.h"
#include "tests/image/mutate.h"
#include "tests/image/reseal.h"

namespace ckpt {
namespace {

class Mutation : public ImageTest {};

TEST_F(Mutation, TheReaderSurvives) {
  int taken = 0, refused = 0;
  for (Codec codec : {Codec::kNone, Codec::kLz4, Codec::kZstd}) {
    TestMemory memory(12);
    std::memset(memory.bytes, 3, 5 * 4096);  // of three extents in it the last repeats another
    SinkOptions options;
    options.codec = codec;
    options.chunk_bytes = 32 << 10;
    options.head_bytes = 4096;
    if (codec != Codec::kNone) options.chunk_bytes = 512 << 10;
    ASSERT_TRUE(write_image(1, memory, 0b1110'1101'0101, options).ok());
    const std::string whole = read_file(path(name(1)));
    std::filesystem::remove(path(name(1)));
    for (unsigned seed = 0; seed < 2000; seed++) {
      SCOPED_TRACE(fmt::format("codec {} seed {}", static_cast<int>(codec), seed));
      std::mt19937 random(seed);
      std::string bytes = whole;
      mutate(bytes, random);
      if (bytes == whole) continue;
      ASSERT_FALSE(exercise_reader(bytes));
      reseal(bytes);
      // Now it may be an image of other memory, or none: it must not crash.
      (exercise_reader(bytes) ? taken : refused)++;
    }
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 1000);
}

// What is looked at does not depend on what the image says of its own length. (That it goes too far a
// sanitizer sees.)
TEST_F(Mutation, ResealingSurvivesAnIndexLongerThanTheFile) {
  TestMemory memory(2);
  ASSERT_TRUE(write_image(1, memory, 0b11).ok());
  std::string bytes = read_file(path(name(1)));
  FileTrailer trailer;
  std::memcpy(&trailer, bytes.data() + bytes.size() - kBlockSize, sizeof(trailer));
  const uint64_t length = uint64_t{1} << 40, body = trailer.index_offset + kBlockSize;
  std::memcpy(bytes.data() + trailer.index_offset + offsetof(SectionHead, content_bytes), &length,
              sizeof(length));
  std::memset(bytes.data() + body, 0xff, bytes.size() - body);  // entries of extents that lie nowhere
  bytes.shrink_to_fit();
  reseal(bytes);
  EXPECT_FALSE(exercise_reader(bytes));
}

}  // namespace
}  // namespace ckpt
