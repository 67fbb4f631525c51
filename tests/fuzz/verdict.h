// What the reader said of the last input. Fuzzing itself has no use for it; the replay of the stored inputs
// compares it with what was written down of each (replay_corpus.cc). An input that is taken by mistake is so
// seen too.
#pragma once

#include <string>

#include "base/result.h"

namespace ckpt {

inline std::string verdict;

// What was read, as one number; or the reason, without the name of the file or of its directory, which differ
// from run to run, and without the advice behind it.
inline void judge(const Result<uint64_t>& read, const std::string& name) {
  if (read.ok()) {
    verdict = fmt::format("taken {:016x}", read.value());
    return;
  }
  const std::string_view message = read.error().message();
  std::string reason(message.substr(0, message.find(';')));
  for (size_t at; (at = reason.find(name)) != std::string::npos;) reason.erase(at, name.size());
  verdict = fmt::format("{} {}", static_cast<int>(read.error().code), reason);
}

}  // namespace ckpt
