#include "image/write/repeated_segments.h"

#include <algorithm>
#include <cstring>

#include "base/sys.h"
#include "base/preload_rules.h"

namespace ckpt {

size_t RepeatedSegments::arena_bytes() {
  // Each table is twice as long as the one before, which stays behind.
  return 2 * kMostPlaces * sizeof(uint32_t) + kWindows * kWindowBytes + kCopies * kCopyBytes + 4 * kPageSize;
}

bool RepeatedSegments::start(int fd, const ArenaVector<IndexEntry>& index, Arena& arena) {
  fd_ = fd;
  arena_ = &arena;
  uses_ = 0;
  cache_next_ = false;
  place_count_ = kLeastPlaces;
  places_ = static_cast<uint32_t*>(arena.allocate(kLeastPlaces * sizeof(uint32_t)));
  auto* room =
      static_cast<std::byte*>(arena.allocate(kWindows * kWindowBytes + kCopies * kCopyBytes, kPageSize));
  if (places_ == nullptr || room == nullptr) return false;
  for (CachedBytes& k : windows_) {
    k = {room, 0, 0, kWindowBytes, 0};
    room += kWindowBytes;
  }
  for (CachedBytes& k : copies_) {
    k = {room, 0, 0, kCopyBytes, 0};
    room += kCopyBytes;
  }
  index_ = &index;
  return true;
}

uint64_t RepeatedSegments::candidate(const IndexEntry& like) {
  cache_next_ = false;
  for (uint32_t place : places_of(like.checksum)) {
    if (place == 0) continue;
    const IndexEntry& known = (*index_)[place - 1];
    if (known.checksum == like.checksum && known.length == like.length && known.stored == like.stored &&
        known.codec == like.codec) {
      return known.offset;
    }
  }
  return 0;
}

bool RepeatedSegments::same(uint64_t place, std::span<const std::byte> bytes, uint64_t written) {
  const std::byte* there = find_cached(place, bytes.size());
  if (there == nullptr && place + bytes.size() > written) {
    cache_next_ = bytes.size() <= kCopyBytes;
    return false;
  }
  if (there == nullptr) there = read_back(place, bytes.size(), written);
  return there != nullptr && std::memcmp(there, bytes.data(), bytes.size()) == 0;
}

void RepeatedSegments::remember(std::span<const std::byte> bytes) {
  const size_t count = index_->size();
  if (count > place_count_ / 2 && place_count_ < kMostPlaces) grow();
  const IndexEntry& stored = (*index_)[count - 1];
  enter(static_cast<uint32_t>(count));
  if (!cache_next_) return;
  cache_next_ = false;
  CachedBytes& copy = oldest(copies_);
  std::memcpy(copy.at, bytes.data(), bytes.size());
  copy.offset = stored.offset;
  copy.bytes = static_cast<uint32_t>(bytes.size());
  copy.last_use = ++uses_;
}

const std::byte* RepeatedSegments::find_cached(uint64_t offset, uint64_t bytes) {
  for (std::span<CachedBytes> of : {std::span<CachedBytes>(copies_), std::span<CachedBytes>(windows_)}) {
    for (CachedBytes& k : of) {
      if (offset < k.offset || offset - k.offset > k.bytes || bytes > k.bytes - (offset - k.offset)) continue;
      k.last_use = ++uses_;
      return k.at + (offset - k.offset);
    }
  }
  return nullptr;
}

const std::byte* RepeatedSegments::read_back(uint64_t offset, uint64_t bytes, uint64_t written) {
  if (bytes > kWindowBytes) return nullptr;
  CachedBytes& window = oldest(windows_);
  const uint64_t want = std::min<uint64_t>(window.room, written - offset);
  window.bytes = 0;
  const long n = sys::call(__NR_pread64, fd_, window.at, want, offset);
  if (n < 0 || static_cast<uint64_t>(n) < bytes) return nullptr;
  window.offset = offset;
  window.bytes = static_cast<uint32_t>(n);
  window.last_use = ++uses_;
  return window.at;
}

RepeatedSegments::CachedBytes& RepeatedSegments::oldest(std::span<CachedBytes> of) {
  return *std::min_element(of.begin(), of.end(), [](const CachedBytes& a, const CachedBytes& b) {
    return a.last_use < b.last_use;
  });
}

// An entry of the same checksum gives way first: of the newer one the bytes are cached.
void RepeatedSegments::enter(uint32_t place) {
  const uint64_t checksum = (*index_)[place - 1].checksum;
  std::span<uint32_t> places = places_of(checksum);
  uint32_t* into = &places[0];
  for (uint32_t& p : places) {
    if (p != 0 && (*index_)[p - 1].checksum == checksum) {
      into = &p;
      break;
    }
    if (p < *into) into = &p;
  }
  *into = place;
}

// Where there is no memory for a longer table the old one goes on forgetting.
void RepeatedSegments::grow() {
  auto* grown = static_cast<uint32_t*>(arena_->allocate(2 * place_count_ * sizeof(uint32_t)));
  if (grown == nullptr) return;
  const std::span<const uint32_t> before(places_, place_count_);
  places_ = grown;
  place_count_ *= 2;
  for (uint32_t place : before) {
    if (place != 0) enter(place);
  }
}

}  // namespace ckpt
