// Increments: what a chain gives back is what the process had at each of its images, whatever was
// written, given back or became zero between them; and no chain with anything wrong in it is taken.
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "image/read/image_chain.h"
#include "image/read/saved_memory.h"
#include "image/write/directory/image_directory.h"
#include "tests/image/exercise_reader.h"
#include "tests/image/image_fixture.h"
#include "tests/image/reseal.h"

namespace ckpt {
namespace {

constexpr uint64_t kBase = 0x10000;
constexpr size_t kPages = 200;

// A page's contents by a number; 0 all zero. Absent: not there at all.
using Model = std::map<size_t, uint32_t>;

class Chain : public ImageTest {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    pages_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, kPages * 4096)));
  }

  static void fill_page(std::byte* page, uint32_t contents) {
    std::memset(page, 0, 4096);
    // The first half compresses, the second does not.
    std::mt19937 random(contents);
    for (size_t i = 0; contents != 0 && i < 4096; i += 4) {
      uint32_t word = i < 2048 ? contents : static_cast<uint32_t>(random());
      std::memcpy(page + i, &word, 4);
    }
  }

  // An image of `now`; of what is the same in `before` when there is a parent.
  Result<SinkStats> write(uint64_t sequence, const Model& now, const Model* before, const ParentImage& parent,
                          Codec codec = Codec::kNone) {
    arena_.reset();
    SinkOptions options;
    options.codec = codec;
    DirectSink sink(options);
    TestMeta meta({{kBase, kBase + kPages * 4096}});
    // The clocks differ from one checkpoint to the next.
    meta_bytes_.assign(reinterpret_cast<const char*>(meta.writer.span().data()), meta.writer.span().size());
    ProcessRecord process;
    std::memcpy(&process, meta_bytes_.data() + sizeof(RecordHeader), sizeof(process));
    process.realtime_ns = static_cast<int64_t>(sequence);
    std::memcpy(meta_bytes_.data() + sizeof(RecordHeader), &process, sizeof(process));
    ImageIdentity id = identity(sequence);
    id.parent = parent;
    CKPT_TRY(sink.open(dir_fd_.get(), name(sequence).c_str(), id, arena_, count_release, &released_));
    for (size_t first = 0; first < kPages; first += 16) {
      uint64_t mask = 0;
      std::vector<AddrRange> unchanged;
      for (size_t page = first; page < std::min(kPages, first + 16); page++) {
        auto it = now.find(page);
        if (it == now.end()) continue;
        Addr at{kBase + page * 4096};
        if (before != nullptr && before->count(page) != 0 && before->at(page) == it->second) {
          unchanged.push_back({at, at + 4096});
        } else if (it->second != 0) {
          fill_page(pages_.get() + page * 4096, it->second);
          mask |= 1ull << (page - first);
        }
      }
      if (before != nullptr) CKPT_TRY(sink.inherit(unchanged));
      CopiedSegment segment{{kBase + first * 4096}, mask, pages_.get() + first * 4096, 0};
      CKPT_TRY(sink.append({&segment, 1}));
    }
    CKPT_TRY(sink.set_meta(std::as_bytes(std::span(meta_bytes_))));
    return sink.commit();
  }

  void expect(uint64_t sequence, const Model& model) {
    auto chain = ImageChain::open(path(name(sequence)));
    ASSERT_TRUE(chain.ok()) << chain.error().message();
    ASSERT_TRUE(chain->verify_all(1).ok());
    ASSERT_TRUE(chain->verify_used(1).ok());
    Addr last{0};
    for (const MemoryPiece& p : chain->pieces()) {
      ASSERT_GE(p.address, last);
      last = p.address + p.length;
      ASSERT_LE(p.into + p.length, chain->extent_of(p).length);
    }
    SavedMemory memory(*chain);
    std::byte want[4096], have[4096];
    size_t stored = 0;
    for (size_t page = 0; page < kPages; page++) {
      auto it = model.find(page);
      fill_page(want, it == model.end() ? 0 : it->second);
      Addr at{kBase + page * 4096};
      ASSERT_TRUE(memory.read(at, have).ok());
      ASSERT_EQ(std::memcmp(want, have, 4096), 0) << "image " << sequence << " page " << page;
      bool exists = it != model.end() && it->second != 0;
      EXPECT_EQ(memory.stored(at), exists) << "image " << sequence << " page " << page;
      stored += exists;
    }
    EXPECT_EQ(chain->memory_bytes(), stored * 4096);
  }

  // Image 1 full, image 2 an increment in which page 1 is new, page 2 zero, page 3 gone.
  void two_images() {
    Model first, second;
    for (size_t i = 0; i < 6; i++) first[i] = 100 + static_cast<uint32_t>(i);
    second = first;
    second[1] = 7;
    second[2] = 0;
    second.erase(3);
    auto one = write(1, first, nullptr, {});
    ASSERT_TRUE(one.ok()) << one.error().message();
    auto two = write(2, second, &first, one->as_parent);
    ASSERT_TRUE(two.ok()) << two.error().message();
    first_ = first;
    second_ = second;
    parent_ = one->as_parent;
  }
  void refused(uint64_t sequence, ExitCode code, const std::string& words) {
    auto chain = ImageChain::open(path(name(sequence)));
    ASSERT_FALSE(chain.ok());
    EXPECT_EQ(static_cast<int>(chain.error().code), static_cast<int>(code)) << chain.error().message();
    EXPECT_NE(chain.error().message().find(words), std::string_view::npos) << chain.error().message();
  }

  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> pages_;
  std::string meta_bytes_;
  Model first_, second_;
  ParentImage parent_{};
};

