// The checkpoints of a job over hosts that count, by their .hosts files: which older ones each needs, and
// which are given up.
//
// With redundancy a checkpoint has the increments of all hosts since the newest full one. Any host may be
// lost, and its part of each of those is computed from those of all others. So what one host needs stays on
// all, and the head decides what goes.
//
// Owner: cli, the head. One thread. Callers: the head.
// Never: gives up what a checkpoint that stays needs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/hosts/job/hosts_manifest.h"

namespace ckpt::cli {

class Records {
 public:
  // most_increments: between two full ones; 0: each checkpoint is full. keep: how many stay, with what they
  // need; 0: all.
  Records(std::string directory, std::string job, int keep, uint32_t most_increments);

  // Are all images of the next one to be full? No, while there are fewer than most_increments of them and
  // they are together no longer than the full one.
  bool next_is_full() const;
  // After a checkpoint that failed the hosts' images are full by themselves.
  void failed() { base_.clear(); }
  // Of each part that of the last full checkpoint that travelled whole: with its images those of a full one
  // may be compared. Empty: there is none, or the last one was too little like it.
  std::vector<std::string> ground() const;
  // The checkpoints, by id, oldest first, that the next one needs. compared: with the ground, if it is full.
  std::vector<uint64_t> needed(bool full, bool compared) const;
  // The checkpoint of `manifest` has its .hosts file.
  void counts(const HostsManifest& manifest, bool full);
  // Of each of so many parts its directories that checkpoints which count have; nothing: not all are known.
  std::vector<std::vector<std::string>> parts(size_t many) const;
  // Removes .hosts files. Returns of each part its directories that stay, by the part's number; nothing: all
  // stay.
  std::vector<std::vector<std::string>> give_up_older();

 private:
  struct Record {
    std::string path;
    std::vector<uint64_t> needs;
    std::vector<std::string> parts;
  };
  static Record record_of(const HostsManifest& manifest, std::string path);

  const std::string directory_, job_;
  const int keep_;
  const uint32_t most_;
  std::map<uint64_t, Record> all_;
  uint64_t ground_ = 0;         // a full one that was compared with no other; 0: the next one is to be such
  std::vector<uint64_t> base_;  // what the newest full one needs, that one, and the increments to it
  size_t full_at_ = 0;          // its place there
  uint64_t full_bytes_ = 0, more_bytes_ = 0;
};

}  // namespace ckpt::cli
