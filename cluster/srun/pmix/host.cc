#include "cluster/srun/pmix/host.h"

#include <dlfcn.h>
#include <errno.h>
#include <fmt/core.h>
#include <pmix.h>
#include <pmix_server.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/raii_fd.h"
#include "cluster/srun/pmix/directory.h"
#include "cluster/srun/pmix/missing.h"

namespace ckpt::cluster::srun {

namespace {

// What libpmix's thread has left, and what it waits for. There is one server in a process, and its callbacks
// carry no word of whose they are.
struct Waiting {
  pmix_modex_cbfunc_t done;
  void* data;
};
struct Desk {
  std::mutex lock;
  std::vector<PmixMessage> messages;
  std::map<uint64_t, Waiting> waiting;
  uint64_t last = 0;
  std::string name_space;  // of the step: there is no other here
  uint32_t count = 0;      // of its ranks
  ScopedFd event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  void put(PmixMessage message) {
    const std::lock_guard<std::mutex> guard(lock);
    messages.push_back(std::move(message));
    const uint64_t one = 1;
    (void)!write(event.get(), &one, sizeof(one));
  }
  void ask(PmixMessage message, pmix_modex_cbfunc_t done, void* data) {
    {
      const std::lock_guard<std::mutex> guard(lock);
      message.id = ++last;
      waiting[last] = {done, data};
    }
    put(std::move(message));
  }
};
constinit Desk* desk = nullptr;

PmixMessage of_rank(PmixMessage::What what, const pmix_proc_t* who) {
  PmixMessage m;
  m.what = what;
  m.rank = static_cast<int>(who->rank);
  return m;
}

static_assert(kPmixNotFound == PMIX_ERR_NOT_FOUND);

bool is_of_step(const pmix_proc_t& who) { return desk->name_space == who.nspace; }

// Called by libpmix's thread.
pmix_status_t connected(const pmix_proc_t* who, void*, pmix_op_cbfunc_t, void*) {
  desk->put(of_rank(PmixMessage::What::kBegan, who));
  return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t finalized(const pmix_proc_t* who, void*, pmix_op_cbfunc_t, void*) {
  desk->put(of_rank(PmixMessage::What::kFinished, who));
  return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t aborted(const pmix_proc_t* who, void*, int status, const char text[], pmix_proc_t[], size_t,
                      pmix_op_cbfunc_t, void*) {
  PmixMessage m = of_rank(PmixMessage::What::kAbort, who);
  m.status = status;
  m.data = text != nullptr ? text : "";
  desk->put(std::move(m));
  return PMIX_OPERATION_SUCCEEDED;
}

pmix_status_t fence(const pmix_proc_t procs[], size_t count, const pmix_info_t[], size_t, char* data,
                    size_t bytes, pmix_modex_cbfunc_t done, void* more) {
  for (size_t i = 0; i < count; ++i) {
    if (!is_of_step(procs[i])) return PMIX_ERR_NOT_FOUND;
  }
  PmixMessage m;
  m.what = PmixMessage::What::kFence;
  std::vector<uint32_t> ranks;
  for (size_t i = 0; i < count; ++i) ranks.push_back(procs[i].rank);
  std::ranges::sort(ranks);
  if (std::ranges::find(ranks, PMIX_RANK_WILDCARD) == ranks.end()) {
    for (const uint32_t rank : ranks) m.ranks += (m.ranks.empty() ? "" : ",") + std::to_string(rank);
  }
  if (data != nullptr) m.data.assign(data, bytes);
  desk->ask(std::move(m), done, more);
  return PMIX_SUCCESS;
}

pmix_status_t wanted(const pmix_proc_t* who, const pmix_info_t[], size_t, pmix_modex_cbfunc_t done,
                     void* more) {
  if (!is_of_step(*who) || who->rank >= desk->count) return PMIX_ERR_NOT_FOUND;
  desk->ask(of_rank(PmixMessage::What::kAsk, who), done, more);
  return PMIX_SUCCESS;
}

void give_back(void* text) { delete static_cast<std::string*>(text); }

void answered(pmix_status_t status, char* data, size_t bytes, void* question) {
  std::unique_ptr<PmixMessage> m(static_cast<PmixMessage*>(question));
  m->what = PmixMessage::What::kAnswer;
  m->status = status;
  if (data != nullptr) m->data.assign(data, bytes);
  desk->put(std::move(*m));
}

// Facts about the job, in memory that stays until they are registered.
class Facts {
 public:
  void add(const char* key, const std::string& text) {
    texts_.push_back(std::make_unique<std::string>(text));
    one(key, PMIX_STRING).data.string = texts_.back()->data();
  }
  void add(const char* key, bool flag) { one(key, PMIX_BOOL).data.flag = flag; }
  void add_number(const char* key, uint32_t n) { one(key, PMIX_UINT32).data.uint32 = n; }
  void add_small(const char* key, uint16_t n) { one(key, PMIX_UINT16).data.uint16 = n; }
  void add_rank(const char* key, uint32_t n) { one(key, PMIX_PROC_RANK).data.rank = n; }
  void add(const char* key, Facts& about) {
    about.array_ = {PMIX_INFO, about.all_.size(), about.all_.data()};
    one(key, PMIX_DATA_ARRAY).data.darray = &about.array_;
  }
  pmix_info_t* data() { return all_.data(); }
  size_t size() const { return all_.size(); }

 private:
  pmix_value_t& one(const char* key, pmix_data_type_t type) {
    pmix_info_t info;
    memset(&info, 0, sizeof(info));
    strncpy(info.key, key, PMIX_MAX_KEYLEN);
    info.value.type = type;
    all_.push_back(info);
    return all_.back().value;
  }

  std::vector<pmix_info_t> all_;
  std::vector<std::unique_ptr<std::string>> texts_;
  pmix_data_array_t array_{};
};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == at)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

}  // namespace

struct PmixHost::Library {
  void* handle = nullptr;
  std::string directory;
  pmix_nspace_t name_space{};
  bool begun = false;