TEST_F(Chain, EachImageGivesItsOwnInstant) {
  for (Codec codec : {Codec::kNone, Codec::kLz4, Codec::kZstd}) {
    SCOPED_TRACE(static_cast<int>(codec));
    std::mt19937 random(static_cast<unsigned>(codec) + 1);
    std::vector<Model> models;
    Model model;
    ParentImage parent{};
    for (uint64_t n = 1; n <= 21; n++) {
      for (int change = 0; change < 40; change++) {
        size_t page = random() % kPages, run = 1 + random() % 12;
        uint32_t kind = random() % 4;
        for (size_t p = page; p < std::min(kPages, page + run); p++) {
          if (kind == 0) model.erase(p);
          if (kind == 1) model[p] = 0;
          if (kind >= 2) model[p] = 1 + random() % 1000;
        }
      }
      auto stats = write(n, model, models.empty() ? nullptr : &models.back(), parent, codec);
      ASSERT_TRUE(stats.ok()) << stats.error().message();
      parent = stats->as_parent;
      EXPECT_EQ(parent.chain_length, n);
      models.push_back(model);
    }
    for (uint64_t n = 1; n <= 21; n++) expect(n, models[n - 1]);
    for (uint64_t n = 1; n <= 21; n++) std::filesystem::remove(path(name(n)));
  }
}

TEST_F(Chain, WhatWasGivenBackDoesNotReappear) {
  two_images();
  expect(1, first_);
  expect(2, second_);
  // … not even when an image further on has the page again, as zeros, or inherits it.
  Model third = second_;
  third[3] = 0;
  auto two = ImageChain::open(path(name(2)));
  ASSERT_TRUE(two.ok());
  ParentImage parent = parent_;
  parent.sequence = 2;
  parent.state = two->brief().meta_checksum;
  parent.chain_length = 2;
  std::strcpy(parent.name, name(2).c_str());
  ASSERT_TRUE(write(3, third, &second_, parent).ok());
  ASSERT_TRUE(write(4, third, &third,
                    [&] {
                      auto three = ImageReader::open(path(name(3)));
                      ParentImage p = parent;
                      p.sequence = 3;
                      p.state = three->brief().meta_checksum;
                      p.chain_length = 3;
                      std::strcpy(p.name, name(3).c_str());
                      return p;
                    }())
                  .ok());
  expect(3, third);
  expect(4, third);
}

