// Bytes, durations and counts as people read them. The only place that turns units into text.
//
// Owner: cli. Ordinary code, any thread. Callers: all commands.
#pragma once

#include <cstdint>
#include <string>

namespace ckpt::cli {

std::string human_bytes(uint64_t bytes);      // "512 B", "64.0 KiB", "1.02 GiB"
std::string human_duration(int64_t ns);       // "850 ns", "12.3 us", "4.56 ms", "1.23 s", "2 min 5 s"
std::string human_count(uint64_t count);      // "1234567" -> "1,234,567"
std::string human_time(int64_t realtime_ns);  // "2025-11-03 14:05:09", local time
std::string plural(uint64_t n, const char* singular, const char* plural_form);  // "1 thread", "2 threads"

}  // namespace ckpt::cli
