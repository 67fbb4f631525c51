#include "base/machine/kernel_caps.h"
#include "image/read/sources/image_catalog.h"
#include "tests/image/image_fixture.h"

namespace ckpt {
namespace {

class RoundTrip : public ImageTest {};

TEST_F(RoundTrip, MemoryAndMetaComeBack) {
  TestMemory memory(1000);
  auto stats = write_image(1, memory);
  ASSERT_TRUE(stats.ok()) << stats.error().message();
  EXPECT_EQ(stats->bytes_memory, memory.size);
  EXPECT_EQ(stats->bytes_written, std::filesystem::file_size(path(name(1))));
  EXPECT_EQ(released_, segments(memory).size());
  EXPECT_EQ(files(), 1u);

  auto image = ImageReader::open(path(name(1)));
  ASSERT_TRUE(image.ok()) << image.error().message();
  EXPECT_EQ(image->brief().sequence, 1u);
  EXPECT_EQ(image->meta().process.record.pid, 1234);
  EXPECT_EQ(image->meta().process.cwd, "/tmp");
  EXPECT_EQ(image->meta().threads.at(0).name, "prog");
  auto verified = image->verify_data();
  ASSERT_TRUE(verified.ok()) << verified.error().message();
  expect_memory(*image, memory);
}

// Says that all has been written.
class NoWrites final : public FileBackend {
 public:
  long attach(int, std::span<std::byte>, uint32_t) override { return 0; }
  long write(const WriteRequest& request) override {
    done_ = {request.slot, request.bytes};
    return 0;
  }
  WriteResult wait() override { return done_; }
  long sync(int) override { return 0; }
  void detach() override {}
  const char* name() const override { return "none"; }