TEST_F(Chain, ParentsAreKnownByTheirContents) {
  two_images();
  // Renamed: found. Another image under its name: not taken.
  std::filesystem::rename(path(name(1)), path("other.9.abcdef01.000001.ckpt"));
  expect(2, second_);
  std::filesystem::rename(path("other.9.abcdef01.000001.ckpt"), path("hidden"));
  refused(2, ExitCode::kNotFound, name(1));
  refused(2, ExitCode::kNotFound, name(2));
  TestMemory memory(8);
  ASSERT_TRUE(write_image(1, memory).ok());
  refused(2, ExitCode::kImageDamaged, name(1));
  // Damaged: named.
  std::filesystem::rename(path("hidden"), path(name(1)));
  std::string bytes = read_file(path(name(1)));
  write_file(path(name(1)), bytes.substr(0, 4096));
  refused(2, ExitCode::kImageDamaged, name(1));
}

TEST_F(Chain, EveryFlippedByteIsSeen) {
  two_images();
  for (uint64_t spoiled : {2, 1}) {
    const std::string whole = read_file(path(name(spoiled)));
    ASSERT_LT(whole.size(), 64u << 10);
    ScopedFd file(::open(path(name(spoiled)).c_str(), O_RDWR | O_CLOEXEC));
    for (size_t i = 0; i < whole.size(); i++) {
      // Of the parent every fourth: they are those of any full image, which damage_test flips one by one.
      if (spoiled == 1 && i % 4 != 1) continue;
      char byte = static_cast<char>(whole[i] ^ (i % 8 < 4 ? 0x01 : 0xff));
      ASSERT_EQ(pwrite(file.get(), &byte, 1, static_cast<off_t>(i)), 1);
      auto chain = ImageChain::open(path(name(2)));
      ASSERT_TRUE(!chain.ok() || !chain->verify_all(1).ok()) << "image " << spoiled << " byte " << i;
      ASSERT_EQ(pwrite(file.get(), &whole[i], 1, static_cast<off_t>(i)), 1);
    }
    ASSERT_TRUE(ImageChain::open(path(name(2)))->verify_all(1).ok());
  }
}

TEST_F(Chain, EveryLengthIsRefused) {
  two_images();
  for (uint64_t cut : {2, 1}) {
    const std::string whole = read_file(path(name(cut)));
    for (size_t n = whole.size(); n-- > 0;) {
      ASSERT_EQ(truncate(path(name(cut)).c_str(), static_cast<off_t>(n)), 0);
      ASSERT_FALSE(ImageChain::open(path(name(2))).ok()) << "image " << cut << " length " << n;
    }
    write_file(path(name(cut)), whole);
    ASSERT_TRUE(ImageChain::open(path(name(2)))->verify_all(1).ok());
  }
}

// Pages that no later image replaces must be whole for a restart; the rest only for verify.
TEST_F(Chain, DamageInWhatIsReplaced) {
  Model first, second;
  for (size_t i = 0; i < 32; i++) first[i] = 1 + static_cast<uint32_t>(i);
  second = first;
  for (size_t i = 0; i < 16; i++) second[i] = 1000;
  auto one = write(1, first, nullptr, {});
  ASSERT_TRUE(one.ok());
  ASSERT_TRUE(write(2, second, &first, one->as_parent).ok());
  auto full = ImageReader::open(path(name(1)));
  ASSERT_TRUE(full.ok());
  auto spoil = [&](const Extent& e) {
    ScopedFd file(::open(path(name(1)).c_str(), O_RDWR | O_CLOEXEC));
    char byte = 0x55;
    ASSERT_EQ(pwrite(file.get(), &byte, 1, static_cast<off_t>(e.offset.value + 100)), 1);
  };
  ASSERT_EQ(full->extents().size(), 2u);  // of 64 KiB
  spoil(full->extents()[0]);
  auto chain = ImageChain::open(path(name(2)));
  ASSERT_TRUE(chain.ok());
  EXPECT_TRUE(chain->verify_used(2).ok());
  EXPECT_FALSE(chain->verify_all(2).ok());
  spoil(full->extents()[1]);
  auto used = chain->verify_used(2);
  ASSERT_FALSE(used.ok());
  EXPECT_NE(used.error().message().find(name(1)), std::string_view::npos) << used.error().message();
}

