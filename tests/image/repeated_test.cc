// Memory with the same bytes is in an image once, wherever it lies; and what only has the same checksum is
// not taken for it.
#include "image/read/image_chain.h"
#include "image/read/saved_memory.h"
#include "image/rewrite/image_rewrite.h"
#include "image/write/repeated_segments.h"
#include "tests/image/image_fixture.h"
#include "tests/image/reseal.h"

namespace ckpt {
namespace {

constexpr size_t kPart = 64 << 10;

struct Packing {
  const char* name;
  Codec codec;
  bool direct;
};
constexpr Packing kPackings[] = {{"plain", Codec::kNone, true},
                                 {"buffered", Codec::kNone, false},
                                 {"lz4", Codec::kLz4, true},
                                 {"zstd", Codec::kZstd, true}};

class Repeated : public ImageTest, public ::testing::WithParamInterface<Packing> {
 protected:
  SinkOptions options() const {
    SinkOptions o;
    o.codec = GetParam().codec;
    o.direct = GetParam().direct;
    return o;
  }
  // Each part of the memory becomes the part of `pattern` that it names. Half of each page compresses.
  static void lay_out(TestMemory& memory, const TestMemory& pattern,
                      const std::function<size_t(size_t)>& which) {
    for (size_t i = 0; i < memory.size / kPart; i++) {
      std::memcpy(memory.bytes + i * kPart, pattern.bytes + which(i) * kPart, kPart);
      for (size_t at = 0; at < kPart; at += 4096) std::memset(memory.bytes + i * kPart + at, 7, 2048);
    }
  }
  // Bytes of the file, which is whole and holds the memory.
  uint64_t image_of(const TestMemory& memory, uint64_t sequence = 1) {
    auto written = write_image(sequence, memory, ~0ull, options());
    EXPECT_TRUE(written.ok()) << written.error().message();
    if (!written.ok()) return 0;
    return check(memory, sequence);
  }
  uint64_t check(const TestMemory& memory, uint64_t sequence) {
    auto image = ImageReader::open(path(name(sequence)));
    EXPECT_TRUE(image.ok()) << image.error().message();
    if (!image.ok()) return 0;
    expect_memory(*image, memory);
    auto whole = image->verify_data();
    EXPECT_TRUE(whole.ok()) << whole.error().message();
    return image->brief().file_bytes;
  }
};

TEST_P(Repeated, OnePatternEverywhere) {
  TestMemory pattern(16), memory(256 * 16);  // 16 MiB
  lay_out(memory, pattern, [](size_t) { return 0; });
  // As long as the first is on its way to the disk there is nothing to compare with: two of them; a
  // compressed extent has four parts.
  EXPECT_LT(image_of(memory), 8 * kPart + (64u << 10));
}

TEST_P(Repeated, TwoOfEach) {
  TestMemory pattern(256 * 16), memory(512 * 16);
  lay_out(memory, pattern, [](size_t i) { return i % 256; });
  const uint64_t twice = image_of(memory);
  TestMemory once(256 * 16);
  lay_out(once, pattern, [](size_t i) { return i; });
  // The second of what is still on its way is stored too.
  EXPECT_LT(twice, image_of(once, 2) + 5 * options().chunk_bytes);
}

TEST_P(Repeated, NotOfUnlikeMemory) {
  TestMemory memory(256 * 16);
  const uint64_t bytes = image_of(memory);
  EXPECT_GT(bytes, memory.size);
  EXPECT_LT(bytes, memory.size + memory.size / 64 + (64u << 10));
}

// Segments in any order, pages missing, patterns that come and go: what is read is what was there.
TEST_P(Repeated, AnyLayout) {
  for (unsigned seed = 1; seed <= 8; seed++) {
    SCOPED_TRACE(seed);
    TestMemory pattern(8 * 16, 0x10000, seed), memory(128 * 16, 0x10000, seed);
    uint32_t x = seed;
    lay_out(memory, pattern, [&](size_t) { return ((x = x * 1664525u + 1013904223u) >> 24) % 8; });
    // Some parts are like another but for one byte.
    for (size_t i = 3; i < 128; i += 7) memory.bytes[i * kPart + i * 97] ^= std::byte{1};
    const uint64_t present = seed % 2 == 0 ? ~0ull : 0xfff7'0f0f'ffff'00ffull;
    ASSERT_TRUE(write_image(1, memory, present, options()).ok());
    auto image = ImageReader::open(path(name(1)));
    ASSERT_TRUE(image.ok()) << image.error().message();
    expect_memory(*image, memory, present);
    EXPECT_TRUE(image->verify_data().ok());
    std::filesystem::remove(path(name(1)));
  }
}

TEST_P(Repeated, IncrementsAndTheirFullImage) {
  TestMemory pattern(8 * 16), memory(64 * 16);
  lay_out(memory, pattern, [](size_t i) { return i % 8; });
  ASSERT_TRUE(write_image(1, memory, ~0ull, options()).ok());
  // The second half is other memory now, and repeats itself.
  TestMemory second(32 * 16, memory.base + memory.size / 2);
  lay_out(second, pattern, [](size_t i) { return i % 2; });
  std::memcpy(memory.bytes + memory.size / 2, second.bytes, second.size);
  auto parent = ImageReader::open(path(name(1)));
  ASSERT_TRUE(parent.ok());
  arena_.reset();
  ImageIdentity id = identity(2, 1);
  id.parent.state = parent->brief().meta_checksum;
  TestMeta meta({{memory.base, memory.base + memory.size}});
  DirectSink sink(options());
  ASSERT_TRUE(sink.open(dir_fd_.get(), name(2).c_str(), id, arena_, count_release, &released_).ok());
  ASSERT_TRUE(sink.append(segments(second)).ok());
  AddrRange first_half{{memory.base}, {memory.base + memory.size / 2}};
  ASSERT_TRUE(sink.inherit({&first_half, 1}).ok());
  ASSERT_TRUE(sink.set_meta(meta.writer.span()).ok());
  ASSERT_TRUE(sink.commit().ok());
  auto chain = ImageChain::open(path(name(2)));
  ASSERT_TRUE(chain.ok()) << chain.error().message();
  EXPECT_TRUE(chain->verify_all().ok());
  EXPECT_TRUE(chain->verify_used().ok());
  std::vector<std::byte> out(memory.size);
  ASSERT_TRUE(SavedMemory(*chain).read({memory.base}, out).ok());
  EXPECT_EQ(std::memcmp(out.data(), memory.bytes, memory.size), 0);
  SinkOptions full = options();
  full.replace = true;
  ASSERT_TRUE(rewrite_as_full(*chain, full, dir_fd_.get(), name(2).c_str(), {}).ok());
  EXPECT_LT(check(memory, 2), 24 * kPart);
}

INSTANTIATE_TEST_SUITE_P(Ways, Repeated, ::testing::ValuesIn(kPackings),
                         [](const auto& way) { return way.param.name; });

// A file of extents, each filled with its number, and their index.
class RepeatedSegmentsTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kBytes = 8192;
  static constexpr uint64_t kSum = 0x1234'5678'9abc'def0;

