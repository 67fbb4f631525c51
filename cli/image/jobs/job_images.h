// Checkpoints of jobs in a directory of images: which there are, and whether they are complete.
//
// Owner: cli. Ordinary code, one thread. Callers: commands that are given a checkpoint of a job.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "image/read/manifest.h"

namespace ckpt::cli {

struct JobEntry {
  std::string path;  // of its directory
  std::string comm;  // from the name
  uint64_t sequence = 0;
  bool temporary = false;  // being written, or left behind
  bool complete = false;   // manifest and all images are there and belong together (not: every byte)
  Error error;             // why it is not complete
  uint64_t bytes = 0, memory_bytes = 0;
  bool increment = false;  // some image is one
  Manifest manifest;       // when it could be read
};

JobEntry examine_job(const std::string& path);
// By sequence. A directory that cannot be read has none.
std::vector<JobEntry> list_jobs(const std::string& directory);
// The checkpoint of a job that an argument names: its directory. "" it names something else.
std::string job_of(const std::string& argument);
// Its images, by path.
std::vector<std::string> images_of_job(const JobEntry& job);

}  // namespace ckpt::cli
