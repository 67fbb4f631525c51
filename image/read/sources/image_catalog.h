// Which images a directory holds, and which of them somebody means.
//
// Owner:     image/read. Callers: ckpt-restart, ckpt; ordinary C++.
// Never:     guesses between two programs: that is an error which names them.
#pragma once

#include <dirent.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "image/format/image_probe.h"

namespace ckpt {

struct CatalogEntry {
  std::string file;        // name in the directory
  std::string comm;        // from the name
  int pid = 0;             // from the name
  bool temporary = false;  // ".tmp": being written, or left behind
  bool complete = false;  // header and trailer are valid, its parents' too (not: every byte; see ImageReader)
  bool locked =
      false;  // encrypted and without the key, or the other way round: nobody knows whether it is complete
  std::string problem;    // why it is not complete
  uint64_t sequence = 0;  // from the header when complete, else from the name
  uint64_t file_bytes = 0;
  ImageBrief brief;  // when complete
};

// "0123456789abcdef…", 32 digits.
std::string run_id_text(const uint8_t run_id[16]);

class ImageCatalog {
 public:
  // Files with the name of an image; by program (comm, pid), then by sequence. While a program takes images
  // and removes old ones in the directory: what was there at one instant, or a little more.
  static Result<ImageCatalog> list(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const std::vector<CatalogEntry>& entries() const { return entries_; }
  std::string path_of(const CatalogEntry& entry) const { return directory_ + "/" + entry.file; }

  // The complete image that `selector` means: "" the newest, "-N" the Nth before it, "SEQ" the one
  // with that sequence, "2026-11-21T10:00" (local time; seconds, or the time of day, may be left out or a
  // Z be added for UTC) the newest taken by then, of any run. Several runs of one program: the run with the
  // newest image. Several programs: kUsage, listing them. None complete: kNotFound, or kImageDamaged when
  // there are damaged ones.
  Result<const CatalogEntry*> select(const std::string& selector) const;

 private:
  Result<void> read_entries(DIR* dir);

  std::string directory_;
  std::vector<CatalogEntry> entries_;
};

// What a user may give: an image file, a directory, "DIRECTORY@-N", "DIRECTORY@SEQ", "DIRECTORY@TIME"; of a
// job "X.job/PID", or "X.job" where it has one process.
// The path of the image file. "-", standard input, is left as it is. A name that exists as it stands is taken
// as it stands, "@" or not.
Result<std::string> resolve_image(const std::string& argument);

}  // namespace ckpt
