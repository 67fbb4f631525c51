#include "cli/text/human.h"

#include <fmt/core.h>
#include <time.h>

namespace ckpt::cli {

namespace {

// Three significant digits: 1.23, 12.3, 123.
std::string three_digits(double value) {
  if (value < 9.995) return fmt::format("{:.2f}", value);
  if (value < 99.95) return fmt::format("{:.1f}", value);
  return fmt::format("{:.0f}", value);
}

}  // namespace

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string human_duration(int64_t ns) {
  if (ns < 0) return fmt::format("-{}", human_duration(-ns));
  if (ns < 1000) return fmt::format("{} ns", ns);
  double value = static_cast<double>(ns);
  if (value < 999.5e3) return three_digits(value / 1e3) + " us";
  if (value < 999.5e6) return three_digits(value / 1e6) + " ms";
  if (value < 60e9) return three_digits(value / 1e9) + " s";
  int64_t seconds = ns / 1'000'000'000;
  if (seconds < 3600) return fmt::format("{} min {} s", seconds / 60, seconds % 60);
  if (seconds < 86400) return fmt::format("{} h {} min", seconds / 3600, seconds % 3600 / 60);
  return fmt::format("{} d {} h", seconds / 86400, seconds % 86400 / 3600);
}

std::string human_count(uint64_t count) {
  std::string digits = fmt::format("{}", count);
  for (size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string human_time(int64_t realtime_ns) {
  time_t seconds = realtime_ns / 1'000'000'000;
  tm parts{};
  if (localtime_r(&seconds, &parts) == nullptr) return "?";
  char text[32];
  strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string plural(uint64_t n, const char* singular, const char* plural_form) {
  return fmt::format("{} {}", human_count(n), n == 1 ? singular : plural_form);
}

}  // namespace ckpt::cli
