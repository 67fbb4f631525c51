#include "bench/mergesort/parallel_merge_sort.h"

#include <algorithm>

namespace bench {

namespace {
constexpr uint64_t kInsertionLimit = 12;  // records; below, insertion sort is faster than merging
}

ParallelMergeSort::ParallelMergeSort(RecordArray& records, unsigned threads)
    : records_(records), threads_(static_cast<unsigned>(std::min<uint64_t>(threads, records.count()))) {
  // A thread merges at most its share of the array at a time, give or take one record. A merge needs room for
  // the shorter of the two runs.
  uint64_t share = records.count() / threads_ + 2;
  scratch_.resize(threads_);
  for (auto& s : scratch_) s.resize((share / 2 + 1) * records.record_size());
}

void ParallelMergeSort::sort() {
  run_threads(threads_, [this](unsigned t) {
    Share share = share_of(records_.count(), t, threads_);
    sort_range(share.first, share.last, scratch_[t]);
  });
  sort_parts(0, threads_);
}

void ParallelMergeSort::sort_parts(unsigned first_part, unsigned last_part) {
  if (last_part - first_part < 2) return;
  unsigned middle = first_part + (last_part - first_part) / 2;
  std::thread right([&] { sort_parts(middle, last_part); });
  sort_parts(first_part, middle);
  right.join();
  merge_parallel(share_of(records_.count(), first_part, threads_).first,
                 share_of(records_.count(), middle, threads_).first,
                 share_of(records_.count(), last_part - 1, threads_).last, first_part, last_part);
}

void ParallelMergeSort::sort_range(uint64_t first, uint64_t last, Scratch& scratch) {
  if (last - first <= kInsertionLimit) {
    insertion_sort(first, last, scratch);
    return;
  }
  uint64_t middle = first + (last - first) / 2;
  sort_range(first, middle, scratch);
  sort_range(middle, last, scratch);
  merge(first, middle, last, scratch);
}

void ParallelMergeSort::insertion_sort(uint64_t first, uint64_t last, Scratch& scratch) {
  for (uint64_t i = first + 1; i < last; ++i) {
    uint64_t to = i;
    while (to > first && RecordArray::before(records_.at(i), records_.at(to - 1))) --to;
    if (to == i) continue;
    copy(scratch.data(), records_.at(i), 1);
    copy(records_.at(to + 1), records_.at(to), i - to);
    copy(records_.at(to), scratch.data(), 1);
  }
}

void ParallelMergeSort::merge(uint64_t first, uint64_t middle, uint64_t last, Scratch& scratch) {
  if (first == middle || middle == last) return;
  if (!RecordArray::before(records_.at(middle), records_.at(middle - 1))) return;
  const uint64_t size = records_.record_size();
  if (middle - first <= last - middle) {
    // The left run moves to the scratch; what is merged grows from the left and cannot overtake
    // the right run.
    uint64_t left_count = middle - first;
    copy(scratch.data(), records_.at(first), left_count);
    const std::byte* left = scratch.data();
    const std::byte* left_end = left + left_count * size;
    const std::byte* right = records_.at(middle);
    const std::byte* right_end = records_.at(last);
    std::byte* out = records_.at(first);
    while (left != left_end && right != right_end) {
      const std::byte*& from = RecordArray::before(right, left) ? right : left;
      std::memcpy(out, from, size);
      from += size;
      out += size;
    }
    std::memcpy(out, left, static_cast<size_t>(left_end - left));
    return;
  }
  // The same from the other side.
  uint64_t right_count = last - middle;
  copy(scratch.data(), records_.at(middle), right_count);
  const std::byte* left = records_.at(middle);  // one past the next of the left run
  const std::byte* left_begin = records_.at(first);
  const std::byte* right = scratch.data() + right_count * size;
  const std::byte* right_begin = scratch.data();
  std::byte* out = records_.at(last);
  while (left != left_begin && right != right_begin) {
    const std::byte*& from = RecordArray::before(right - size, left - size) ? left : right;
    from -= size;
    out -= size;
    std::memcpy(out, from, size);
  }
  std::memcpy(records_.at(first), right_begin,
              right == right_begin ? 0 : static_cast<size_t>(right - right_begin));
}

void ParallelMergeSort::merge_parallel(uint64_t first, uint64_t middle, uint64_t last, unsigned first_thread,
                                       unsigned last_thread) {
  unsigned threads = last_thread - first_thread;
  if (threads == 1) {
    merge(first, middle, last, scratch_[first_thread]);
    return;
  }
  if (first == middle || middle == last) return;
  // How many records of each run are among the smallest `wanted` of both (binary search; "co-ranking").
  unsigned left_threads = threads / 2;
  uint64_t wanted = (last - first) * left_threads / threads;
  uint64_t low = wanted > last - middle ? wanted - (last - middle) : 0;
  uint64_t high = std::min(wanted, middle - first);
  while (low < high) {
    uint64_t from_left = low + (high - low) / 2;
    uint64_t from_right = wanted - from_left;
    if (RecordArray::before(records_.at(first + from_left), records_.at(middle + from_right - 1))) {
      low = from_left + 1;
    } else {
      high = from_left;
    }
  }
  uint64_t from_left = low, from_right = wanted - low;
  rotate(first + from_left, middle, middle + from_right, scratch_[first_thread]);
  unsigned split = first_thread + left_threads;
  std::thread right([&] { merge_parallel(first + wanted, middle + from_right, last, split, last_thread); });
  merge_parallel(first, first + from_left, first + wanted, first_thread, split);
  right.join();
}

// Exchanges the neighbours [first, middle) and [middle, last).
void ParallelMergeSort::rotate(uint64_t first, uint64_t middle, uint64_t last, Scratch& scratch) {
  const uint64_t room = scratch.size() / records_.record_size();
  while (first != middle && middle != last) {
    uint64_t left = middle - first, right = last - middle;
    uint64_t small = std::min(left, right);
    if (small <= room) {
      if (left <= right) {
        copy(scratch.data(), records_.at(first), left);
        copy(records_.at(first), records_.at(middle), right);
        copy(records_.at(first + right), scratch.data(), left);
      } else {
        copy(scratch.data(), records_.at(middle), right);
        copy(records_.at(last - left), records_.at(first), left);
        copy(records_.at(first), scratch.data(), right);
      }
      return;
    }
    // Exchange the shorter side with as much of the far end of the longer one: that part is done.
    if (left <= right) {
      std::swap_ranges(records_.at(first), records_.at(middle), records_.at(last - left));
      last -= left;
    } else {
      std::swap_ranges(records_.at(middle), records_.at(last), records_.at(first));
      first += right;
    }
  }
}

}  // namespace bench
