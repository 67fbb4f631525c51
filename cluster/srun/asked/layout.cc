#include "cluster/srun/asked/layout.h"

#include <algorithm>

#include "cluster/srun/asked/hostlist.h"

namespace ckpt::cluster::srun {

Result<Allocation> read_allocation(const Variables& variables) {
  Allocation a;
  const char* list = variables("SLURM_JOB_NODELIST");
  if (list == nullptr) list = variables("SLURM_NODELIST");
  const char* id = variables("SLURM_JOB_ID");
  if (list == nullptr || id == nullptr || *list == '\0')
    return make_error(
        ExitCode::kUnsupported, 0,
        "no allocation of Slurm is here (SLURM_JOB_ID, SLURM_JOB_NODELIST), and ckpt asks for none; use "
        "sbatch or salloc");
  a.job_id = id;
  auto nodes = expand_hostlist(list);
  if (!nodes.ok()) return nodes.error();
  a.nodes = std::move(*nodes);
  if (const char* cpus = variables("SLURM_JOB_CPUS_PER_NODE"); cpus != nullptr) {
    auto counts = expand_counts(cpus);
    if (!counts.ok()) return counts.error();
    if (counts->size() == a.nodes.size()) a.cpus = std::move(*counts);
  }
  return a;
}

namespace {

constexpr int64_t kMostTasks = 10'000'000;

// Places in the allocation, in its order.
Result<std::vector<size_t>> choose_nodes(const Options& o, const Allocation& a) {
  std::vector<std::string> wanted, left_out;
  for (const auto& [text, list] : {std::pair(&o.nodelist, &wanted), std::pair(&o.exclude, &left_out)}) {
    if (text->empty()) continue;
    auto names = expand_hostlist(*text);
    if (!names.ok()) return names.error();
    *list = std::move(*names);
  }
  const auto has = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const std::string& name : wanted) {
    if (!has(a.nodes, name))
      return make_error(ExitCode::kUsage, 0, "--nodelist: {} is not in this allocation, which has {}", name,
                        compress_hostlist(a.nodes));
  }
  std::vector<size_t> places;
  for (size_t i = static_cast<size_t>(o.relative); i < a.nodes.size(); ++i) {
    if (has(left_out, a.nodes[i])) continue;
    if (wanted.empty() || has(wanted, a.nodes[i])) places.push_back(i);
  }
  // Nodes that are named come first, other nodes are added up to --nodes.
  const size_t most = static_cast<size_t>(o.nodes);
  for (size_t i = 0; !wanted.empty() && i < a.nodes.size() && places.size() < most; ++i) {
    if (!has(wanted, a.nodes[i]) && !has(left_out, a.nodes[i])) places.push_back(i);
  }
  if (places.empty() || places.size() < static_cast<size_t>(o.least_nodes))
    return make_error(ExitCode::kUsage, 0, "more nodes are asked for than this allocation has: {}",
                      compress_hostlist(a.nodes));
  if (o.nodes != 0 && places.size() > most) places.resize(most);
  std::sort(places.begin(), places.end());
  return places;
}

// Gives one task after the other to each node that has room; when no node has room, to each in turn.
std::vector<int> share_out(int tasks, const std::vector<int>& room) {
  std::vector<int> counts(room.size());
  for (bool full = false; tasks > 0;) {
    bool any = false;
    for (size_t i = 0; i < room.size() && tasks > 0; ++i) {
      if (!full && counts[i] >= room[i]) continue;
      ++counts[i];
      --tasks;
      any = true;
    }
    full = full || !any;
  }
  return counts;
}

}  // namespace

std::vector<int> Layout::counts() const {
  std::vector<int> all;
  for (const auto& of_node : tasks) all.push_back(static_cast<int>(of_node.size()));
  return all;
}

std::string Layout::mapping() const {
  std::string text = "(vector";
  const size_t all = node_of.size();
  const auto run_at = [&](size_t task) {
    size_t end = task;
    while (end < all && node_of[end] == node_of[task]) ++end;
    return end - task;
  };
  for (size_t task = 0; task < all;) {
    const int first = node_of[task];
    const size_t each = run_at(task);
    int alike = 0;
    while (task < all && node_of[task] == first + alike && run_at(task) == each) {
      ++alike;
      task += each;
    }
    text += fmt::format(",({},{},{})", first, alike, each);
  }
  return text + ")";
}

Result<Layout> lay_out(const Options& o, const Allocation& a) {
  auto places = choose_nodes(o, a);
  if (!places.ok()) return places.error();
  const int chosen = static_cast<int>(places->size());
  int tasks = o.tasks;
  if (tasks == 0) {
    const int64_t all = int64_t{chosen} * std::max(1, o.tasks_per_node);
    if (all > kMostTasks)
      return make_error(ExitCode::kUsage, 0, "--ntasks-per-node: {} tasks on {} nodes are too many",
                        o.tasks_per_node, chosen);
    tasks = static_cast<int>(all);
  }
  if (tasks < chosen) places->resize(static_cast<size_t>(tasks));
  Layout layout;
  std::vector<int> room;
  for (const size_t i : *places) {
    layout.nodes.push_back(a.nodes[i]);
    if (!a.cpus.empty()) layout.cpus.push_back(a.cpus[i]);
    int most = a.cpus.empty() ? tasks : std::max(1, a.cpus[i] / std::max(1, o.cpus_per_task));
    if (o.tasks_per_node != 0) most = o.tasks_per_node;
    room.push_back(most);
  }
  std::vector<int> left = share_out(tasks, room);
  layout.tasks.resize(layout.nodes.size());
  layout.node_of.resize(static_cast<size_t>(tasks));
  const int at_a_time = o.distribution == Distribution::kBlock    ? tasks
                        : o.distribution == Distribution::kCyclic ? 1
                                                                  : o.plane;
  for (int task = 0; task < tasks;) {
    for (size_t node = 0; node < left.size(); ++node) {
      for (int k = 0; k < at_a_time && left[node] > 0; ++k, --left[node], ++task) {
        layout.node_of[static_cast<size_t>(task)] = static_cast<int>(node);
        layout.tasks[node].push_back(task);
      }
    }
  }
  return layout;
}

}  // namespace ckpt::cluster::srun
