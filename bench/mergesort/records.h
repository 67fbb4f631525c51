// The records that are sorted: key, number, and a payload that follows from both, so that a record
// proves itself.
//
// Owner:     bench/mergesort and bench/bubblesort. Header only.
// Callers:   any thread, on disjoint records.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>

#include "bench/common.h"

namespace bench {

inline constexpr uint64_t kSmallestRecord = 16;    // bytes: key and number
inline constexpr uint64_t kLargestRecord = 65536;  // bytes

// `count` records of `record_size` bytes, one after the other.
class RecordArray {
 public:
  RecordArray(uint64_t count, uint64_t record_size) : count_(count), record_size_(record_size) {
    if (record_size < kSmallestRecord || record_size > kLargestRecord || record_size % 8 != 0) {
      throw std::invalid_argument(fmt::format("--record-size must be a multiple of 8 from {} to {}",
                                              kSmallestRecord, kLargestRecord));
    }
    if (count == 0) throw std::invalid_argument("there must be at least one record");
    if (count > (uint64_t{1} << 46) / record_size) throw std::bad_alloc();
    bytes_ = new std::byte[count * record_size];
  }
  ~RecordArray() { delete[] bytes_; }
  RecordArray(const RecordArray&) = delete;
  RecordArray& operator=(const RecordArray&) = delete;

  uint64_t count() const { return count_; }
  uint64_t record_size() const { return record_size_; }
  std::byte* at(uint64_t i) { return bytes_ + i * record_size_; }
  const std::byte* at(uint64_t i) const { return bytes_ + i * record_size_; }
  uint64_t key(uint64_t i) const { return load(at(i)); }

  static uint64_t load(const std::byte* p) {
    uint64_t v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  // Order by key, then by number: a total order, so that the sorted result is unique.
  static bool before(const std::byte* a, const std::byte* b) {
    uint64_t ka = load(a), kb = load(b);
    return ka != kb ? ka < kb : load(a + 8) < load(b + 8);
  }

  // Writes record `number` of the stream `seed` to slot i.
  void fill(uint64_t i, uint64_t number, uint64_t seed) {
    std::byte* p = at(i);
    uint64_t key = mix(mix(seed) ^ number);
    std::memcpy(p, &key, 8);
    std::memcpy(p + 8, &number, 8);
    for (uint64_t word = 2; word * 8 < record_size_; ++word) {
      uint64_t v = payload(key, number, word);
      std::memcpy(p + word * 8, &v, 8);
    }
  }
  // Is slot i one whole record of the stream `seed`?
  bool whole(uint64_t i, uint64_t seed) const {
    const std::byte* p = at(i);
    uint64_t key = load(p), number = load(p + 8);
    if (number >= count_ || key != mix(mix(seed) ^ number)) return false;
    for (uint64_t word = 2; word * 8 < record_size_; ++word) {
      if (load(p + word * 8) != payload(key, number, word)) return false;
    }
    return true;
  }

 private:
  static uint64_t payload(uint64_t key, uint64_t number, uint64_t word) {
    return (key ^ (number * 0xd1342543de82ef95u)) * (2 * word + 1) + word;
  }

  uint64_t count_;
  uint64_t record_size_;
  std::byte* bytes_ = nullptr;
};

// What is wrong with records that should be sorted and complete; empty when nothing is.
inline std::string first_fault(const RecordArray& records, uint64_t seed, unsigned threads) {
  std::vector<std::string> faults(threads);
  std::vector<uint64_t> number_sums(threads);
  run_threads(threads, [&](unsigned t) {
    Share share = share_of(records.count(), t, threads);
    uint64_t sum = 0;
    for (uint64_t i = share.first; i < share.last; ++i) {
      if (!records.whole(i, seed)) {
        faults[t] = fmt::format("record {} is damaged", i);
        return;
      }
      if (i > 0 && !RecordArray::before(records.at(i - 1), records.at(i))) {
        faults[t] = fmt::format("records {} and {} are not in order", i - 1, i);
        return;
      }
      sum += mix(RecordArray::load(records.at(i) + 8));
    }
    number_sums[t] = sum;
  });
  uint64_t sum = 0, expected = 0;
  for (unsigned t = 0; t < threads; ++t) {
    if (!faults[t].empty()) return faults[t];
    sum += number_sums[t];
  }
  for (uint64_t i = 0; i < records.count(); ++i) expected += mix(i);
  return sum == expected ? "" : "a record is there twice and another is missing";
}

}  // namespace bench
