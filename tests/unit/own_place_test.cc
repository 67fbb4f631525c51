#include "base/memory/own_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>

namespace ckpt {
namespace {

constexpr int kProtection = PROT_READ | PROT_WRITE, kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

#if defined(__SANITIZE_THREAD__)
// It knows no memory there.
constexpr bool kHasPlaces = false;
#else
constexpr bool kHasPlaces = true;
#endif

class OwnPlace : public testing::Test {
  void SetUp() override {
    if (!kHasPlaces) GTEST_SKIP() << "the thread sanitizer knows no memory in these places";
  }
};

bool is_far(long at) {
  return std::ranges::any_of(std::initializer_list<uint64_t>{kOwnPlaces, kOtherPlaces[0], kOtherPlaces[1]},
                             [at](uint64_t region) {
                               const auto place = static_cast<uint64_t>(at);
                               return place >= region && place < region + 0x0300'0000'0000;
                             });
}

TEST_F(OwnPlace, IsFarFromWhatTheKernelPlaces) {
  for (const uint64_t bytes : {1ul, 4096ul, 1ul << 16, 517ul << 20, 1ul << 33}) {
    const long at = map_own(bytes, kProtection, kFlags);
    ASSERT_FALSE(sys::failed(at));
    EXPECT_TRUE(is_far(at)) << std::hex << at;
    munmap(reinterpret_cast<void*>(at), bytes);
  }
}

TEST_F(OwnPlace, IsAnotherOneEachTimeAndApart) {
  const uint64_t first = next_own_place(3 * kPageSize), second = next_own_place(4 << 20),
                 third = next_own_place(1);
  EXPECT_GT(second, first + 3 * kPageSize);
  EXPECT_EQ(second % (2 << 20), 0);
  EXPECT_GT(third, second + (4 << 20));
}

// The places begin anew after a tebibyte, where something of ours may be.
TEST_F(OwnPlace, PassesOverWhatIsThere) {
  constexpr uint64_t kBytes = 4 << 20;
  const uint64_t next = next_own_place(kBytes) + 4 * kBytes;
  void* there = mmap(reinterpret_cast<void*>(next - 4 * kBytes), 8 * kBytes, PROT_NONE,
                     kFlags | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(reinterpret_cast<uint64_t>(there), next - 4 * kBytes);
  const long at = map_own(kBytes, kProtection, kFlags);
  ASSERT_FALSE(sys::failed(at));
  EXPECT_TRUE(is_far(at)) << std::hex << at;
  EXPECT_FALSE(static_cast<uint64_t>(at) < next + 4 * kBytes &&
               static_cast<uint64_t>(at) + kBytes > next - 4 * kBytes);
  munmap(reinterpret_cast<void*>(at), kBytes);
  munmap(there, 8 * kBytes);
}

// A program may have taken a whole region, as address sanitizers do.
TEST_F(OwnPlace, LeavesARegionThatIsTaken) {
  constexpr uint64_t kAll = 0x0400'0000'0000;
  void* there =
      mmap(reinterpret_cast<void*>(kOwnPlaces), kAll, PROT_NONE, kFlags | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(reinterpret_cast<uint64_t>(there), kOwnPlaces);
  const long at = map_own(kPageSize, kProtection, kFlags);
  ASSERT_FALSE(sys::failed(at));
  EXPECT_TRUE(static_cast<uint64_t>(at) < kOwnPlaces || static_cast<uint64_t>(at) >= kOwnPlaces + kAll);
  EXPECT_TRUE(is_far(at)) << std::hex << at;
  munmap(reinterpret_cast<void*>(at), kPageSize);
  munmap(there, kAll);
}

TEST_F(OwnPlace, SaysWhyNothingCanBeMapped) {
  EXPECT_EQ(map_own(0, kProtection, kFlags), -EINVAL);
  EXPECT_EQ(map_own(uint64_t{1} << 48, kProtection, kFlags), -ENOMEM);
}

}  // namespace
}  // namespace ckpt
