// One-line errors of the command: "ckpt: THING: WHAT (REMEDY)".
//
// Owner: cli. Ordinary code, one thread. Callers: all commands.
#pragma once

#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "base/result.h"
#include "image/read/sources/keeper_images.h"

namespace ckpt::cli {

// Cuts the middle out of a path that would push the rest of the line out of sight.
inline std::string brief(std::string_view path) {
  constexpr size_t kLongest = 120;
  if (path.size() <= kLongest) return std::string(path);
  return fmt::format("{}...{}", path.substr(0, 40), path.substr(path.size() - (kLongest - 43)));
}

inline Error failure(ExitCode code, std::string_view thing, std::string_view what, std::string_view remedy) {
  return make_error(code, 0, "{}: {} ({})", brief(thing), what, remedy);
}

// Prints the line and gives its exit code back, for `return report(error)`.
inline ExitCode report(const Error& error) {
  fmt::print(stderr, "ckpt: {}\n", with_keepers_named(error.message()));
  return error.code;
}

}  // namespace ckpt::cli