 private:
  WriteResult done_ = {};
};

// As many pages as arena_bytes() was told, none with a neighbour; one more than the vectors have room for
// without growing, with each of them.
TEST_F(RoundTrip, PagesWithoutNeighboursFitIntoTheArena) {
  const TestMemory memory(64);
  for (uint64_t pages : {131'072 + 1, 65'536 + 1, 300'000}) {
    for (bool increment : {false, true}) {
      NoWrites backend;
      SinkOptions options;
      options.backend = &backend;
      options.in_flight = 1;
      Arena arena;
      ASSERT_TRUE(arena.reserve(DirectSink::arena_bytes(options, pages * kPageSize)));
      DirectSink sink(options);
      auto opened = sink.open(dir_fd_.get(), name(2).c_str(), identity(2, increment ? 1 : 0), arena,
                              count_release, &released_);
      ASSERT_TRUE(opened.ok()) << opened.error().message();
      for (uint64_t page = 0; page < pages; page++) {
        const Addr at{memory.base + 2 * page * kPageSize};
        if (increment && page % 8 != 0) {
          const AddrRange run{at, at + kPageSize};
          ASSERT_TRUE(sink.inherit({&run, 1}).ok()) << page;
          continue;
        }
        const CopiedSegment one{at, 1, memory.bytes, 0};
        auto appended = sink.append({&one, 1});
        ASSERT_TRUE(appended.ok()) << page << ": " << appended.error().message();
      }
      TestMeta meta({{memory.base, memory.base + 2 * pages * kPageSize}});
      ASSERT_TRUE(sink.set_meta(meta.writer.span()).ok());
      auto stats = sink.commit();
      ASSERT_TRUE(stats.ok()) << stats.error().message();
      std::filesystem::remove(path(name(2)));
    }
  }
}

TEST_F(RoundTrip, HolesAreNotStored) {
  TestMemory memory(640);
  const uint64_t present = 0x8421'0000'ffff'0ff1;
  for (uint32_t head_blocks : {1u, 2u}) {
    SinkOptions options;
    options.chunk_bytes = 64 << 10;
    options.head_bytes = head_blocks * 4096;
    auto stats = write_image(head_blocks, memory, present, options);
    ASSERT_TRUE(stats.ok()) << stats.error().message();
    auto image = ImageReader::open(path(name(head_blocks)));
    ASSERT_TRUE(image.ok()) << image.error().message();
    auto verified = image->verify_data(1);
    ASSERT_TRUE(verified.ok()) << verified.error().message();
    expect_memory(*image, memory, present);
  }
}

TEST_F(RoundTrip, SegmentsInAnyOrderAndMetaInBetween) {
  TestMemory memory(200);
  auto list = segments(memory);
  std::swap(list[0], list[7]);
  std::swap(list[3], list[5]);
  TestMeta meta({{memory.base, memory.base + memory.size}});
  DirectSink sink;
  ASSERT_TRUE(sink.open(dir_fd_.get(), name(1).c_str(), identity(1), arena_, count_release, &released_).ok());
  ASSERT_TRUE(sink.append({list.data(), 4}).ok());
  ASSERT_TRUE(sink.set_meta(meta.writer.span()).ok());
  ASSERT_TRUE(sink.append({list.data() + 4, list.size() - 4}).ok());
  ASSERT_TRUE(sink.commit().ok());
  auto image = ImageReader::open(path(name(1)));
  ASSERT_TRUE(image.ok()) << image.error().message();
  ASSERT_TRUE(image->verify_data().ok());
  expect_memory(*image, memory);
}

// Buffers that are held are overwritten as soon as they are released.
TEST_F(RoundTrip, HeldBuffersAreReleasedOnceAndWhenTheyAreWritten) {
  struct Pool {
    std::byte* bytes;
    size_t segment_bytes;
    std::vector<int> released;
  };
  constexpr uint64_t kMasks[] = {~0ull, 0xffff'ffff'ffff'ff00, 0xfff0'0000'ffff'0ff1, 0x0000'0000'ffff'0000,
                                 0x8421'0000'0000'0001};
  for (bool uring : {false, true}) {
    if (uring && !probe_io_uring().ok()) GTEST_SKIP() << "io_uring is not allowed here";
    for (uint32_t pages : {4u, 16u, 64u}) {
      for (uint64_t present : kMasks) {
        for (size_t most : {size_t{3}, size_t{200}}) {
          SCOPED_TRACE(fmt::format("uring {}, segments of {} pages, present {:#x}, {} held", uring, pages,
                                   present, most));
          const TestMemory memory(1500);
          TestMemory buffers(1500);
          Pool pool{buffers.bytes, pages * kPageSize, {}};
          SinkOptions options;
          options.uring = uring;
          options.in_flight = 3;
          options.chunk_bytes = 512 << 10;
          options.held_buffers = most;
          std::vector<CopiedSegment> list;
          for (size_t page = 0; page < 1500; page += pages) {
            uint64_t mask = 0;
            for (size_t i = 0; i < pages && page + i < 1500; i++)
              mask |= (present >> ((page + i) % 64) & 1) << i;
            list.push_back({{memory.base + page * kPageSize},
                            mask,
                            buffers.bytes + page * kPageSize,
                            static_cast<uint32_t>(list.size())});
          }
          pool.released.resize(list.size());
          auto release = [](void* context, uint32_t buffer) {
            auto& p = *static_cast<Pool*>(context);
            p.released[buffer]++;
            const size_t bytes = std::min(p.segment_bytes, 1500 * kPageSize - buffer * p.segment_bytes);
            std::memset(p.bytes + buffer * p.segment_bytes, 0xee, bytes);
          };
          arena_.reset();
          DirectSink sink(options);
          ASSERT_TRUE(sink.open(dir_fd_.get(), name(1).c_str(), identity(1), arena_, release, &pool).ok());
          ASSERT_TRUE(sink.append(list).ok());
          TestMeta meta({{memory.base, memory.base + memory.size}});
          ASSERT_TRUE(sink.set_meta(meta.writer.span()).ok());
          ASSERT_TRUE(sink.commit().ok());
          EXPECT_EQ(pool.released, std::vector<int>(list.size(), 1));
          auto image = ImageReader::open(path(name(1)));
          ASSERT_TRUE(image.ok()) << image.error().message();
          auto verified = image->verify_data(1);
          ASSERT_TRUE(verified.ok()) << verified.error().message();
          expect_memory(*image, memory, present);
          std::filesystem::remove(path(name(1)));
        }
      }
    }
  }
}

TEST_F(RoundTrip, NoMoreBuffersAreHeldThanAllowed) {
  const ScopedFd direct(::open(path("direct").c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600));
  if (!direct.valid()) GTEST_SKIP() << "no O_DIRECT here: nothing is held";
  const TestMemory memory(640);
  for (size_t most : {size_t{0}, size_t{2}, size_t{4}, size_t{8}, size_t{100}}) {
    SinkOptions options;
    options.in_flight = 4;
    options.uring = false;
    options.held_buffers = most;
    arena_.reset();
    released_ = 0;
    DirectSink sink(options);
    ASSERT_TRUE(
        sink.open(dir_fd_.get(), name(1).c_str(), identity(1), arena_, count_release, &released_).ok());
    const auto list = segments(memory);
    size_t held = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      ASSERT_TRUE(sink.append({&list[i], 1}).ok());
      held = std::max(held, i + 1 - released_);
    }
    EXPECT_LE(held, most);
    EXPECT_EQ(held == 0, most < options.in_flight) << most;
    sink.abort();
    EXPECT_EQ(released_, list.size());
  }
}

TEST_F(RoundTrip, CompressedImagesAreSmallerAndTheSame) {
  TestMemory memory(512);
  // Half of it compresses, half does not.
  for (size_t i = 0; i < memory.size / 2; i++) memory.bytes[i] = static_cast<std::byte>(i / 4096);
  uint64_t sequence = 1;
  for (const char* setting : {"lz4", "zstd", "zstd:7", "zstd:19", "auto"}) {
    auto compression = parse_compression("", setting);
    ASSERT_TRUE(compression.ok());
    SinkOptions options;
    set_compression(options, *compression);
    auto stats = write_image(sequence, memory, ~0ull, options);
    ASSERT_TRUE(stats.ok()) << stats.error().message();
    // What auto finds worth it depends on the machine.
    if (!options.adaptive) {
      EXPECT_LT(stats->bytes_written, memory.size * 6 / 10) << setting;
    }
    auto image = ImageReader::open(path(name(sequence)));
    ASSERT_TRUE(image.ok()) << image.error().message();
    auto verified = image->verify_data();
    ASSERT_TRUE(verified.ok()) << verified.error().message();
    expect_memory(*image, memory);
    sequence++;
  }
}

TEST_F(RoundTrip, ImageWithoutMemory) {
  TestMemory memory(16);
  ASSERT_TRUE(write_image(1, memory, 0).ok());
  auto image = ImageReader::open(path(name(1)));
  ASSERT_TRUE(image.ok()) << image.error().message();
  EXPECT_TRUE(image->extents().empty());
  EXPECT_TRUE(image->verify_data().ok());
}

TEST_F(RoundTrip, LargeMetaSpansManyWrites) {
  TestMemory memory(16);
  TestMeta meta({{memory.base, memory.base + memory.size}});
  Arena big;
  ASSERT_TRUE(big.reserve(64 << 20));
  MetaWriter writer(big);
  ProcessRecord process{};
  process.pid = 1234;
  process.thread_count = 1;
  writer.record(RecordType::kProcess, process);
  writer.record(RecordType::kMm, MmRecord{});
  ThreadRecord thread{};
  thread.tid = 1234;
  writer.record(RecordType::kThread, thread);
  writer.record(RecordType::kResourceLimits, ResourceLimitsRecord{});
  OpenFileRecord file{};
  file.id = 1;
  file.path_len = 9;
  writer.record(RecordType::kOpenFile, file, std::string_view("/tmp/gone"));
  std::string contents(5'000'001, 'x');
  FileContentRecord content{};
  content.open_file = 1;
  content.length = contents.size();
  writer.record(RecordType::kFileContent, content, std::string_view(contents));
  writer.finish();
  ASSERT_TRUE(writer.ok());
  DirectSink sink;
  ASSERT_TRUE(sink.open(dir_fd_.get(), name(1).c_str(), identity(1), arena_, count_release, &released_).ok());
  ASSERT_TRUE(sink.set_meta(writer.span()).ok());
  ASSERT_TRUE(sink.commit().ok());
  auto image = ImageReader::open(path(name(1)));
  ASSERT_TRUE(image.ok()) << image.error().message();
  ASSERT_EQ(image->meta().contents.size(), 1u);
  EXPECT_EQ(image->meta().contents[0].bytes.size(), contents.size());
  EXPECT_TRUE(image->verify_data().ok());
}

TEST_F(RoundTrip, APageTwiceIsRefused) {
  TestMemory memory(32);
  TestMeta meta({{memory.base, memory.base + memory.size}});
  auto list = segments(memory);
  list.push_back(list[0]);
  DirectSink sink;
  ASSERT_TRUE(sink.open(dir_fd_.get(), name(1).c_str(), identity(1), arena_, count_release, &released_).ok());
  ASSERT_TRUE(sink.append(list).ok());
  ASSERT_TRUE(sink.set_meta(meta.writer.span()).ok());
  auto stats = sink.commit();
  ASSERT_FALSE(stats.ok());
  EXPECT_EQ(stats.error().code, ExitCode::kInternal);
  EXPECT_EQ(files(), 0u);
}

TEST_F(RoundTrip, AbortLeavesNothing) {
  TestMemory memory(600);
  {
    DirectSink sink;
    ASSERT_TRUE(
        sink.open(dir_fd_.get(), name(1).c_str(), identity(1), arena_, count_release, &released_).ok());
    EXPECT_TRUE(exists(name(1) + ".tmp"));
    ASSERT_TRUE(sink.append(segments(memory)).ok());
    sink.abort();
  }
  EXPECT_EQ(files(), 0u);
}

TEST_F(RoundTrip, ModeIsPrivateWhateverTheUmask) {
  mode_t old = umask(0777);
  auto stats = write_image(1, TestMemory(1));
  umask(old);
  ASSERT_TRUE(stats.ok()) << stats.error().message();
  struct stat st;
  ASSERT_EQ(stat(path(name(1)).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
}

}  // namespace
}  // namespace ckpt
