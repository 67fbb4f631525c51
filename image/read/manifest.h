// The manifest of a job's checkpoint: which processes it has, how they belong together, what they share.
//
// Owner:     image (reader half). Callers: ckpt-restart, ckpt; ordinary C++.
// Never:     trusts a byte: what parse_manifest() returns is whole, its numbers are in range, every name is
//            that of a file in the job's directory, and nobody is his own ancestor. Whether the images are
//            those of the manifest is for their reader to say.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ckpt {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr std::string_view kJobSuffix = ".job";

enum class MemberState { kRunning, kStopped, kZombie };

struct ManifestMember {
  int pid = 0, ppid = 0, pgid = 0, sid = 0;  // pgid, sid 0: outside of the job's pid namespace
  std::string name;
  std::string image;  // file name in the job's directory; empty: a zombie
  MemberState state = MemberState::kRunning;
  int exit_status = 0;   // of a zombie, as waitpid gives it
  int exit_signal = 17;  // that its parent gets when it ends
  int pdeath_signal = 0;
  bool orphan = false;  // its parent is outside of the job
  bool subreaper = false;
  bool stop_reported = true;  // of a stopped one: its parent has heard of it, by wait(2)
  uint8_t stop_signal = 0;    // the same
  uint64_t terminal = 0;      // device number of the controlling one, 0 none
  int foreground_group = -1;  // of that terminal
};

struct ManifestUser {
  int pid = 0;
  uint32_t open_file = 0;  // OpenFileRecord::id in that member's image
};

struct ManifestFile {
  std::string name;
  uint64_t bytes = 0;
  std::string checksum;  // 16 hexadecimal digits, or empty
};

struct ManifestLeftOut {
  int pid = 0;
  std::string name, reason;
};

struct Manifest {
  std::string job;   // 32 hexadecimal digits
  std::string name;  // of the topmost program
  uint64_t sequence = 0;
  int64_t time_ns = 0, monotonic_ns = 0, boottime_ns = 0;  // at the stop; boottime_ns 0: not known
  int root = 0;                                            // pid of the topmost member
  std::vector<ManifestMember> members;
  std::vector<ManifestLeftOut> left_out;
  std::vector<std::vector<ManifestUser>> descriptions;  // each an open file description and who has it
  std::vector<std::pair<uint64_t, int>> owners;         // object, pid: who saved its content
  std::vector<ManifestFile> files;

  const ManifestMember* member(int pid) const;
};

// `path` is for messages. Errors: kImageDamaged, kIncompatible (another version).
Result<Manifest> parse_manifest(std::string_view text, const std::string& path);

// A manifest's text with other sizes of its files, bytes by name: they were written anew.
std::string with_sizes(std::string text, const std::map<std::string, uint64_t>& sizes);

// Of the job's directory, which may be followed by a slash. No link is followed to the manifest.
Result<Manifest> read_manifest(const std::string& directory);

// Is it the directory of a job: is there a manifest in it?
bool is_job_directory(const std::string& path);

}  // namespace ckpt
