// A host's part of a checkpoint as one stream of bytes, and back: what redundancy is computed over.
//
// The regular files of the part's directory, in the order of a list, one behind the other. The list has their
// names and lengths, modes, times and owners; links are not in it. In place of an increment there may be its
// differences (word_differences.h), which are in one file for all of the part.
//
// Owner: cluster/keeper. Ordinary code, one thread. Callers: the exchange, for a part that is read or made
// again. Never: follows a link; leaves the directory, whatever a name says.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt::keeper {

struct PartFile {
  std::string name;  // in the part's directory; at most one directory below it
  uint64_t bytes = 0;
  uint32_t mode = 0600;
  int64_t modified_ns = 0;                         // 0: not known
  uint32_t user = UINT32_MAX, group = UINT32_MAX;  // UINT32_MAX: who writes it
  uint64_t words = 0;  // bytes of its differences, which the stream has in its place; 0: the stream has it
  uint64_t sum = 0;    // XXH3 of the file; with `words`
};

// The file of differences: of those files of the list that have some, in its order, from `at` on. The file
// stays open as long as the stream is used.
struct PartWords {
  int fd = -1;
  uint64_t at = 0;
};

// "PID.ckpt", "job.files/x": a name in the directory, or in a directory in it.
bool is_part_file_name(const std::string& name);

class PartStream {
 public:
  // Of a part that is there, in `directory`.
  static Result<PartStream> open(int directory);
  // Of a part that is to be written into an empty directory.
  static Result<PartStream> create(int directory, std::vector<PartFile> files, PartWords words = {});

  // Files, by name, of which the stream has the differences from now on.
  Result<void> set_words(const std::vector<PartFile>& with_words, PartWords words);

  const std::vector<PartFile>& files() const { return files_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t bytes_of_files() const;
  // Descriptor of a file of the list, and what of the stream is in its place.
  int fd(size_t file) const { return open_[file].fd.get(); }
  Result<void> read_words(size_t file, uint64_t at, std::span<std::byte> to) const;
  // Fills `block` from `offset` on; behind the end with zeros.
  Result<void> read(uint64_t offset, std::span<std::byte> block) const;
  // Of what was written: modes, times, and for root the owners, as the list has them.
  Result<void> dress();
  // Bytes behind the end of the stream are dropped.
  Result<void> write(uint64_t offset, std::span<const std::byte> block);
  // XXH3 of all.
  Result<uint64_t> checksum() const;

 private:
  struct Open {
    ScopedFd fd;
    uint64_t offset = 0, bytes = 0;  // in the stream
    uint64_t at = 0;                 // where these are in what the stream reads
  };
  // Where each file is in the stream.
  Result<void> place(PartWords words);
  int source(size_t file) const { return files_[file].words != 0 ? words_ : open_[file].fd.get(); }
  template <typename Visit>
  Result<void> each(uint64_t offset, uint64_t bytes, Visit visit) const;

  std::vector<PartFile> files_;
  std::vector<Open> open_;
  uint64_t bytes_ = 0;
  int words_ = -1;
};

// XXH3 of a file, all of it.
Result<uint64_t> checksum_of(int fd);

}  // namespace ckpt::keeper
