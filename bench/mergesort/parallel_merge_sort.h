// A parallel merge sort that moves the records themselves.
//
// The array is cut into one part a thread; each thread sorts its part top down, merging with a
// scratch buffer of half the part. The parts are then joined pairwise; a join is itself done by
// several threads: a rotation brings the smaller records of both runs to the left and the larger to
// the right, and the two sides are merged independently.
//
// Owner:     bench/mergesort. One ParallelMergeSort sorts one RecordArray, any number of times.
// Callers:   the main thread; it starts and joins the others itself.
#pragma once

#include "bench/mergesort/records.h"

namespace bench {

class ParallelMergeSort {
 public:
  ParallelMergeSort(RecordArray& records, unsigned threads);
  void sort();

 private:
  // Bytes of scratch that one thread needs for what it merges alone.
  using Scratch = std::vector<std::byte>;

  void sort_range(uint64_t first, uint64_t last, Scratch& scratch);
  void sort_parts(unsigned first_part, unsigned last_part);
  void insertion_sort(uint64_t first, uint64_t last, Scratch& scratch);
  void merge(uint64_t first, uint64_t middle, uint64_t last, Scratch& scratch);
  // Merges with scratch_[first_thread] … scratch_[last_thread - 1].
  void merge_parallel(uint64_t first, uint64_t middle, uint64_t last, unsigned first_thread,
                      unsigned last_thread);
  void rotate(uint64_t first, uint64_t middle, uint64_t last, Scratch& scratch);
  void copy(std::byte* to, const std::byte* from, uint64_t count) {
    std::memmove(to, from, count * records_.record_size());
  }

  RecordArray& records_;
  unsigned threads_;
  std::vector<Scratch> scratch_;
};

}  // namespace bench