  decltype(&PMIx_server_init) init;
  decltype(&PMIx_server_finalize) finalize;
  decltype(&PMIx_generate_regex) generate_regex;
  decltype(&PMIx_generate_ppn) generate_ppn;
  decltype(&PMIx_server_register_nspace) register_nspace;
  decltype(&PMIx_server_register_client) register_client;
  decltype(&PMIx_server_setup_fork) setup_fork;
  decltype(&PMIx_server_dmodex_request) dmodex_request;
  decltype(&PMIx_Error_string) error_string;

  bool open(std::string& why) {
    handle = dlopen(kPmixLibrary, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      why = fmt::format("--mpi=pmix: {} is not here", kPmixLibrary);
      return false;
    }
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (function == nullptr) why = fmt::format("--mpi=pmix: {} has no {}", kPmixLibrary, name);
      return function != nullptr;
    };
    return find(init, "PMIx_server_init") && find(finalize, "PMIx_server_finalize") &&
           find(generate_regex, "PMIx_generate_regex") && find(generate_ppn, "PMIx_generate_ppn") &&
           find(register_nspace, "PMIx_server_register_nspace") &&
           find(register_client, "PMIx_server_register_client") &&
           find(setup_fork, "PMIx_server_setup_fork") && find(dmodex_request, "PMIx_server_dmodex_request") &&
           find(error_string, "PMIx_Error_string");
  }
  bool good(pmix_status_t status, const char* what, std::string& why) const {
    if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED) return true;
    why = fmt::format("--mpi=pmix: {}: {}", what, error_string(status));
    return false;
  }
};

PmixHost::PmixHost() = default;

PmixHost::~PmixHost() {
  if (library_ == nullptr) return;
  if (library_->begun) library_->finalize();
  std::error_code ignored;
  if (!library_->directory.empty()) std::filesystem::remove_all(library_->directory, ignored);
  // libpmix's thread may be about to end: what it leaves has its place until this process ends.
}

