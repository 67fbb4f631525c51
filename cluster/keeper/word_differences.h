// A file as its differences from older files: of each block of 4 KiB which words of 8 bytes are others, as a
// bitmap, and these words. Blocks that are as they were cost nothing, blocks without an older one are there
// whole.
//
// Owner: cluster/keeper. Ordinary code, one thread. Differences that are read are not trusted. Memory: a few
//        MiB, however long the file is.
// Callers: the exchange's process, of increments (cli/keeper/part_words.h); the benchmark.
//
//   differences = head name* run*
//   run         = RunHead, then for each block that differs, in order: groups:u64 bits:u8* words:u64*
//               | RunHead of kNoSource, then its blocks whole
//   groups: bit g: of the words 8g .. 8g+7 at least one differs; for each such group the bits of its words,
//   and behind these the words that differ, as they are now.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace ckpt::keeper {

inline constexpr uint64_t kWordsBlock = 4096;

// Blocks of the file that were in a source before; of those in no range there is none.
struct OldPlace {
  uint64_t at = 0, bytes = 0;  // in the file, multiples of kWordsBlock
  uint32_t source = 0;         // number of the older file
  uint64_t at_source = 0;      // in it, a multiple of kWordsBlock
};

struct WordsStats {
  uint64_t blocks = 0, changed = 0, words = 0;  // with an older one; of these; their words
  uint64_t sum = 0;                             // XXH3 of the file, where differences were written
};

// file: open, of so many bytes, a multiple of kWordsBlock. sources: open. names: of the sources, for the
// reader of the differences. old: in the order of the file, without overlap. Writes the differences to `to`,
// from `to_at` on, and returns their length; 0: they would be longer than `most` bytes, or a look at some of
// the blocks says that they would be. The differences are read once more, and compared with the file.
Result<uint64_t> write_words(int file, uint64_t bytes, std::span<const int> sources,
                             std::span<const std::string> names, std::span<const OldPlace> old, uint64_t most,
                             int to, uint64_t to_at, WordsStats* stats = nullptr);

// The other way: writes the file. read: of the differences, of so many bytes. source: opens an older file by
// its name; it may fail. kImageDamaged: these are no differences, or of other files.
using ReadWords = std::function<Result<void>(uint64_t at, std::span<std::byte> to)>;
using OpenSource = std::function<int(const std::string&)>;
Result<void> write_from_words(uint64_t words, const ReadWords& read, int file, uint64_t bytes,
                              const OpenSource& source);

// Appends the differences of one block to `to`. Returns how many words differ.
unsigned append_words(std::span<const std::byte> now, std::span<const std::byte> then,
                      std::vector<std::byte>& to);

}  // namespace ckpt::keeper
