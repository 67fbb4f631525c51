#include "libckpt_rt/capture/threads/thread_users.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "libckpt_rt/core/kernel/proc_text.h"
#include "libckpt_rt/core/kernel/task_list.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

bool read_ids(std::string_view status, std::string_view key, uint32_t (&ids)[4]) {
  uint64_t value[4] = {};
  if (numbers(line_of(status, key), 10, value, 4) != 4) return false;
  std::copy(value, value + 4, ids);
  return true;
}

void read_groups(std::string_view status, ThreadCredentials& c) {
  uint64_t value[ThreadCredentials::kMostGroups + 1] = {};
  c.group_count = static_cast<uint32_t>(numbers(line_of(status, "\nGroups:"), 10, value, std::size(value)));
  std::copy(value, value + std::min(c.group_count, ThreadCredentials::kMostGroups), c.groups);
}

bool read_rights(const char* path, std::string_view status, ThreadCredentials& c) {
  StatusField fields[] = {{"CapInh:", 16}, {"CapPrm:", 16}, {"CapEff:", 16},
                          {"CapBnd:", 16}, {"CapAmb:", 16}, {"NoNewPrivs:"}};
  constexpr std::string_view kLines[] = {
      "\nCapInh:", "\nCapPrm:", "\nCapEff:", "\nCapBnd:", "\nCapAmb:", "\nNoNewPrivs:"};
  bool all = true;
  for (size_t i = 0; i < std::size(fields); ++i)
    all = all && numbers(line_of(status, kLines[i]), fields[i].base, &fields[i].value, 1) == 1;
  // These lines come behind the groups, which may be thousands.
  if (!all && (!read_status(path, fields) || !std::ranges::all_of(fields, &StatusField::found))) return false;
  c.inheritable = fields[0].value;
  c.permitted = fields[1].value;
  c.effective = fields[2].value;
  c.bounding = fields[3].value;
  c.ambient = fields[4].value;
  c.no_new_privs = static_cast<int32_t>(fields[5].value);
  StatusField filters[] = {{"Seccomp_filters:"}};
  c.filters = read_status(path, filters) && filters[0].found ? static_cast<uint32_t>(filters[0].value)
                                                             : ThreadCredentials::kUntoldFilters;
  c.knows_sets = true;
  return true;
}

bool read_credentials(int tid, ThreadCredentials& c) {
  char path[64], text[4096];
  *fmt::format_to_n(path, sizeof(path) - 1, "/proc/self/task/{}/status", tid).out = '\0';
  const long n = read_small_file(path, text, sizeof(text));
  if (n <= 0) return false;
  // Whole lines of numbers only; groups that are cut are too many anyhow.
  const std::string_view status(text, static_cast<size_t>(n));
  read_groups(status, c);
  return read_ids(status, "\nUid:", c.uid) && read_ids(status, "\nGid:", c.gid) &&
         read_rights(path, status.substr(0, status.rfind('\n') + 1), c);
}

}  // namespace

void look_up_users_of_unasked(ThreadSlot* threads) {
  for (ThreadSlot* s = threads; s != nullptr; s = s->next) {
    if (s->credentials.known) continue;
    ThreadCredentials found;
    if (!read_credentials(s->tid, found)) continue;
    found.known = true;
    s->credentials = found;
  }
}

}  // namespace ckpt
