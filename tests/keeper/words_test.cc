// Files as differences of words from older ones: what comes back is the file, whatever has changed; bytes
// that are no differences are refused.
#include "cluster/keeper/word_differences.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/raii_fd.h"
#include "cluster/keeper/part_stream.h"

namespace ckpt::keeper {
namespace {

using Bytes = std::vector<std::byte>;

ScopedFd file_of(const Bytes& bytes) {
  ScopedFd fd(memfd_create("words", MFD_CLOEXEC));
  EXPECT_EQ(pwrite(fd.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return fd;
}

Bytes bytes_of(const ScopedFd& fd, size_t bytes) {
  Bytes all(bytes);
  EXPECT_EQ(pread(fd.get(), all.data(), bytes, 0), static_cast<ssize_t>(bytes));
  return all;
}

class Words : public ::testing::Test {
 protected:
  Bytes random_bytes(size_t blocks) {
    Bytes bytes(blocks * kWordsBlock);
    for (size_t i = 0; i < bytes.size(); i += 8) {
      const uint64_t word = random_();
      memcpy(bytes.data() + i, &word, 8);
    }
    return bytes;
  }
  // The older ones are called "a/0", "a/1".
  Bytes make(const Bytes& now, const std::vector<Bytes>& then, const std::vector<OldPlace>& old,
             uint64_t most) {
    sources_.clear();
    std::vector<int> fds;
    std::vector<std::string> names;
    for (const Bytes& bytes : then) {
      names.push_back("a/" + std::to_string(sources_.size()));
      sources_.push_back(file_of(bytes));
      fds.push_back(sources_.back().get());
    }
    const ScopedFd file = file_of(now);
    stats_ = {};
    const ScopedFd to(memfd_create("differences", MFD_CLOEXEC));
    auto length = write_words(file.get(), now.size(), fds, names, old, most, to.get(), 100, &stats_);
    EXPECT_TRUE(length.ok());
    Bytes words(*length);
    EXPECT_EQ(pread(to.get(), words.data(), words.size(), 100), static_cast<ssize_t>(words.size()));
    return words;
  }
  static ReadWords reading(const Bytes& words) {
    return [&words](uint64_t at, std::span<std::byte> part) -> Result<void> {
      memcpy(part.data(), words.data() + at, part.size());
      return {};
    };
  }
  OpenSource opening() {
    return [this](const std::string& name) {
      const size_t n = name.size() == 3 && name.starts_with("a/") ? static_cast<size_t>(name[2] - '0') : 9;
      return n < sources_.size() ? fcntl(sources_[n].get(), F_DUPFD_CLOEXEC, 3) : -1;
    };
  }
  Result<void> write(const Bytes& words, const ScopedFd& to, uint64_t bytes) {
    return write_from_words(words.size(), reading(words), to.get(), bytes, opening());
  }
  void comes_back(const Bytes& now, const Bytes& words) {
    const ScopedFd to(memfd_create("again", MFD_CLOEXEC));
    const auto done = write(words, to, now.size());
    ASSERT_TRUE(done.ok()) << done.error().message();
    EXPECT_TRUE(bytes_of(to, now.size()) == now);
    EXPECT_EQ(*checksum_of(to.get()), stats_.sum);
  }

  std::mt19937_64 random_{5};
  std::vector<ScopedFd> sources_;
  WordsStats stats_;
};

TEST_F(Words, ABlockIsItsChangedWords) {
  const Bytes then = random_bytes(1);
  for (const std::vector<unsigned>& changed :
       {std::vector<unsigned>{}, {0}, {511}, {7, 8}, {0, 1, 2, 3, 4, 5, 6, 7}, {63, 64, 200, 448}}) {
    Bytes now = then, words;
    for (const unsigned w : changed) now[w * 8 + 3] ^= std::byte{1};
    EXPECT_EQ(append_words(now, then, words), changed.size());
    EXPECT_LE(words.size(), 8 + changed.size() * 9);
  }
}

TEST_F(Words, FilesComeBack) {
  const std::vector<Bytes> then{random_bytes(200), random_bytes(90)};
  Bytes now = random_bytes(300);
  // Places of both, one longer than a run, and blocks that no older one has.
  const std::vector<OldPlace> old{{2 * kWordsBlock, 150 * kWordsBlock, 0, 50 * kWordsBlock},
                                  {152 * kWordsBlock, kWordsBlock, 1, 0},
                                  {200 * kWordsBlock, 80 * kWordsBlock, 1, 7 * kWordsBlock}};
  for (const OldPlace& o : old) memcpy(now.data() + o.at, then[o.source].data() + o.at_source, o.bytes);
  const Bytes same = make(now, then, old, now.size());
  EXPECT_EQ(stats_.changed, 0u);
  EXPECT_LT(same.size(), 70 * kWordsBlock);
  comes_back(now, same);
  for (const OldPlace& o : old) {
    for (uint64_t at = o.at; at < o.at + o.bytes; at += 3 * kWordsBlock)
      now[at + random_() % kWordsBlock] ^= std::byte{4};
  }
  const Bytes some = make(now, then, old, now.size());
  EXPECT_EQ(stats_.changed, stats_.words);
  EXPECT_EQ(stats_.changed, 50u + 1 + 27);
  EXPECT_EQ(some.size(), same.size() + stats_.changed * (8 + 1 + 8));
  comes_back(now, some);
}

TEST_F(Words, WhatWouldBeLongerIsLeftAsItIs) {
  const std::vector<Bytes> then{random_bytes(1000)};
  const Bytes now = random_bytes(1000);
  const std::vector<OldPlace> old{{0, now.size(), 0, 0}};
  EXPECT_TRUE(make(now, then, old, now.size() / 4 * 3).empty());
  EXPECT_EQ(stats_.blocks, 0u);  // a look was enough
  // What a look cannot tell.
  Bytes half = then[0];
  for (size_t b = 0; b < 1000; ++b) {
    if (b * 32 % 1000 >= 600)
      memcpy(half.data() + b * kWordsBlock, now.data() + b * kWordsBlock, kWordsBlock);
  }
  EXPECT_TRUE(make(half, then, old, half.size() / 10).empty());
  EXPECT_TRUE(make(now, then, {}, now.size() - 1).empty());
  // Too many without an older one: nothing is read or written, however few blocks have one.
  EXPECT_TRUE(make(now, then, {{0, kWordsBlock, 0, 0}}, now.size() / 4 * 3).empty());
  EXPECT_EQ(stats_.blocks, 0u);
}

// A part has one descriptor for each file, and one for all differences.
TEST_F(Words, AStreamHasThemInPlaceOfFiles) {
  std::string directory = "/tmp/ckpt-words-XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  const auto write_file = [&](const char* name, const std::string& text) {
    std::ofstream(directory + "/" + name) << text;
  };
  for (const char* name : {"1.ckpt", "2.ckpt", "3.ckpt"}) write_file(name, std::string(name) + " whole");
  write_file("words", "---12");
  const ScopedFd inside(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const ScopedFd words(open((directory + "/words").c_str(), O_RDONLY | O_CLOEXEC));
  unlink((directory + "/words").c_str());
  auto stream = PartStream::open(inside.get());
  ASSERT_TRUE(stream.ok());
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = descriptors();
  PartFile first = stream->files()[0], third = stream->files()[2];
  first.words = third.words = 1;
  ASSERT_TRUE(stream->set_words({first, third}, {words.get(), 3}).ok());
  EXPECT_EQ(descriptors(), before);
  std::string text(stream->bytes(), ' ');
  ASSERT_TRUE(stream->read(0, std::as_writable_bytes(std::span(text))).ok());
  EXPECT_EQ(text, "12.ckpt whole2");
  first.words = UINT64_MAX;
  EXPECT_FALSE(stream->set_words({first}, {words.get(), 3}).ok());
  std::filesystem::remove_all(directory);
}

TEST_F(Words, DamagedOnesAreRefusedOrComeToAnotherFile) {
  const std::vector<Bytes> then{random_bytes(70)};
  Bytes now = then[0];
  for (size_t at = 0; at < now.size(); at += 5000) now[at] ^= std::byte{1};
  const Bytes words = make(now, then, {{0, 69 * kWordsBlock, 0, 0}}, now.size());
  comes_back(now, words);
  const ScopedFd to(memfd_create("again", MFD_CLOEXEC));
  for (const size_t length : {size_t{0}, size_t{10}, words.size() / 2, words.size() - 1})
    EXPECT_FALSE(write({words.begin(), words.begin() + static_cast<ptrdiff_t>(length)}, to, now.size()).ok());
  EXPECT_FALSE(write(words, to, now.size() + kWordsBlock).ok());
  Bytes longer = words;
  longer.push_back({});
  EXPECT_FALSE(write(longer, to, now.size()).ok());
  for (int i = 0; i < 3000; ++i) {
    Bytes other = words;
    other[random_() % 200] ^= static_cast<std::byte>(1 + random_() % 255);
    (void)write(other, to, now.size());  // whatever comes of it, it ends
  }
  sources_.clear();
  const auto done = write(words, to, now.size());
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ExitCode::kNotFound);
}

}  // namespace
}  // namespace ckpt::keeper
