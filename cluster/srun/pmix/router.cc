#include "cluster/srun/pmix/router.h"

#include <algorithm>
#include <charconv>

namespace ckpt::cluster::srun {

PmixRouter::PmixRouter(const Layout& layout) : layout_(layout) {}

bool PmixRouter::settle(std::string& ranks, std::set<int>& nodes) const {
  std::set<int> set;
  const char *at = ranks.data(), *end = at + ranks.size();
  while (at < end) {
    int rank = -1;
    const auto [next, error] = std::from_chars(at, end, rank);
    if (error != std::errc() || rank < 0 || rank >= layout_.count() || (next != end && *next != ','))
      return false;
    set.insert(rank);
    at = next + 1;
  }
  ranks.clear();
  if (set.empty() || set.size() == layout_.node_of.size()) {
    nodes.insert(layout_.node_of.begin(), layout_.node_of.end());
    return true;
  }
  for (const int rank : set) {
    ranks += (ranks.empty() ? "" : ",") + std::to_string(rank);
    nodes.insert(layout_.node_of[static_cast<size_t>(rank)]);
  }
  return true;
}

void PmixRouter::hear(int node, const PmixMessage& m, Actions& actions) {
  using What = PmixMessage::What;
  switch (m.what) {
    case What::kFence:
      fence(node, m, actions);
      break;
    case What::kAsk: {
      PmixMessage on = m;
      on.node = node;
      if (m.rank < 0 || m.rank >= layout_.count()) {
        on.what = What::kAnswer;
        on.status = kPmixNotFound;
        actions.send.emplace_back(node, std::move(on));
        break;
      }
      actions.send.emplace_back(layout_.node_of[static_cast<size_t>(m.rank)], std::move(on));
      break;
    }
    case What::kAnswer:
      if (m.node >= 0 && m.node < static_cast<int>(layout_.nodes.size()))
        actions.send.emplace_back(m.node, m);
      break;
    case What::kBegan:
      if (is_of(m.rank, node)) in_.insert(m.rank);
      break;
    case What::kFinished:
      if (is_of(m.rank, node)) in_.erase(m.rank);
      break;
    case What::kAbort:
      if (!is_of(m.rank, node)) break;
      actions.aborted_by = m.rank;
      actions.why = m.data;
      actions.status = m.status;
      break;
    default:
      break;
  }
}

// A set of ranks has one fence after the other: the first of each of its nodes belong together.
void PmixRouter::fence(int node, const PmixMessage& m, Actions& actions) {
  std::string ranks = m.ranks;
  std::set<int> nodes;
  if (!settle(ranks, nodes)) {
    PmixMessage none;
    none.what = PmixMessage::What::kFenced;
    none.id = m.id;
    none.status = kPmixNotFound;
    actions.send.emplace_back(node, std::move(none));
  }
  if (!nodes.contains(node)) return;
  Fence& f = fences_[ranks];
  f.nodes[node].push_back({m.id, m.data});
  if (f.nodes.size() < nodes.size() ||
      std::ranges::any_of(f.nodes, [](const auto& one) { return one.second.empty(); }))
    return;
  std::string all;
  for (const auto& [from, came] : f.nodes) all += came.front().data;
  for (auto& [to, came] : f.nodes) {
    PmixMessage done;
    done.what = PmixMessage::What::kFenced;
    done.id = came.front().id;
    done.data = all;
    actions.send.emplace_back(to, std::move(done));
    came.pop_front();
  }
}

}  // namespace ckpt::cluster::srun
