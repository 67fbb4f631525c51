// What this machine allows, in words: the probes of base/machine/kernel_caps.h with reasons and remedies.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt check`.
#pragma once

#include <string>
#include <vector>

#include "base/machine/kernel_caps.h"

namespace ckpt::cli {

enum class Level {
  kGood,     // works fully
  kLimited,  // works, with a drawback that `detail` names
  kMissing,  // something that is needed does not work
};

struct Finding {
  std::string id;     // stable, for scripts: "userfaultfd"
  std::string title;  // for people
  Level level = Level::kGood;
  std::string detail;  // what was found, and why
  std::string effect;  // what that means for checkpoints or restarts; empty when kGood
  std::string remedy;  // what to do about it; empty when kGood
};

// The mode that `auto` takes here: "realtime" or "fork".
const char* automatic_mode(const KernelCaps& caps);

std::vector<Finding> describe_machine(const KernelCaps& caps);
std::vector<Finding> describe_directory(const std::string& directory);

}  // namespace ckpt::cli
