#include "base/settings/setting_values.h"
#include "base/memory/fork_path.h"

#include "base/preload_rules.h"

namespace ckpt {

namespace {

// The units of a kind, the smallest first; the first of a size is the one that is printed.
struct Unit {
  const char* name;
  uint64_t worth;
};
constexpr Unit kSizes[] = {{"", 1},        {"B", 1},         {"K", 1 << 10},   {"KiB", 1 << 10},
                           {"k", 1 << 10}, {"M", 1 << 20},   {"MiB", 1 << 20}, {"m", 1 << 20},
                           {"G", 1 << 30}, {"GiB", 1 << 30}, {"g", 1 << 30}};
constexpr Unit kDurations[] = {{"us", 1'000},           {"ms", 1'000'000},     {"s", 1'000'000'000},
                               {"", 1'000'000'000},     {"m", 60'000'000'000}, {"min", 60'000'000'000},
                               {"h", 3'600'000'000'000}};

// False: no number with one of the units, or more than `most`.
bool with_unit(const char* text, std::span<const Unit> units, uint64_t most, uint64_t* out) {
  uint64_t n = 0;
  std::string_view rest;
  if (!setting_values::leading_number(text, &n, &rest)) return false;
  for (const Unit& u : units) {
    if (rest != u.name || n > most / u.worth) continue;
    *out = n * u.worth;
    return true;
  }
  return false;
}

void print_with_unit(uint64_t value, std::span<const Unit> units, SettingText& out) {
  const Unit* best = nullptr;
  for (const Unit& u : units) {
    if (value % u.worth == 0 && (best == nullptr || u.worth > best->worth)) best = &u;
  }
  if (value == 0 || best == nullptr) best = &units[0];
  *fmt::format_to_n(out.text, sizeof(out.text) - 1, "{}{}", value / best->worth, value == 0 ? "" : best->name)
       .out = '\0';
}

}  // namespace

Result<uint64_t> parse_size(const char* name, const char* text) {
  uint64_t bytes = 0;
  if (with_unit(text, kSizes, UINT64_MAX, &bytes)) return bytes;
  return make_error(ExitCode::kUsage, 0, "{}='{}' is not a size; use for example 4096, 64K, 64M or 1G", name,
                    text);
}

Result<int64_t> parse_duration(const char* name, const char* text) {
  uint64_t ns = 0;
  if (with_unit(text, kDurations, INT64_MAX, &ns)) return static_cast<int64_t>(ns);
  return make_error(ExitCode::kUsage, 0, "{}='{}' is not a duration; use for example 250ms, 30s, 5m or 1h",
                    name, text);
}

namespace setting_values {

bool leading_number(std::string_view text, uint64_t* number, std::string_view* rest) {
  uint64_t n = 0;
  size_t i = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    uint64_t digit = static_cast<uint64_t>(text[i] - '0');
    if (n > (UINT64_MAX - digit) / 10) return false;
    n = n * 10 + digit;
  }
  *number = n;
  *rest = text.substr(i);
  return i > 0;
}

void print_size(uint64_t bytes, SettingText& out) { print_with_unit(bytes, kSizes, out); }
void print_duration(int64_t ns, SettingText& out) {
  print_with_unit(static_cast<uint64_t>(ns), kDurations, out);
}

void print_text(const char* text, SettingText& out) {
  *fmt::format_to_n(out.text, sizeof(out.text) - 1, "{}", text).out = '\0';
}

void print_number(uint64_t number, SettingText& out) {
  *fmt::format_to_n(out.text, sizeof(out.text) - 1, "{}", number).out = '\0';
}

Error refused(const Setting& setting, const char* text) {
  SettingText accepted;
  accepted_by(setting, accepted);
  return make_error(ExitCode::kUsage, 0, "{}='{}' is no {}; use {}", setting.variable, text, setting.noun,
                    static_cast<const char*>(accepted.text));
}

const char* choice_name(std::span<const Choice> choices, uint32_t value) {
  for (const Choice& c : choices) {
    if (c.value == value) return c.name;
  }
  return "?";
}

Result<uint32_t> parse_choice(const Setting& setting, const char* text) {
  for (const Choice& c : setting.choices) {
    if (std::string_view(text) == c.name) return c.value;
  }
  return refused(setting, text);
}

Result<uint64_t> parse_number(const Setting& setting, const char* text) {
  uint64_t n = 0;
  std::string_view rest;
  if (leading_number(text, &n, &rest) && rest.empty() && n >= setting.least && n <= setting.most) return n;
  return refused(setting, text);
}

CKPT_START_PATH Result<void> parse_text(const Setting& setting, const char* text, char* out, size_t size) {
  const std::string_view all(text);
  if (all.size() >= size) {
    return make_error(ExitCode::kUsage, 0, "{} is longer than {} bytes; use {}", setting.variable, size - 1,
                      setting.noun);
  }
  all.copy(out, all.size());
  out[all.size()] = '\0';
  return {};
}

}  // namespace setting_values
}  // namespace ckpt
