// What commands and agents tell each other: lines of JSON.
//
// Owner: cli. Any thread. Callers: commands that talk to others in lines.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace ckpt::cli {

using Json = nlohmann::json;

// Any bytes, which need be no text, in a line of JSON, and back.
Json json_of_bytes(const std::string& bytes);
std::string bytes_in(const Json& json);
// Writes or reads one JSON line. Reading is in time or not at all.
bool write_line(int fd, const Json& line);
bool read_line(int fd, Json& line, int timeout_ms);

}  // namespace ckpt::cli
