// Every pattern of lost blocks: what a code says it can compute it computes, byte for byte; what it cannot it
// refuses and leaves alone.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "cluster/redundancy/code.h"

namespace ckpt::redundancy {
namespace {

class Stripe {
 public:
  Stripe(const Code& code, size_t bytes, uint32_t seed) : code_(code), bytes_(bytes) {
    std::mt19937_64 random(seed);
    const unsigned all = code.data() + code.checks();
    for (unsigned i = 0; i < all; ++i) {
      auto* block = static_cast<std::byte*>(std::aligned_alloc(Code::kAlignment, bytes));
      for (size_t b = 0; b < bytes; ++b) block[b] = static_cast<std::byte>(random());
      blocks_.push_back(block);
    }
  }
  ~Stripe() {
    for (std::byte* block : blocks_) std::free(block);
  }
  Stripe(const Stripe&) = delete;

  std::span<const std::byte* const> data() const { return {blocks_.data(), code_.data()}; }
  Blocks checks() const { return {blocks_.data() + code_.data(), code_.checks()}; }
  Blocks all() const { return blocks_; }
  void encode() { code_.encode(data(), checks(), bytes_); }
  std::vector<std::vector<std::byte>> contents() const {
    std::vector<std::vector<std::byte>> copies;
    for (const std::byte* block : blocks_) copies.emplace_back(block, block + bytes_);
    return copies;
  }
  std::vector<uint64_t> sums() const {
    std::vector<uint64_t> sums;
    for (const std::byte* block : blocks_) sums.push_back(checksum({block, bytes_}));
    return sums;
  }

 private:
  const Code& code_;
  const size_t bytes_;
  std::vector<std::byte*> blocks_;
};

std::unique_ptr<Code> make(const char* text, unsigned data) {
  auto scheme = parse_scheme(text, data);
  EXPECT_TRUE(scheme.ok());
  auto code = Code::make(*scheme);
  EXPECT_TRUE(code.ok());
  return std::move(*code);
}

struct Case {
  const char* scheme;
  unsigned data;
};
class Codes : public testing::TestWithParam<Case> {};

TEST_P(Codes, EveryPatternOfLostBlocks) {
  const auto code = make(GetParam().scheme, GetParam().data);
  const size_t bytes = code->multiple() * 3;
  Stripe stripe(*code, bytes, 1);
  stripe.encode();
  const auto whole = stripe.contents();
  const unsigned all = code->data() + code->checks();
  ASSERT_LE(all, 16u);
  unsigned recovered = 0;
  for (uint32_t pattern = 0; pattern < 1u << all; ++pattern) {
    std::vector<bool> lost(all);
    for (unsigned i = 0; i < all; ++i) {
      lost[i] = (pattern >> i & 1) != 0;
      if (lost[i]) std::memset(stripe.all()[i], 0xee, bytes);
    }
    const auto count = static_cast<unsigned>(std::popcount(pattern));
    const bool can = code->can_recover(lost);
    if (count <= survives(code->scheme())) {
      EXPECT_TRUE(can) << pattern;
    }
    const auto before = stripe.contents();
    const auto result = code->recover(stripe.all(), lost, bytes);
    ASSERT_EQ(result.ok(), can);
    if (can) {
      ++recovered;
      ASSERT_EQ(stripe.contents(), whole) << "pattern " << pattern;
    } else {
      EXPECT_EQ(stripe.contents(), before);
      for (unsigned i = 0; i < all; ++i) std::memcpy(stripe.all()[i], whole[i].data(), bytes);
    }
  }
  EXPECT_GT(recovered, all);
}

TEST_P(Codes, DifferencesGiveWhatEncodingGives) {
  const auto code = make(GetParam().scheme, GetParam().data);
  const size_t bytes = code->multiple() * 5;
  Stripe stripe(*code, bytes, 2);
  stripe.encode();
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const unsigned changed = random() % code->data();
    const size_t offset = random() % bytes, length = 1 + random() % (bytes - offset);
    std::vector<std::byte> difference(length);
    for (size_t i = 0; i < length; ++i) {
      difference[i] = static_cast<std::byte>(random());
      stripe.all()[changed][offset + i] ^= difference[i];
    }
    code->update(changed, difference.data(), offset, length, stripe.checks(), bytes);
  }
  const auto updated = stripe.contents();
  stripe.encode();
  EXPECT_EQ(stripe.contents(), updated);
}

TEST_P(Codes, SpoiledBlocksCountAsLost) {
  const auto code = make(GetParam().scheme, GetParam().data);
  const size_t bytes = code->multiple();
  Stripe stripe(*code, bytes, 4);
  stripe.encode();
  const auto whole = stripe.contents();
  const auto sums = stripe.sums();
  const unsigned all = code->data() + code->checks();
  for (unsigned i = 0; i < all; ++i) {
    stripe.all()[i][bytes / 2] ^= std::byte{1};
    const auto now = stripe.sums();
    std::vector<bool> lost(all);
    for (unsigned j = 0; j < all; ++j) lost[j] = now[j] != sums[j];
    for (unsigned j = 0; j < all; ++j) EXPECT_EQ(lost[j], j == i);
    ASSERT_TRUE(code->recover(stripe.all(), lost, bytes).ok());
    EXPECT_EQ(stripe.contents(), whole);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Codes,
                         testing::Values(Case{"mirror", 1}, Case{"mirror", 4}, Case{"parity", 1},
                                         Case{"parity", 4}, Case{"parity", 7}, Case{"parity:2", 5},
                                         Case{"parity:3", 9}, Case{"evenodd", 1}, Case{"evenodd", 2},
                                         Case{"evenodd", 3}, Case{"evenodd", 4}, Case{"evenodd", 5},
                                         Case{"evenodd", 6}, Case{"evenodd", 11}, Case{"rs:1+1", 0},
                                         Case{"rs:4+1", 0}, Case{"rs:4+2", 4}, Case{"rs:4+3", 0},
                                         Case{"rs:10+4", 0}),
                         [](const testing::TestParamInfo<Case>& of) {
                           std::string name = fmt::format("{}_{}", of.param.scheme, of.param.data);
                           for (char& c : name) {
                             if (isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           }
                           return name;
                         });

TEST(Scheme, WrongWordsAreNamed) {
  for (const char* text : {"", "raid", "rs", "rs:4", "rs:4+", "rs:+2", "rs:0+2", "rs:4+0", "rs:300+2",
                           "parity:0", "parity:5", "parity:x", "mirror:2", "evenodd:2", "rs:5+2"}) {
    const auto scheme = parse_scheme(text, 4);
    ASSERT_FALSE(scheme.ok()) << text;
    EXPECT_EQ(scheme.error().code, ExitCode::kUsage);
    EXPECT_NE(scheme.error().message().find("rs:4+2"), std::string_view::npos);
  }
}

TEST(Scheme, NamesComeBack) {
  for (const char* text : {"mirror", "parity", "parity:2", "evenodd", "rs:4+2"}) {
    auto scheme = parse_scheme(text, 4);
    ASSERT_TRUE(scheme.ok());
    EXPECT_EQ(scheme_name(*scheme), text);
  }
}

}  // namespace
}  // namespace ckpt::redundancy