  void SetUp() override {
    ASSERT_TRUE(arena_.reserve(RepeatedSegments::arena_bytes() + (64u << 20)));
    index_ = ArenaVector<IndexEntry>(arena_);
    fd_.reset(memfd_create("image", MFD_CLOEXEC));
    ASSERT_TRUE(repeated_.start(fd_.get(), index_, arena_));
  }
  static std::vector<std::byte> bytes(int content) {
    return std::vector<std::byte>(kBytes, static_cast<std::byte>(content));
  }
  IndexEntry like(uint64_t checksum) const { return {0, 0, kBytes, kBytes, checksum, 0, 0}; }
  uint64_t find(int content, uint64_t checksum, bool written = true) {
    const uint64_t at = repeated_.candidate(like(checksum));
    return at != 0 && repeated_.same(at, bytes(content), written ? end_ : 0) ? at : 0;
  }
  void store(int content, uint64_t checksum) {
    auto data = bytes(content);
    ASSERT_EQ(pwrite(fd_.get(), data.data(), data.size(), static_cast<off_t>(end_)),
              static_cast<ssize_t>(data.size()));
    IndexEntry entry = like(checksum);
    entry.offset = end_;
    end_ += kBytes;
    ASSERT_TRUE(index_.push_back(entry));
    repeated_.remember(data);
  }
  Arena arena_;
  ArenaVector<IndexEntry> index_;
  ScopedFd fd_;
  RepeatedSegments repeated_;
  uint64_t end_ = 4096;
};

TEST_F(RepeatedSegmentsTest, TheSameChecksumIsNotTheSame) {
  store(1, kSum);
  EXPECT_EQ(find(1, kSum), 4096u);
  EXPECT_EQ(find(2, kSum), 0u);
  store(2, kSum);
  EXPECT_EQ(find(1, kSum), 0u);  // the newer is known
  EXPECT_EQ(find(2, kSum), 4096u + kBytes);
}

TEST_F(RepeatedSegmentsTest, NothingThatIsNotWrittenIsCompared) {
  store(1, kSum);
  EXPECT_EQ(find(1, kSum, false), 0u);
  store(1, kSum);  // and kept
  EXPECT_EQ(find(2, kSum, false), 0u);
  EXPECT_EQ(find(1, kSum, false), 4096u + kBytes);
}

TEST_F(RepeatedSegmentsTest, WhatCannotBeReadBackIsNotRepeated) {
  store(1, kSum);
  ASSERT_EQ(ftruncate(fd_.get(), 4096), 0);
  EXPECT_EQ(find(1, kSum), 0u);
}

TEST_F(RepeatedSegmentsTest, OtherLengthsAndCodecsAreOthers) {
  store(1, kSum);
  IndexEntry other = like(kSum);
  other.codec = 1;
  EXPECT_EQ(repeated_.candidate(other), 0u);
  other = like(kSum);
  other.length = 2 * kBytes;
  EXPECT_EQ(repeated_.candidate(other), 0u);
}

TEST_F(RepeatedSegmentsTest, ManyAreRemembered) {
  constexpr uint64_t kMany = 20000, kStep = 0x9e37'79b9'7f4a'7c15;
  for (uint64_t i = 1; i <= kMany; i++) store(static_cast<int>(i % 251), i * kStep);
  uint64_t found = 0;
  for (uint64_t i = 1; i <= kMany; i++) {
    const uint64_t at = find(static_cast<int>(i % 251), i * kStep);
    EXPECT_TRUE(at == 0 || at == 4096 + (i - 1) * kBytes) << i;
    found += at != 0;
  }
  EXPECT_GT(found, kMany / 2);
}

// What an image that lies may say of repeated memory.
class HostileRepeats : public ImageTest {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    TestMemory memory(64);
    for (size_t i = 1; i < 4; i++) std::memcpy(memory.bytes + i * kPart, memory.bytes, kPart);
    ASSERT_TRUE(write_image(1, memory).ok());
    whole_ = read_file(path(name(1)));
    FileTrailer trailer;
    std::memcpy(&trailer, whole_.data() + whole_.size() - 4096, sizeof(trailer));
    index_ = trailer.index_offset + 4096;
    ASSERT_EQ(trailer.extent_count, 4u);
    ASSERT_EQ(entry(2).offset, entry(3).offset);
    ASSERT_NE(entry(0).offset, entry(3).offset);
  }
  IndexEntry entry(size_t i) const {
    IndexEntry e;
    std::memcpy(&e, whole_.data() + index_ + i * sizeof(e), sizeof(e));
    return e;
  }
  // What verify says of the image with this entry instead.
  std::string with(size_t i, const IndexEntry& e) {
    std::string bytes = whole_;
    std::memcpy(bytes.data() + index_ + i * sizeof(e), &e, sizeof(e));
    reseal(bytes);
    write_file(path("hostile"), bytes);
    auto image = ImageReader::open(path("hostile"));
    if (!image.ok()) return image.error().text;
    auto verified = image->verify_data();
    return verified.ok() ? "good" : verified.error().text;
  }
  std::string whole_;
  uint64_t index_ = 0;
};

TEST_F(HostileRepeats, AreRefused) {
  EXPECT_EQ(with(3, entry(3)), "good");
  IndexEntry e = entry(3);
  e.offset = entry(0).offset;  // repeats the other one: the same bytes
  EXPECT_EQ(with(3, e), "good");
  e = entry(3);
  e.offset += 4096;  // into the middle
  EXPECT_NE(with(3, e), "good");
  e = entry(3);
  e.offset -= 4096;
  EXPECT_NE(with(3, e), "good");
  e = entry(3);
  e.codec = 1;  // a shorter part of it, packed
  e.stored = 4096;
  EXPECT_NE(with(3, e).find("disagree"), std::string::npos);
  e = entry(0);
  e.offset = entry(3).offset;  // nothing is left that lies where the chunk has the first
  EXPECT_NE(with(0, e).find("disagree"), std::string::npos);
}

}  // namespace
}  // namespace ckpt
