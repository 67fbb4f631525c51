#include "cluster/srun/pmi/server.h"

#include <algorithm>

namespace ckpt::cluster::srun {

namespace {

constexpr size_t kMostBytes = size_t{1} << 30;  // of all tasks
constexpr size_t kMostWords = 200;

// For a terminal, whatever a task has written.
std::string printable(const std::string& text) {
  std::string words = text.substr(0, kMostWords);
  for (char& c : words) {
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return text.size() > kMostWords ? words + "..." : words;
}

}  // namespace

PmiServer::PmiServer(const Layout& layout, std::string id)
    : layout_(layout),
      id_(std::move(id)),
      tasks_(layout.node_of.size()),
      of_nodes_(layout.nodes.size()),
      ring_(layout.node_of.size()) {
  put_in(values_, "PMI_process_mapping", layout_.mapping());
}

void PmiServer::hear(int task, std::string_view bytes, Actions& actions) {
  Task& t = tasks_[static_cast<size_t>(task)];
  if (t.closed) return;
  std::vector<PmiMessage> messages;
  bool good = t.reader.feed(bytes, messages);
  for (const PmiMessage& m : messages) {
    if (t.closed || actions.aborted_by >= 0) return;
    if (m.command == "init") {
      t.began = true;
      const bool second = m.get("pmi_version") == "2";
      // Always as a line: it decides about the form of all that follows.
      actions.answers.emplace_back(task, write_message(false, {"response_to_init",
                                                               {{"pmi_version", second ? "2" : "1"},
                                                                {"pmi_subversion", second ? "0" : "1"},
                                                                {"rc", "0"}}}));
      continue;
    }
    t.second = m.second;
    const bool known = m.second ? serve_second(task, m, actions) : serve_first(task, m, actions);
    good = good && known;
    if (!known)
      actions.why =
          "its PMI has the command " + printable(m.command.substr(0, 60)) + ", which ckpt does not know";
    if (!good) break;
  }
  if (good) return;
  if (actions.why.empty()) actions.why = "what it writes at its PMI socket is no PMI";
  // Not finished: when it ends, none of the others is to wait for it.
  t.began = t.closed = true;
  actions.close.push_back(task);
}

void PmiServer::answer(int task, const std::string& command, Pairs pairs, Actions& actions,
                       const std::string& thread) {
  if (!thread.empty()) pairs.insert(pairs.begin(), {"thrid", thread});
  const bool second = tasks_[static_cast<size_t>(task)].second;
  actions.answers.emplace_back(task, write_message(second, {command, std::move(pairs)}));
}

bool PmiServer::put(const std::string& key, const std::string& value) {
  return !key.empty() && put_in(next_values_, key, value);
}

bool PmiServer::put_in(std::map<std::string, std::string>& table, const std::string& key,
                       const std::string& value) {
  const auto it = table.find(key);
  const size_t before = it != table.end() ? key.size() + it->second.size() : 0;
  if (bytes_ - before + key.size() + value.size() > kMostBytes) return false;
  bytes_ += key.size() + value.size() - before;
  table[key] = value;
  return true;
}

bool PmiServer::publish(const std::string& name, const std::string& port) {
  return !names_.contains(name) && put_in(names_, name, port);
}

bool PmiServer::unpublish(const std::string& name) {
  const auto it = names_.find(name);
  if (it == names_.end()) return false;
  bytes_ -= name.size() + it->second.size();
  names_.erase(it);
  return true;
}

void PmiServer::end(int task, const std::string& command, const PmiMessage& m, Actions& actions) {
  answer(task, command, {{"rc", "0"}}, actions, m.get("thrid"));
  tasks_[static_cast<size_t>(task)].finished = tasks_[static_cast<size_t>(task)].closed = true;
  actions.close.push_back(task);
}

// All have to come; then all see what each has put.
void PmiServer::fence(int task, const PmiMessage& m, Actions& actions) {
  tasks_[static_cast<size_t>(task)].thread = m.get("thrid");
  fenced_.insert(task);
  if (static_cast<int>(fenced_.size()) < count()) return;
  fenced_.clear();
  for (auto& [key, value] : next_values_) {
    if (const auto it = values_.find(key); it != values_.end()) bytes_ -= key.size() + it->second.size();
    values_[key] = std::move(value);
  }
  next_values_.clear();
  for (int t = 0; t < count(); ++t) {
    const Task& one = tasks_[static_cast<size_t>(t)];
    answer(t, one.second ? "kvs-fence-response" : "barrier_out", {{"rc", "0"}}, actions, one.thread);
  }
}

// PMIX_Ring: each task gets its place in the sum of all counts, and what its neighbours have given.
void PmiServer::ring(int task, const PmiMessage& m, Actions& actions) {
  InRing& own = ring_[static_cast<size_t>(task)];
  if (!own.in) ++in_ring_;
  own = {true, atoi(m.get("ring-count").c_str()), m.get("ring-left"), m.get("ring-right"), m.get("thrid")};
  if (in_ring_ < count()) return;
  in_ring_ = 0;
  long sum = 0;
  const size_t all = ring_.size();
  for (size_t t = 0; t < all; ++t) {
    answer(static_cast<int>(t), "ring-response",
           {{"rc", "0"},
            {"ring-count", std::to_string(sum)},
            {"ring-left", ring_[(t + all - 1) % all].right},
            {"ring-right", ring_[(t + 1) % all].left}},
           actions, ring_[t].thread);
    sum += ring_[t].count;
  }
  for (InRing& one : ring_) one.in = false;
}

void PmiServer::node_attribute(int task, const PmiMessage& m, Actions& actions) {
  const int node = layout_.node_of[static_cast<size_t>(task)];
  const auto& values = of_nodes_[static_cast<size_t>(node)];
  const auto it = values.find(m.get("key"));
  const size_t asked = m.get("key").size() + m.get("thrid").size() + sizeof(WaitsForNode);
  if (it == values.end() && m.is_true("wait") && bytes_ + asked <= kMostBytes) {
    bytes_ += asked;
    waiting_.push_back({task, node, m.get("key"), m.get("thrid")});
    return;
  }
  Pairs pairs{{"rc", "0"}, {"found", it == values.end() ? "FALSE" : "TRUE"}};
  if (it != values.end()) pairs.emplace_back("value", it->second);
  answer(task, "info-getnodeattr-response", std::move(pairs), actions, m.get("thrid"));
}

void PmiServer::put_node_attribute(int task, const PmiMessage& m, Actions& actions) {
  const int node = layout_.node_of[static_cast<size_t>(task)];
  const std::string key = m.get("key"), value = m.get("value");
  const bool fits = put_in(of_nodes_[static_cast<size_t>(node)], key, value);
  answer(task, "info-putnodeattr-response", {{"rc", fits ? "0" : "1"}}, actions, m.get("thrid"));
  if (!fits) return;
  for (const WaitsForNode& w : waiting_) {
    if (w.node != node || w.key != key) continue;
    bytes_ -= w.key.size() + w.thread.size() + sizeof(WaitsForNode);
    answer(w.task, "info-getnodeattr-response", {{"rc", "0"}, {"found", "TRUE"}, {"value", value}}, actions,
           w.thread);
  }
  std::erase_if(waiting_, [&](const WaitsForNode& w) { return w.node == node && w.key == key; });
}

bool PmiServer::serve_first(int task, const PmiMessage& m, Actions& actions) {
  const std::string& c = m.command;
  if (c == "get_maxes") {
    answer(task, "maxes", {{"rc", "0"}, {"kvsname_max", "256"}, {"keylen_max", "64"}, {"vallen_max", "1024"}},
           actions);
  } else if (c == "get_universe_size") {
    answer(task, "universe_size", {{"rc", "0"}, {"size", std::to_string(count())}}, actions);
  } else if (c == "get_appnum") {
    answer(task, "appnum", {{"rc", "0"}, {"appnum", "-1"}}, actions);
  } else if (c == "get_my_kvsname") {
    answer(task, "my_kvsname", {{"rc", "0"}, {"kvsname", id_}}, actions);
  } else if (c == "barrier_in") {
    fence(task, m, actions);
  } else if (c == "put") {
    const bool done = put(m.get("key"), m.get("value"));
    answer(task, "put_result", {{"rc", done ? "0" : "1"}, {"msg", done ? "success" : "no_room"}}, actions);
  } else if (c == "get") {
    const auto it = values_.find(m.get("key"));
    if (it == values_.end())
      answer(task, "get_result", {{"rc", "1"}, {"msg", "key_not_found"}}, actions);
    else
      answer(task, "get_result", {{"rc", "0"}, {"msg", "success"}, {"value", it->second}}, actions);
  } else if (c == "publish_name") {
    const bool done = publish(m.get("service"), m.get("port"));
    answer(task, "publish_result", {{"info", done ? "ok" : "fail"}, {"rc", done ? "0" : "1"}}, actions);
  } else if (c == "unpublish_name") {
    const bool done = unpublish(m.get("service"));
    answer(task, "unpublish_result", {{"info", done ? "ok" : "fail"}, {"rc", done ? "0" : "1"}}, actions);
  } else if (c == "lookup_name") {
    const auto it = names_.find(m.get("service"));
    if (it == names_.end())
      answer(task, "lookup_result", {{"info", "fail"}, {"rc", "1"}}, actions);
    else
      answer(task, "lookup_result", {{"info", "ok"}, {"rc", "0"}, {"port", it->second}}, actions);
  } else if (c == "spawn") {
    answer(task, "spawn_result", {{"rc", "-1"}, {"errcodes", "1"}}, actions);
    actions.why = "MPI_Comm_spawn: ckpt starts no more tasks in a step; start them all with -n";
  } else if (c == "abort") {
    actions.aborted_by = task;
    actions.why = m.get("exitcode").empty() ? "" : "exit code " + printable(m.get("exitcode"));
  } else if (c == "finalize") {
    end(task, "finalize_ack", m, actions);
  } else {
    return false;
  }
  return true;
}

bool PmiServer::serve_second(int task, const PmiMessage& m, Actions& actions) {
  const std::string &c = m.command, thread = m.get("thrid");
  const auto found = [&](const char* command, const std::string* value) {
    Pairs pairs{{"rc", "0"}, {"found", value == nullptr ? "FALSE" : "TRUE"}};
    if (value != nullptr) pairs.emplace_back("value", *value);
    answer(task, command, std::move(pairs), actions, thread);
  };
  const auto done = [&](const char* command, bool well) {
    answer(task, command, {{"rc", well ? "0" : "1"}}, actions, thread);
  };
  if (c == "fullinit") {
    answer(task, "fullinit-response",
           {{"rc", "0"},
            {"pmi-version", "2"},
            {"pmi-subversion", "0"},
            {"rank", std::to_string(task)},
            {"size", std::to_string(count())},
            {"appnum", "-1"},
            {"debugged", "FALSE"},
            {"pmiverbose", "FALSE"}},
           actions);
  } else if (c == "job-getid") {
    answer(task, "job-getid-response", {{"rc", "0"}, {"jobid", id_}}, actions, thread);
  } else if (c == "kvs-put") {
    done("kvs-put-response", put(m.get("key"), m.get("value")));
  } else if (c == "kvs-fence") {
    fence(task, m, actions);
  } else if (c == "kvs-get") {
    const auto it = values_.find(m.get("key"));
    found("kvs-get-response", it == values_.end() ? nullptr : &it->second);
  } else if (c == "ring") {
    ring(task, m, actions);
  } else if (c == "info-getjobattr") {
    const std::string key = m.get("key"), size = std::to_string(count());
    const std::string& mapping = values_["PMI_process_mapping"];
    found("info-getjobattr-response", key == "universeSize"          ? &size
                                      : key == "PMI_process_mapping" ? &mapping
                                                                     : nullptr);
  } else if (c == "info-getnodeattr") {
    node_attribute(task, m, actions);
  } else if (c == "info-putnodeattr") {
    put_node_attribute(task, m, actions);
  } else if (c == "name-publish") {
    done("name-publish-response", publish(m.get("name"), m.get("port")));
  } else if (c == "name-unpublish") {
    done("name-unpublish-response", unpublish(m.get("name")));
  } else if (c == "name-lookup") {
    const auto it = names_.find(m.get("name"));
    if (it == names_.end())
      done("name-lookup-response", false);
    else
      answer(task, "name-lookup-response", {{"rc", "0"}, {"value", it->second}}, actions, thread);
  } else if (c == "spawn") {
    answer(task, "spawn-response", {{"rc", "1"}, {"errmsg", "ckpt starts no more tasks in a step"}}, actions,
           thread);
    actions.why = "MPI_Comm_spawn: ckpt starts no more tasks in a step; start them all with -n";
  } else if (c == "abort") {
    if (m.is_true("isworld")) actions.aborted_by = task;
    actions.why = printable(m.get("msg"));
  } else if (c == "finalize") {
    end(task, "finalize-response", m, actions);
  } else {
    return false;
  }
  return true;
}

}  // namespace ckpt::cluster::srun