TEST_F(Chain, HostileIncrements) {
  two_images();
  const std::string whole = read_file(path(name(2)));
  auto trailer = [&](size_t field) { return whole.size() - kBlockSize + field; };
  uint64_t inherited;
  std::memcpy(&inherited, whole.data() + trailer(offsetof(FileTrailer, inherited_offset)), 8);
  uint64_t run = inherited + kBlockSize;
  struct {
    uint64_t at, value;
    const char* words;
  } cases[] = {
      {run + offsetof(InheritedRun, address), kBase + 1, "impossible address"},
      {run + offsetof(InheritedRun, length), 0, "impossible address"},
      {run + offsetof(InheritedRun, length), ~uint64_t{4095}, "impossible address"},
      {run + offsetof(InheritedRun, length), 2 * 4096, "inherited and in the image"},
      {run + offsetof(InheritedRun, address), kBase + 7 * 4096, "out of order"},
      {run + offsetof(InheritedRun, address), 0x1000, "no saved mapping"},
      {trailer(offsetof(FileTrailer, inherited_bytes)), 17, "impossible size"},
      {trailer(offsetof(FileTrailer, inherited_bytes)), ~uint64_t{15}, "impossible size"},
      {trailer(offsetof(FileTrailer, inherited_bytes)), 16, "not what the trailer says"},
      {trailer(offsetof(FileTrailer, inherited_offset)), 0, "outside the file"},
      {trailer(offsetof(FileTrailer, inherited_offset)), kBlockSize, ""},
      {inherited + offsetof(SectionHead, kind), 3, "not what the trailer says"},
      {offsetof(FileHeader, parent) + offsetof(ParentImage, sequence), 0, "place in the sequence"},
      {offsetof(FileHeader, parent) + offsetof(ParentImage, sequence), 2, "place in the sequence"},
      {offsetof(FileHeader, parent) + offsetof(ParentImage, chain_length), 256, "place in the sequence"},
      {offsetof(FileHeader, parent) + offsetof(ParentImage, name), 0x2f2f2f2f2f2f2f2f,
       "place in the sequence"},
      {offsetof(FileHeader, parent) + offsetof(ParentImage, name) + 88, 0x4141414141414141,
       "place in the sequence"},
      {offsetof(FileHeader, parent) + offsetof(ParentImage, state), 5, "not the image"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(fmt::format("{:#x} = {:#x}", c.at, c.value));
    std::string bytes = whole;
    std::memcpy(bytes.data() + c.at, &c.value, 8);
    reseal(bytes);
    write_file(path(name(2)), bytes);
    refused(2, ExitCode::kImageDamaged, c.words);
  }
}

TEST_F(Chain, WhatTheWriterRefuses) {
  two_images();
  auto refuse = [&](const ParentImage& parent, auto fill, const char* words) {
    arena_.reset();
    DirectSink sink;
    ImageIdentity id = identity(3);
    id.parent = parent;
    TestMeta meta({{kBase, kBase + kPages * 4096}});
    auto result = [&]() -> Result<void> {
      CKPT_TRY(sink.open(dir_fd_.get(), name(3).c_str(), id, arena_, count_release, &released_));
      CKPT_TRY(fill(sink));
      CKPT_TRY(sink.set_meta(meta.writer.span()));
      auto stats = sink.commit();
      if (!stats.ok()) return stats.error();
      return {};
    }();
    sink.abort();
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().message().find(words), std::string_view::npos) << result.error().message();
    EXPECT_FALSE(exists(name(3)));
    EXPECT_FALSE(exists(name(3) + ".tmp"));
  };
  AddrRange page{{kBase + 4096}, {kBase + 2 * 4096}}, two_pages{{kBase}, {kBase + 2 * 4096}};
  fill_page(pages_.get(), 1);
  fill_page(pages_.get() + 4096, 1);
  CopiedSegment segment{{kBase}, 0b11, pages_.get(), 0};
  refuse(
      {},
      [&](DirectSink& s) {
        return s.inherit({&page, 1});
      },
      "a full image inherits nothing");
  refuse(
      parent_,
      [&](DirectSink& s) -> Result<void> {
        CKPT_TRY(s.inherit({&page, 1}));
        return s.append({&segment, 1});
      },
      "twice");
  refuse(
      parent_,
      [&](DirectSink& s) -> Result<void> {
        CKPT_TRY(s.inherit({&page, 1}));
        return s.inherit({&two_pages, 1});
      },
      "twice");
  ParentImage long_chain = parent_, later = parent_;
  long_chain.chain_length = kMaxChainLength + 1;
  later.sequence = 3;
  refuse(
      long_chain, [&](DirectSink&) { return Result<void>(); }, "cannot be an increment");
  refuse(
      later, [&](DirectSink&) { return Result<void>(); }, "cannot be an increment");
}

