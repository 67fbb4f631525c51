// What came from an image or another program, made fit for a terminal or for JSON.
//
// Owner: cli. Ordinary code, one thread. Callers: all commands.
#pragma once

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "image/read/sources/keeper_images.h"

namespace ckpt::cli {

// Control characters as \xNN: a name in a foreign image must not steer the terminal.
inline std::string printable(std::string_view text) {
  std::string out;
  for (unsigned char c : with_keepers_named(text)) {
    if (c < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += static_cast<char>(c);
    }
  }
  return out;
}

// Paths are bytes, JSON is UTF-8: what is not becomes U+FFFD.
inline void print_json(const nlohmann::ordered_json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace ckpt::cli
