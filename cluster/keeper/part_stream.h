// A host's part of a checkpoint as one stream of bytes, and back: what redundancy is computed over.
//
// The regular files of the part's directory, in the order of a list, one behind the other. The list has their
// names and lengths, modes, times and owners; links are not in it.
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
};

// "PID.ckpt", "job.files/x": a name in the directory, or in a directory in it.
bool is_part_file_name(const std::string& name);

class PartStream {
 public:
  // Of a part that is there, in `directory`.
  static Result<PartStream> open(int directory);
  // Of a part that is to be written into an empty directory.
  static Result<PartStream> create(int directory, std::vector<PartFile> files);

  const std::vector<PartFile>& files() const { return files_; }
  uint64_t bytes() const { return bytes_; }
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
    uint64_t offset;
    ScopedFd fd;
  };
  template <typename Visit>
  Result<void> each(uint64_t offset, uint64_t bytes, Visit visit) const;

  std::vector<PartFile> files_;
  std::vector<Open> open_;
  uint64_t bytes_ = 0;
};

// XXH3 of a file, all of it.
Result<uint64_t> checksum_of(int fd);

}  // namespace ckpt::keeper
