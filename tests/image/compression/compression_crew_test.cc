// Compression by several threads: the same image as by one, whatever becomes of the threads.
#include <thread>

#include "tests/image/faulty_backend.h"
#include "tests/image/image_fixture.h"

namespace ckpt {
namespace {

class Helpers final : public HelperThreads {
 public:
  explicit Helpers(uint32_t most, uint32_t can = ~0u) : most_(most), can_(can) {}
  ~Helpers() { EXPECT_TRUE(threads_.empty()) << "never joined"; }
  uint32_t most() const override { return most_; }
  bool start(void (*fn)(void*), void* arg) override {
    asked_++;
    if (started_ == can_) return false;
    started_++;
    threads_.emplace_back(fn, arg);
    return true;
  }
  void join() override {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  uint32_t asked() const { return asked_; }
  uint32_t started() const { return started_; }

 private:
  const uint32_t most_, can_;
  uint32_t asked_ = 0, started_ = 0;
  std::vector<std::thread> threads_;
};

class Crew : public ImageTest {
 protected:
  Crew() {
    // Of each page a part compresses, and of some none: extents of every kind.
    for (size_t at = 0; at < memory_.size; at += 4096)
      std::memset(memory_.bytes + at, 7, at / 4096 % 300 < 200 ? 4096 - at % 3900 : 0);
  }
  static SinkOptions with(HelperThreads* helpers, Codec codec) {
    SinkOptions options;
    options.codec = codec;
    options.helpers = helpers;
    return options;
  }
  TestMemory memory_{9008};
};

TEST_F(Crew, TheSameImageAsByOneThread) {
  for (Codec codec : {Codec::kLz4, Codec::kZstd}) {
    ASSERT_TRUE(write_image(1, memory_, ~0ull >> 3, with(nullptr, codec)).ok());
    const std::string alone = read_file(path(name(1)));
    std::filesystem::remove(path(name(1)));
    for (uint32_t most : {1u, 3u, 7u, 30u}) {
      SCOPED_TRACE(most);
      Helpers helpers(most);
      auto stats = write_image(1, memory_, ~0ull >> 3, with(&helpers, codec));
      ASSERT_TRUE(stats.ok()) << stats.error().message();
      EXPECT_LE(helpers.started(), most);
      EXPECT_TRUE(read_file(path(name(1))) == alone);
      std::filesystem::remove(path(name(1)));
    }
  }
}

TEST_F(Crew, ThreadsThatCannotBeHadAreDoneWithout) {
  for (uint32_t can : {0u, 1u, 2u}) {
    Helpers helpers(5, can);
    auto stats = write_image(1, memory_, ~0ull, with(&helpers, Codec::kZstd));
    ASSERT_TRUE(stats.ok()) << stats.error().message();
    // A helper that was refused once is not asked for again and again.
    EXPECT_EQ(helpers.started(), std::min(can, helpers.asked()));
    EXPECT_LE(helpers.asked(), can + 1);
    auto image = ImageReader::open(path(name(1)));
    ASSERT_TRUE(image.ok()) << image.error().message();
    ASSERT_TRUE(image->verify_data().ok());
    expect_memory(*image, memory_);
    std::filesystem::remove(path(name(1)));
  }
}

TEST_F(Crew, ErrorsEndItWithoutLeavingThreads) {
  PwritevBackend real;
  FaultyBackend counting(real);
  SinkOptions options = with(nullptr, Codec::kZstd);
  options.backend = &counting;
  ASSERT_TRUE(write_image(1, memory_, ~0ull, options).ok());
  for (int at = 0; at < counting.writes(); at++) {
    SCOPED_TRACE(at);
    PwritevBackend again;
    FaultyBackend faulty(again, {Fault::kFail, at, ENOSPC});
    Helpers helpers(3);
    options.backend = &faulty;
    options.helpers = &helpers;
    auto stats = write_image(2, memory_, ~0ull, options);
    ASSERT_FALSE(stats.ok());
    EXPECT_EQ(stats.error().sys_errno, ENOSPC) << stats.error().message();
    EXPECT_EQ(files(), 1u);
  }
}

// Whole extents stay in their buffers until they have been compressed: the same image again, each buffer
// released once, also when it ends in the middle. What is released is overwritten at once. Smaller segments
// make the same extents: the last of one is not taken for a whole one.
TEST_F(Crew, BuffersAreHeldUntilTheyAreCompressed) {
  constexpr size_t kExtent = 64u << 10, kHeld = 6;
  struct Pool {
    std::byte* bytes;
    size_t segment;
    std::vector<int> released;
    size_t total;
  };
  auto release = [](void* context, uint32_t buffer) {
    auto& pool = *static_cast<Pool*>(context);
    pool.released[buffer]++;
    pool.total++;
    std::memset(pool.bytes + buffer * pool.segment, 0xee, pool.segment);
  };
  ASSERT_TRUE(write_image(1, memory_, ~0ull, with(nullptr, Codec::kLz4)).ok());
  const std::string alone = read_file(path(name(1)));
  std::filesystem::remove(path(name(1)));
  TestMemory buffers(9008);
  for (const size_t bytes : {kExtent, kExtent / 2, kExtent / 4, size_t{kPageSize}}) {
    for (const bool ends_early : {false, true}) {
      SCOPED_TRACE(fmt::format("segments of {} bytes, ends early: {}", bytes, ends_early));
      std::memcpy(buffers.bytes, memory_.bytes, memory_.size);
      Pool pool{buffers.bytes, bytes, std::vector<int>(memory_.size / bytes), 0};
      Helpers helpers(1);
      SinkOptions options = with(&helpers, Codec::kLz4);
      options.held_buffers = kHeld;
      // No time passes but while an extent is compressed, which is not measured by this: a helper pays.
      options.clock = [] { return int64_t{0}; };
      arena_.reset();
      DirectSink sink(options);
      ASSERT_TRUE(sink.open(dir_fd_.get(), name(1).c_str(), identity(1), arena_, release, &pool).ok());
      size_t most = 0, appended = 0;
      for (; appended < pool.released.size() / (ends_early ? 2 : 1); appended++) {
        const CopiedSegment segment{{memory_.base + appended * bytes},
                                    (1ull << bytes / kPageSize) - 1,
                                    buffers.bytes + appended * bytes,
                                    static_cast<uint32_t>(appended)};
        ASSERT_TRUE(sink.append({&segment, 1}).ok());
        most = std::max(most, appended + 1 - pool.total);
      }
      EXPECT_EQ(helpers.started(), 1u);
      if (bytes == kExtent) {
        EXPECT_GT(most, 0u);
      }
      EXPECT_LE(most, kHeld);
      if (ends_early) {
        sink.abort();
        EXPECT_EQ(pool.total, appended);
        continue;
      }
      TestMeta meta({{memory_.base, memory_.base + memory_.size}});
      ASSERT_TRUE(sink.set_meta(meta.writer.span()).ok());
      ASSERT_TRUE(sink.commit().ok());
      EXPECT_EQ(pool.released, std::vector<int>(appended, 1));
      EXPECT_TRUE(read_file(path(name(1))) == alone);
      std::filesystem::remove(path(name(1)));
    }
  }
}

// Memory that the program gave to the kernel to read into changes also while all threads stand still. What is
// compressed from where it is must be stored as its checksum says.
TEST_F(Crew, MemoryThatChangesMeanwhileIsStoredWithItsChecksum) {
  static std::byte *bytes, *end;
  bytes = memory_.bytes;
  end = bytes + memory_.size;
  SinkOptions options = with(nullptr, Codec::kLz4);
  // The clock is asked before and after each extent.
  options.clock = [] {
    for (std::byte* page = bytes; page < end; page += kPageSize) page[kPageSize - 1] ^= std::byte{0xff};
    return int64_t{0};
  };
  // Compressed from a copy, and from where it is.
  for (const size_t held : {size_t{0}, size_t{8}}) {
    SCOPED_TRACE(fmt::format("held: {}", held));
    options.held_buffers = held;
    arena_.reset();
    ASSERT_TRUE(write_image(1, memory_, ~0ull, options).ok());
    auto image = ImageReader::open(path(name(1)));
    ASSERT_TRUE(image.ok()) << image.error().message();
    size_t plain = 0;
    for (const Extent& e : image->extents()) plain += e.codec == Codec::kNone;
    EXPECT_GT(plain, 32u);  // into chunks, and at the end of each
    auto verified = image->verify_data();
    EXPECT_TRUE(verified.ok()) << verified.error().message();
    std::filesystem::remove(path(name(1)));
  }
}

// The crew by itself: what is submitted comes out in the same order, compressed, with `helpers` of which each
// may or may not get a processor.
void use_crew(HelperThreads& helpers, uint32_t add) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(CompressionCrew::arena_bytes(Codec::kLz4, 1, &helpers)));
  CompressionCrew crew;
  ASSERT_TRUE(crew.start(Codec::kLz4, 1, &helpers, arena).ok());
  for (uint32_t i = 0; i < add; i++) crew.add_helper();
  ASSERT_EQ(crew.helpers(), add);
  uint64_t in = 0, out = 0;
  auto take = [&] {
    const CompressionCrew::Extent& e = crew.oldest();
    ASSERT_EQ(e.address, out << 12);
    ASSERT_GT(e.stored, 0u);
    ASSERT_LT(e.stored, 4096u);
    // All bytes of the extent are its number.
    ASSERT_EQ(e.raw[e.length - 1], static_cast<std::byte>(out));
    out++;
    crew.retired();
  };
  while (in < 500) {
    if (crew.full()) take();
    const auto length = static_cast<uint32_t>(2 + in % 31) * 4096;
    std::memset(crew.raw(), static_cast<int>(in), length);
    crew.submit(in++ << 12, length);
    if (in % 7 == 0) take();
  }
  // In the middle of work, too.
  if (add % 2 == 0) {
    while (!crew.empty()) take();
    EXPECT_EQ(in, out);
  }
  crew.stop();
  crew.stop();
}

TEST(CompressionCrew, KeepsTheOrder) {
  for (uint32_t most = 0; most <= CompressionCrew::kMostHelpers; most++) {
    Helpers helpers(most);
    use_crew(helpers, most);
    EXPECT_EQ(helpers.started(), most);
  }
}

class NeverRun final : public HelperThreads {
 public:
  uint32_t most() const override { return 2; }
  bool start(void (*)(void*), void*) override { return true; }
  void join() override {}
};

TEST(CompressionCrew, AHelperThatGetsNoProcessorHoldsNothingUp) {
  NeverRun helpers;
  use_crew(helpers, 2);
}

}  // namespace
}  // namespace ckpt
