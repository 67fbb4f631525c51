#include "image/format/image_name.h"

#include <fmt/core.h>

#include "base/preload_rules.h"

namespace ckpt {

namespace {

constexpr std::string_view kSuffix = ".ckpt";
constexpr std::string_view kTemporary = ".tmp";

bool drop_suffix(std::string_view* text, std::string_view suffix) {
  if (!text->ends_with(suffix)) return false;
  text->remove_suffix(suffix.size());
  return true;
}

// Cuts "….field" into "…" and "field".
bool take_last_field(std::string_view* text, std::string_view* field) {
  size_t dot = text->rfind('.');
  if (dot == std::string_view::npos) return false;
  *field = text->substr(dot + 1);
  *text = text->substr(0, dot);
  return !field->empty();
}

bool decimal(std::string_view digits, uint64_t limit, uint64_t* value) {
  *value = 0;
  for (char c : digits) {
    if (c < '0' || c > '9') return false;
    uint64_t digit = static_cast<uint64_t>(c - '0');
    if (*value > (limit - digit) / 10) return false;
    *value = *value * 10 + digit;
  }
  return true;
}

bool hex8(std::string_view digits, uint32_t* value) {
  if (digits.size() != 8) return false;
  *value = 0;
  for (char c : digits) {
    uint32_t digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint32_t>(c - 'a' + 10);
    } else {
      return false;
    }
    *value = *value << 4 | digit;
  }
  return true;
}

bool plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '+' ||
         c == '_' || c == '.';
}

}  // namespace

uint32_t run_prefix_of(const uint8_t run_id[16]) {
  return uint32_t{run_id[0]} << 24 | uint32_t{run_id[1]} << 16 | uint32_t{run_id[2]} << 8 | run_id[3];
}

ImageName compose_image_name(std::string_view comm, int pid, const uint8_t run_id[16], uint64_t sequence) {
  char safe[16];
  size_t n = comm.size() < 15 ? comm.size() : 15;  // TASK_COMM_LEN - 1
  for (size_t i = 0; i < n; i++) safe[i] = plain(comm[i]) && !(i == 0 && comm[i] == '.') ? comm[i] : '_';
  if (n == 0) safe[n++] = '_';
  ImageName name;
  auto out = fmt::format_to_n(name.text, sizeof(name.text) - 1, "{}.{}.{:08x}.{:06}.ckpt",
                              std::string_view(safe, n), pid, run_prefix_of(run_id), sequence);
  *out.out = '\0';
  return name;
}

bool parse_image_name(std::string_view name, ParsedImageName* parsed) {
  *parsed = {};
  parsed->temporary = drop_suffix(&name, kTemporary);
  std::string_view sequence, run, pid;
  if (!drop_suffix(&name, kSuffix) || !take_last_field(&name, &sequence) || !take_last_field(&name, &run) ||
      !take_last_field(&name, &pid)) {
    return false;
  }
  uint64_t number = 0;
  if (name.empty() || sequence.size() < 6 || !decimal(sequence, UINT64_MAX, &parsed->sequence) ||
      parsed->sequence == 0 || !hex8(run, &parsed->run_prefix) || !decimal(pid, INT32_MAX, &number)) {
    return false;
  }
  parsed->pid = static_cast<int>(number);
  parsed->comm = name;
  return true;
}

}  // namespace ckpt