TEST_F(Chain, WhenAFullImageIsDue) {
  ParentImage parent{};
  EXPECT_FALSE(chain_may_grow(parent, 20));
  parent.sequence = 1;
  parent.chain_length = 1;
  parent.full_bytes = parent.chain_bytes = 1000;
  EXPECT_TRUE(chain_may_grow(parent, 20));
  EXPECT_FALSE(chain_may_grow(parent, 1));
  parent.chain_length = 20;
  EXPECT_FALSE(chain_may_grow(parent, 20));
  parent.chain_length = 5;
  parent.chain_bytes = 2000;
  EXPECT_TRUE(chain_may_grow(parent, 20));
  parent.chain_bytes = 2001;
  EXPECT_FALSE(chain_may_grow(parent, 20));

  two_images();
  EXPECT_TRUE(parent_is_whole(dir_fd_.get(), kRunId, parent_));
  ParentImage other = parent_;
  other.state++;
  EXPECT_FALSE(parent_is_whole(dir_fd_.get(), kRunId, other));
  std::filesystem::remove(path(name(1)));
  EXPECT_FALSE(parent_is_whole(dir_fd_.get(), kRunId, parent_));
}

// A program prunes while its images are read: one that is there has its parents.
TEST_F(Chain, IsOpenedWhileOldImagesAreRemoved) {
  ASSERT_TRUE(write_image(1, TestMemory(2)).ok());
  ASSERT_TRUE(write_image(2, TestMemory(2), ~0ull, {}, 1).ok());
  ASSERT_TRUE(write_image(3, TestMemory(2)).ok());
  for (uint64_t i : {1, 2}) std::filesystem::rename(path(name(i)), path("saved" + std::to_string(i)));
  std::atomic<bool> over{false};
  std::thread prunes([&] {
    ScopedFd directory(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    while (!over) {
      for (uint64_t i : {1, 2}) (void)!link(path("saved" + std::to_string(i)).c_str(), path(name(i)).c_str());
      EXPECT_TRUE(prune_images(directory.get(), kRunId, 1).ok());
    }
  });
  uint32_t opened = 0;
  std::string wrong;
  while (opened < 500 && wrong.empty()) {
    auto chain = ImageChain::open(path(name(2)));
    if (chain.ok())
      opened++;
    else if (chain.error().code != ExitCode::kNotFound ||
             chain.error().message().find("bring that file back") != std::string_view::npos)
      wrong = chain.error().text;
  }
  over = true;
  prunes.join();
  EXPECT_EQ(wrong, "") << "after " << opened;
}

}  // namespace
}  // namespace ckpt