bool PmixHost::begin(const PmixStep& step, std::string& why) {
  library_ = std::make_unique<Library>();
  Library& l = *library_;
  if (!l.open(why)) return false;
  desk = new Desk;
  desk->name_space = step.name.substr(0, PMIX_MAX_NSLEN);
  desk->count = static_cast<uint32_t>(step.count);
  l.directory = directory_of_pmix(getenv("TMPDIR")) + "/ckpt-pmix-XXXXXX";
  if (mkdtemp(l.directory.data()) == nullptr) {
    why = fmt::format("--mpi=pmix: {}: {}", l.directory, strerror(errno));
    l.directory.clear();
    return false;
  }
  // What a rank has on this host only, as the session directory of Open MPI: it goes with the step.
  const std::string session = l.directory + "/session";
  if (mkdir(session.c_str(), 0700) != 0) {
    why = fmt::format("--mpi=pmix: {}: {}", session, strerror(errno));
    return false;
  }
  static constinit pmix_server_module_t module{};
  module.client_connected = connected;
  module.client_finalized = finalized;
  module.abort = aborted;
  module.fence_nb = fence;
  module.direct_modex = wanted;
  Facts server;
  server.add(PMIX_SERVER_TMPDIR, l.directory);
  server.add(PMIX_SERVER_NSPACE, step.name + ".servers");
  server.add_rank(PMIX_SERVER_RANK, static_cast<uint32_t>(step.node));
  if (!l.good(l.init(&module, server.data(), server.size()), "the server", why)) return false;
  l.begun = true;
  strncpy(l.name_space, step.name.c_str(), PMIX_MAX_NSLEN);

  char *nodes = nullptr, *tasks = nullptr;
  if (!l.good(l.generate_regex(step.nodes.c_str(), &nodes), "the nodes", why) ||
      !l.good(l.generate_ppn(step.tasks.c_str(), &tasks), "the tasks", why))
    return false;
  const std::vector<std::string> names = split(step.nodes, ','), lists = split(step.tasks, ';');
  const size_t here = static_cast<size_t>(step.node);
  if (here >= lists.size() || lists.size() != names.size()) {
    why = "--mpi=pmix: the step has other nodes";
    return false;
  }
  const std::vector<std::string> own = split(lists[here], ',');
  Facts job;
  job.add(PMIX_JOBID, step.name);
  job.add_number(PMIX_UNIV_SIZE, static_cast<uint32_t>(step.count));
  job.add_number(PMIX_JOB_SIZE, static_cast<uint32_t>(step.count));
  job.add_number(PMIX_APP_SIZE, static_cast<uint32_t>(step.count));
  job.add_number(PMIX_MAX_PROCS, static_cast<uint32_t>(step.count));
  job.add_number(PMIX_JOB_NUM_APPS, 1);
  job.add_number(PMIX_NUM_NODES, static_cast<uint32_t>(names.size()));
  job.add_number(PMIX_LOCAL_SIZE, static_cast<uint32_t>(own.size()));
  job.add_number(PMIX_NODE_SIZE, static_cast<uint32_t>(own.size()));
  job.add(PMIX_NODE_MAP, std::string(nodes));
  job.add(PMIX_PROC_MAP, std::string(tasks));
  job.add(PMIX_LOCAL_PEERS, lists[here]);
  job.add_rank(PMIX_LOCALLDR, static_cast<uint32_t>(atoi(own[0].c_str())));
  job.add(PMIX_SPAWNED, false);
  job.add(PMIX_TMPDIR, l.directory);
  job.add(PMIX_NSDIR, session);
  job.add(PMIX_TDIR_RMCLEAN, true);
  free(nodes);
  free(tasks);
  std::vector<std::unique_ptr<Facts>> of_tasks;
  for (size_t node = 0; node < lists.size(); ++node) {
    const std::vector<std::string> its = split(lists[node], ',');
    for (size_t place = 0; place < its.size(); ++place) {
      const auto rank = static_cast<uint32_t>(atoi(its[place].c_str()));
      auto task = std::make_unique<Facts>();
      task->add_rank(PMIX_RANK, rank);
      task->add_rank(PMIX_GLOBAL_RANK, rank);
      task->add_rank(PMIX_APP_RANK, rank);
      task->add_number(PMIX_APPNUM, 0);
      task->add_small(PMIX_LOCAL_RANK, static_cast<uint16_t>(place));
      task->add_small(PMIX_NODE_RANK, static_cast<uint16_t>(place));
      task->add_number(PMIX_NODEID, static_cast<uint32_t>(node));
      task->add(PMIX_HOSTNAME, names[node]);
      job.add(PMIX_PROC_DATA, *task);
      of_tasks.push_back(std::move(task));
    }
  }
  return l.good(
      l.register_nspace(l.name_space, static_cast<int>(own.size()), job.data(), job.size(), nullptr, nullptr),
      "the step", why);
}

bool PmixHost::environment_of(int task, std::vector<std::string>& all, std::string& why) {
  pmix_proc_t who;
  memset(&who, 0, sizeof(who));
  memcpy(who.nspace, library_->name_space, sizeof(who.nspace));
  who.rank = static_cast<uint32_t>(task);
  const std::string name = fmt::format("task {}", task);
  char** variables = nullptr;
  if (!library_->good(library_->register_client(&who, getuid(), getgid(), nullptr, nullptr, nullptr),
                      name.c_str(), why) ||
      !library_->good(library_->setup_fork(&who, &variables), name.c_str(), why))
    return false;
  for (char** v = variables; v != nullptr && *v != nullptr; ++v) {
    all.emplace_back(*v);
    free(*v);
  }
  free(variables);
  return true;
}

int PmixHost::fd() const { return desk != nullptr ? desk->event.get() : -1; }

std::vector<PmixMessage> PmixHost::take() {
  const std::lock_guard<std::mutex> guard(desk->lock);
  uint64_t count;
  (void)!read(desk->event.get(), &count, sizeof(count));
  return std::move(desk->messages);
}

void PmixHost::hear(const PmixMessage& m) {
  if (m.what == PmixMessage::What::kAsk) {
    pmix_proc_t who;
    memset(&who, 0, sizeof(who));
    memcpy(who.nspace, library_->name_space, sizeof(who.nspace));
    who.rank = static_cast<uint32_t>(m.rank);
    auto question = std::make_unique<PmixMessage>(m);
    const pmix_status_t asked = library_->dmodex_request(&who, answered, question.get());
    if (asked == PMIX_SUCCESS)
      (void)question.release();  // answered() has it
    else
      answered(asked, nullptr, 0, question.release());
    return;
  }
  if (m.what != PmixMessage::What::kFenced && m.what != PmixMessage::What::kAnswer) return;
  Waiting who{};
  {
    const std::lock_guard<std::mutex> guard(desk->lock);
    const auto it = desk->waiting.find(m.id);
    if (it == desk->waiting.end()) return;
    who = it->second;
    desk->waiting.erase(it);
  }
  auto* bytes = new std::string(m.data);
  who.done(m.status, bytes->data(), bytes->size(), who.data, give_back, bytes);
}

}  // namespace ckpt::cluster::srun
