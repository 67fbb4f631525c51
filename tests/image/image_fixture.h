// A directory of its own for each test, a small process description, and segments to put into images.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "image/format/image_name.h"
#include "image/read/image_reader.h"
#include "image/write/direct_sink.h"
#include "image/write/meta_writer.h"

namespace ckpt {

inline const uint8_t kRunId[16] = {0xab, 0xcd, 0xef, 0x01, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13};

// Pages [0x10000, 0x10000 + pages) of one anonymous mapping, filled by a seed.
struct TestMemory {
  explicit TestMemory(size_t pages, uint64_t address = 0x10000, unsigned seed = 1)
      : base(address),
        bytes(static_cast<std::byte*>(std::aligned_alloc(4096, pages * 4096))),
        size(pages * 4096) {
    uint32_t x = seed * 2654435761u + 1;
    for (size_t i = 0; i < size; i++) {
      x = x * 1664525u + 1013904223u;
      bytes[i] = static_cast<std::byte>(x >> 24);
    }
  }
  ~TestMemory() { std::free(bytes); }
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;

  uint64_t base;
  std::byte* bytes;
  size_t size;
};

// The smallest META that the reader takes: one thread, mappings as given.
struct TestMeta {
  explicit TestMeta(std::vector<std::pair<uint64_t, uint64_t>> ranges) : writer(arena) {
    (void)arena.reserve(1 << 20);
    ProcessRecord process{};
    process.pid = 1234;
    process.thread_count = 1;
    process.cwd_len = 4;
    process.comm_len = 4;
    writer.record(RecordType::kProcess, process, std::string_view("/tmp"), std::string_view("prog"));
    writer.record(RecordType::kMm, MmRecord{});
    for (auto [start, end] : ranges) {
      MappingRecord mapping{};
      mapping.start = start;
      mapping.end = end;
      mapping.prot = 3;
      mapping.page_size = 4096;
      writer.record(RecordType::kMapping, mapping);
    }
    ThreadRecord thread{};
    thread.tid = 1234;
    thread.flags = kThreadLeader;
    thread.name_len = 4;
    writer.record(RecordType::kThread, thread, std::string_view("prog"));
    writer.record(RecordType::kResourceLimits, ResourceLimitsRecord{});
    writer.finish();
  }
  Arena arena;
  MetaWriter writer;
};

class ImageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    std::string pattern = (std::filesystem::temp_directory_path() / "ckpt-writer-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    dir_fd_.reset(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(dir_fd_.valid());
    ASSERT_TRUE(arena_.reserve(256 << 20));
  }
  void TearDown() override {
    dir_fd_.reset();
    std::filesystem::remove_all(directory_);
  }

  static ImageIdentity identity(uint64_t sequence, uint64_t parent = 0) {
    ImageIdentity id{};
    std::memcpy(id.run_id, kRunId, sizeof(kRunId));
    id.sequence = sequence;
    if (parent != 0) {
      id.parent.sequence = parent;
      id.parent.chain_length = 1;
      std::strncpy(id.parent.name, name(parent).c_str(), sizeof(id.parent.name) - 1);
    }
    id.realtime_ns = 1'700'000'000'000'000'000 + static_cast<int64_t>(sequence);
    return id;
  }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  static std::string name(uint64_t sequence) {
    return compose_image_name("prog", 1234, kRunId, sequence).text;
  }
  bool exists(const std::string& file) const { return std::filesystem::exists(path(file)); }
  size_t files() const {
    auto it = std::filesystem::directory_iterator(directory_);
    return static_cast<size_t>(std::distance(begin(it), end(it)));
  }

  // Pages in segments of 16 pages; a set bit in `present` (page modulo 64) takes the page.
  static std::vector<CopiedSegment> segments(const TestMemory& memory, uint64_t present = ~0ull) {
    std::vector<CopiedSegment> list;
    constexpr size_t kSegment = 16;
    for (size_t page = 0; page < memory.size / 4096; page += kSegment) {
      size_t n = std::min(kSegment, memory.size / 4096 - page);
      uint64_t mask = 0;
      for (size_t i = 0; i < n; i++) mask |= (present >> ((page + i) % 64) & 1) << i;
      list.push_back(
          {{memory.base + page * 4096}, mask, memory.bytes + page * 4096, static_cast<uint32_t>(page)});
    }
    return list;
  }
  static void count_release(void* context, uint32_t) { ++*static_cast<size_t*>(context); }

  Result<SinkStats> write_image(uint64_t sequence, const TestMemory& memory, uint64_t present = ~0ull,
                                const SinkOptions& options = {}, uint64_t parent = 0) {
    arena_.reset();
    DirectSink sink(options);
    TestMeta meta({{memory.base, memory.base + memory.size}});
    ImageIdentity id = identity(sequence, parent);
    if (parent != 0) {
      auto brief = ImageReader::open(path(name(parent)));
      if (!brief.ok()) return brief.error();
      id.parent.state = brief->brief().meta_checksum;
    }
    CKPT_TRY(sink.open(dir_fd_.get(), name(sequence).c_str(), id, arena_, count_release, &released_));
    CKPT_TRY(sink.append(segments(memory, present)));
    CKPT_TRY(sink.set_meta(meta.writer.span()));
    return sink.commit();
  }

  static void expect_memory(const ImageReader& image, const TestMemory& memory, uint64_t present = ~0ull) {
    size_t pages = 0;
    std::vector<std::byte> out;
    for (const Extent& e : image.extents()) {
      out.resize(e.length);
      auto read = image.read_extent(e, out);
      ASSERT_TRUE(read.ok()) << read.error().message();
      for (uint64_t at = 0; at < e.length; at += 4096, pages++) {
        uint64_t page = (e.address.value + at - memory.base) / 4096;
        ASSERT_TRUE(present >> (page % 64) & 1);
        ASSERT_EQ(std::memcmp(out.data() + at, memory.bytes + page * 4096, 4096), 0) << "page " << page;
      }
    }
    size_t want = 0;
    for (size_t p = 0; p < memory.size / 4096; p++) want += present >> (p % 64) & 1;
    EXPECT_EQ(pages, want);
  }

  static std::string read_file(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write_file(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(bytes.data(), static_cast<long>(bytes.size()));
  }

  std::string directory_;
  ScopedFd dir_fd_;
  Arena arena_;
  size_t released_ = 0;
};

}  // namespace ckpt
