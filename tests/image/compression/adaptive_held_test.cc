// CKPT_COMPRESS=auto with buffers that are held: the file is right whichever way it switches, wherever it
// does.
#include <algorithm>

#include "tests/image/image_fixture.h"

namespace ckpt {
namespace {

// Time that passes only where a test says so.
int64_t fake_ns = 0;

// Takes its time for each byte: slow and fast by turns, or always the same.
class PacedBackend final : public FileBackend {
 public:
  explicit PacedBackend(int writes_each_way) : each_way_(writes_each_way) {}
  long attach(int fd, std::span<std::byte> staging, uint32_t in_flight) override {
    return real_.attach(fd, staging, in_flight);
  }
  long write(const WriteRequest& request) override {
    ns_[request.slot] = writes_++ / each_way_ % 2 == 0 ? int64_t{1000} * request.bytes : 0;
    return real_.write(request);
  }
  WriteResult wait() override {
    const WriteResult got = real_.wait();
    fake_ns += ns_[got.slot];
    return got;
  }
  long sync(int fd) override { return real_.sync(fd); }
  void detach() override { real_.detach(); }
  const char* name() const override { return "paced"; }
  bool overlaps() const override { return true; }
  bool gathers() const override { return true; }

 private:
  PwritevBackend real_;
  const int each_way_;
  int writes_ = 0;
  int64_t ns_[64] = {};
};

class AdaptiveHeld : public ImageTest {
 protected:
  static constexpr size_t kPages = 24000, kSegmentPages = 16;

  // By turns memory that compresses and memory that does not, in runs that end anywhere in a segment.
  AdaptiveHeld() {
    for (size_t page = 0; page < kPages; page++) {
      if (page % 3001 < 1700) std::memset(memory_.bytes + page * 4096, static_cast<int>(page % 251), 3900);
    }
    std::memcpy(buffers_.bytes, memory_.bytes, memory_.size);
  }

  struct Pool {
    std::byte* bytes;
    std::vector<int> released;
  };

  // A buffer that is released is overwritten at once.
  Result<SinkStats> write(const SinkOptions& options, uint64_t present) {
    constexpr size_t kBytes = kSegmentPages * kPageSize;
    pool_ = {buffers_.bytes, std::vector<int>(kPages / kSegmentPages)};
    std::vector<CopiedSegment> list;
    for (size_t page = 0; page < kPages; page += kSegmentPages) {
      uint64_t mask = 0;
      for (size_t i = 0; i < kSegmentPages; i++) mask |= (present >> ((page + i) % 64) & 1) << i;
      list.push_back({{memory_.base + page * kPageSize},
                      mask,
                      buffers_.bytes + page * kPageSize,
                      static_cast<uint32_t>(list.size())});
    }
    auto release = [](void* context, uint32_t buffer) {
      auto& pool = *static_cast<Pool*>(context);
      pool.released[buffer]++;
      std::memset(pool.bytes + buffer * kBytes, 0xee, kBytes);
    };
    arena_.reset();
    DirectSink sink(options);
    CKPT_TRY(sink.open(dir_fd_.get(), name(1).c_str(), identity(1), arena_, release, &pool_));
    CKPT_TRY(sink.append(list));
    TestMeta meta({{memory_.base, memory_.base + memory_.size}});
    CKPT_TRY(sink.set_meta(meta.writer.span()));
    auto stats = sink.commit();
    EXPECT_EQ(pool_.released, std::vector<int>(list.size(), 1));
    return stats;
  }

  // Places in the file where compressed and plain memory lie side by side, in one chunk.
  static size_t switches_in_chunks(const ImageReader& image) {
    std::vector<Extent> by_place(image.extents().begin(), image.extents().end());
    std::sort(by_place.begin(), by_place.end(),
              [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
    size_t switches = 0;
    for (size_t i = 1; i < by_place.size(); i++) {
      const Extent &a = by_place[i - 1], &b = by_place[i];
      const bool neighbours = a.offset.value + round_up_to_block(a.stored) == b.offset.value;
      switches += neighbours && (a.codec == Codec::kNone) != (b.codec == Codec::kNone);
    }
    return switches;
  }

  static SinkOptions adaptive(FileBackend* backend) {
    SinkOptions options;
    set_compression(options, {Compression::kAuto, 1});
    options.backend = backend;
    options.held_buffers = 128;
    options.clock = [] { return fake_ns; };
    return options;
  }

  TestMemory memory_{kPages};
  TestMemory buffers_{kPages};
  Pool pool_;
};

TEST_F(AdaptiveHeld, TheFileIsRightWhicheverWayItSwitches) {
  // All pages; runs long enough to be held and short ones beside them; none long enough.
  for (uint64_t present : {~0ull, 0xfff0'fff3'ffff'0ff1ull, 0x5555'3333'0ff0'1111ull}) {
    for (int each_way : {1 << 30, 40, 7}) {
      SCOPED_TRACE(fmt::format("present {:#x}, {} writes each way", present, each_way));
      std::memcpy(buffers_.bytes, memory_.bytes, memory_.size);
      PacedBackend backend(each_way);
      auto stats = write(adaptive(&backend), present);
      ASSERT_TRUE(stats.ok()) << stats.error().message();
      auto image = ImageReader::open(path(name(1)));
      ASSERT_TRUE(image.ok()) << image.error().message();
      auto verified = image->verify_data(1);
      ASSERT_TRUE(verified.ok()) << verified.error().message();
      expect_memory(*image, memory_, present);
      if (each_way == 1 << 30) {
        EXPECT_GT(switches_in_chunks(*image), 4u);
      }
      std::filesystem::remove(path(name(1)));
    }
  }
}

// A device that is never waited for: nothing is compressed, and nothing is copied that would not be without.
TEST_F(AdaptiveHeld, WhatIsNotCompressedIsAsWithout) {
  class Free final : public FileBackend {
   public:
    long attach(int fd, std::span<std::byte> staging, uint32_t n) override {
      return real_.attach(fd, staging, n);
    }
    long write(const WriteRequest& request) override {
      gathered += request.pieces.empty() ? 0 : request.bytes;
      return real_.write(request);
    }
    WriteResult wait() override { return real_.wait(); }
    long sync(int fd) override { return real_.sync(fd); }
    void detach() override { real_.detach(); }
    const char* name() const override { return "free"; }
    bool overlaps() const override { return true; }
    bool gathers() const override { return true; }
    uint64_t gathered = 0;

   private:
    PwritevBackend real_;
  };
  uint64_t gathered[2];
  std::string file[2];
  for (bool is_adaptive : {false, true}) {
    std::memcpy(buffers_.bytes, memory_.bytes, memory_.size);
    Free backend;
    SinkOptions options = adaptive(&backend);
    if (!is_adaptive) set_compression(options, {Compression::kNone, 1});
    ASSERT_TRUE(write(options, 0xfff0'fff3'ffff'0ff1).ok());
    gathered[is_adaptive] = backend.gathered;
    file[is_adaptive] = read_file(path(name(1)));
    std::filesystem::remove(path(name(1)));
  }
  EXPECT_EQ(gathered[0], gathered[1]);
  EXPECT_TRUE(file[0] == file[1]);
  const ScopedFd direct(::open(path("direct").c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  if (direct.valid()) {
    EXPECT_GT(gathered[0], memory_.size / 4);
  }
}

}  // namespace
}  // namespace ckpt
