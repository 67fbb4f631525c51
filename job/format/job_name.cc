#include "job/format/job_name.h"

#include <fmt/core.h>

#include "base/preload_rules.h"

namespace ckpt::job {

namespace {

constexpr std::string_view kSuffix = ".job", kTemporary = ".tmp";

bool plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '+' ||
         c == '_' || c == '.';
}

}  // namespace

JobName compose_job_name(std::string_view comm, uint64_t sequence) {
  char safe[16];
  const size_t n = comm.size() < 15 ? comm.size() : 15;  // TASK_COMM_LEN - 1
  for (size_t i = 0; i < n; i++) safe[i] = plain(comm[i]) && !(i == 0 && comm[i] == '.') ? comm[i] : '_';
  const std::string_view shown = n == 0 ? std::string_view("_") : std::string_view(safe, n);
  JobName name;
  *fmt::format_to_n(name.text, sizeof(name.text) - 1, "{}.{:06}.job", shown, sequence).out = '\0';
  *fmt::format_to_n(name.temporary, sizeof(name.temporary) - 1, ".{}.{:06}.job.tmp", shown, sequence).out =
      '\0';
  return name;
}

bool parse_job_name(std::string_view name, ParsedJobName* parsed) {
  *parsed = {};
  if (name.starts_with('.')) {
    if (!name.ends_with(kTemporary)) return false;
    parsed->temporary = true;
    name.remove_prefix(1);
    name.remove_suffix(kTemporary.size());
  }
  if (!name.ends_with(kSuffix)) return false;
  name.remove_suffix(kSuffix.size());
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return false;
  const std::string_view digits = name.substr(dot + 1);
  if (digits.size() < 6 || digits.size() > kMostJobDigits) return false;
  for (char c : digits) {
    if (c < '0' || c > '9') return false;
    parsed->sequence = parsed->sequence * 10 + static_cast<uint64_t>(c - '0');
  }
  parsed->comm = name.substr(0, dot);
  return parsed->sequence != 0;
}

JobText job_text(const uint8_t id[16]) {
  JobText out{};
  constexpr char kDigits[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) {
    out.text[2 * i] = kDigits[id[i] >> 4];
    out.text[2 * i + 1] = kDigits[id[i] & 15];
  }
  return out;
}

MemberImageName member_image_name(int pid) {
  MemberImageName name;
  *fmt::format_to_n(name.text, sizeof(name.text) - 1, "{}.ckpt", pid).out = '\0';
  return name;
}

bool is_parent_in_job(std::string_view name) {
  constexpr std::string_view kUp = "../", kImage = ".ckpt";
  if (!name.starts_with(kUp) || !name.ends_with(kImage)) return false;
  name = name.substr(kUp.size(), name.size() - kUp.size() - kImage.size());
  const size_t slash = name.find('/');
  ParsedJobName parsed;
  if (slash == std::string_view::npos || !parse_job_name(name.substr(0, slash), &parsed) || parsed.temporary)
    return false;
  const std::string_view pid = name.substr(slash + 1);
  return !pid.empty() && pid.size() <= 10 && pid.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace ckpt::job
