// Names of a job's checkpoints: the directory "<comm>.<sequence, at least 6 digits>.job", which is
// ".<the same>.tmp" while it is written; in it "manifest.json" and one image "<pid>.ckpt" for each process.
//
// Owner:     job. Callers: both halves; in the victim too: no allocation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ckpt::job {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr uint32_t kManifestVersion = 1;
inline constexpr const char* kManifestFormat = "ckpt_rt job";

struct JobName {
  char text[96] = {};       // of the directory when it is complete
  char temporary[96] = {};  // while it is written
};
// Characters of comm that could surprise a shell or leave the directory become '_'.
JobName compose_job_name(std::string_view comm, uint64_t sequence);

// A name with a larger number is none of ours: the next but one could have more digits than fit 64 bits.
inline constexpr size_t kMostJobDigits = 18;
inline constexpr uint64_t kMostJobSequence = 999'999'999'999'999'999;

struct ParsedJobName {
  std::string_view comm;  // inside the parsed text
  uint64_t sequence;
  bool temporary;
};
// False: not the name of a job's checkpoint.
bool parse_job_name(std::string_view name, ParsedJobName* parsed);

// The id of a job as 32 hexadecimal digits.
struct JobText {
  char text[33];
};
JobText job_text(const uint8_t id[16]);

// "<pid>.ckpt"
struct MemberImageName {
  char text[24] = {};
};
MemberImageName member_image_name(int pid);

// "../<a job's checkpoint>/<pid>.ckpt": how an increment in another checkpoint names its parent.
bool is_parent_in_job(std::string_view name);

}  // namespace ckpt::job
