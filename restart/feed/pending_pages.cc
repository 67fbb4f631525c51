#include "restart/feed/pending_pages.h"

#include <algorithm>

namespace ckpt {

void PendingPages::add(AddrRange range) {
  if (range.empty()) return;
  if (!home_.empty()) {
    auto last = std::prev(home_.end());
    if (last->second.end == range.start) {
      last->second.end = range.end;
      return;
    }
  }
  home_.insert_or_assign(home_.end(), range.start, Run{range.end, range.start});
}

// Takes `range` out of `runs`; the parts taken go to `out`.
void PendingPages::cut(Runs& runs, AddrRange range, std::vector<Part>* out) {
  if (range.empty()) return;
  auto it = runs.upper_bound(range.start);
  if (it != runs.begin() && std::prev(it)->second.end > range.start) --it;
  while (it != runs.end() && it->first < range.end) {
    const Addr start = it->first;
    const Run run = it->second;
    it = runs.erase(it);
    const Addr from = std::max(start, range.start), to = std::min(run.end, range.end);
    if (out != nullptr) out->push_back({from, run.saved + (from - start), to - from});
    if (start < from) runs[start] = {from, run.saved};
    if (to < run.end) it = runs.insert_or_assign(to, Run{run.end, run.saved + (to - start)}).first;
  }
}

void PendingPages::remove(AddrRange range) {
  cut(home_, range, nullptr);
  if (!moved_.empty()) cut(moved_, range, nullptr);
}

void PendingPages::move(AddrRange from, Addr to) {
  std::vector<Part> parts;
  cut(home_, from, &parts);
  cut(moved_, from, &parts);
  remove({to, to + from.size()});
  for (const Part& p : parts) {
    const Addr at = to + (p.address - from.start);
    Runs& runs = at == p.saved ? home_ : moved_;
    runs[at] = {at + p.length, p.saved};
  }
}

std::optional<Addr> PendingPages::saved_address(Addr page) const {
  for (const Runs* runs : {&home_, &moved_}) {
    auto it = runs->upper_bound(page);
    if (it == runs->begin()) continue;
    --it;
    if (page < it->second.end) return it->second.saved + (page - it->first);
  }
  return std::nullopt;
}

std::vector<PendingPages::Part> PendingPages::parts_of(AddrRange saved) const {
  std::vector<Part> parts;
  auto it = home_.upper_bound(saved.start);
  if (it != home_.begin() && std::prev(it)->second.end > saved.start) --it;
  for (; it != home_.end() && it->first < saved.end; ++it) {
    const Addr from = std::max(it->first, saved.start), to = std::min(it->second.end, saved.end);
    parts.push_back({from, from, to - from});
  }
  for (const auto& [start, run] : moved_) {
    const Addr run_end = run.saved + (run.end - start);
    const Addr from = std::max(run.saved, saved.start), to = std::min(run_end, saved.end);
    if (from < to) parts.push_back({start + (from - run.saved), from, to - from});
  }
  return parts;
}

}  // namespace ckpt
