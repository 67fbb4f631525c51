// libckpt_plugins.so: loads the plug-ins of CKPT_PLUGINS into a process, and has the library call them
// (ckpt_plugin.h).
//
// Owner:     plugins; preloaded by `ckpt run --plugins` behind libckpt_rt.so. A library of its own: processes
//            without plug-ins do without.
// Callers:   the dynamic linker, once, before main(): ordinary code. Later only call_back() runs, in
//            callbacks of the library, where signal-safety(7) holds; and what prepares checkpoints, on a
//            thread that is made here, and made again in each forked child.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CKPT_RT_OPTIONAL
#include "include/ckpt_plugin.h"
#include "plugins/trusted.h"

namespace ckpt::plugins {
namespace {

// The end of the structure in the first version of the header.
constexpr size_t kLeastSize = offsetof(struct ckpt_plugin, prepare);

// Is this member in the structure, and set? An older plug-in's ends before it.
template <typename Member>
bool has(const struct ckpt_plugin& plugin, const Member& member) {
  const auto offset =
      static_cast<size_t>(reinterpret_cast<const char*>(&member) - reinterpret_cast<const char*>(&plugin));
  return plugin.size >= offset + sizeof(member) && member != nullptr;
}

// A process without a plug-in that it was to have would be saved wrong.
[[noreturn]] void refuse(const std::string& path, const std::string& why, int code) {
  fprintf(stderr, "ckpt: plug-in %s: %s\n", path.c_str(), why.c_str());
  _exit(code);
}

void call_back(ckpt_rt_callback_kind, void* function) {
  void (*event)(void);
  memcpy(&event, &function, sizeof(event));
  event();
}

// Plug-ins that prepare checkpoints. Filled before main(), read by the thread that prepares.
struct Preparing {
  const struct ckpt_plugin* plugin;
  std::string path;
};
constexpr size_t kMostPreparing = 64;
Preparing preparing[kMostPreparing];  // not constinit: clang makes no std::string without code
constinit size_t preparing_count = 0;
constinit uint32_t prepare_round = 0;

void prepare_all(ckpt_rt_callback_kind, void*) {
  for (size_t i = 0; i < preparing_count; ++i) {
    const struct ckpt_plugin& p = *preparing[i].plugin;
    char why[160] = "";
    if (!has(p, p.prepare) || p.prepare(prepare_round, why, sizeof(why)) == 0) continue;
    const std::string words = "plug-in " +
                              std::string(p.name != nullptr ? p.name : preparing[i].path.c_str()) + ": " +
                              (why[0] != '\0' ? why : "does not want this checkpoint");
    ckpt_rt_refuse(words.c_str());
    break;
  }
  ++prepare_round;
}

void conclude_all(ckpt_rt_callback_kind how, void*) {
  prepare_round = 0;
  for (size_t i = 0; i < preparing_count; ++i) {
    const struct ckpt_plugin& p = *preparing[i].plugin;
    if (has(p, p.concluded)) p.concluded(how);
  }
}

void* serve(void*) {
  ckpt_rt_serve();
  return nullptr;
}

// Signals of the program are for the program's threads.
void start_thread() {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  if (pthread_create(&thread, nullptr, serve, nullptr) == 0) pthread_detach(thread);
  // If there is none, checkpoints of this process are given up, and say so.
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void add(const std::string& path, ckpt_rt_callback_kind kind, void (*event)(void)) {
  if (event == nullptr) return;
  void* function;
  memcpy(&function, &event, sizeof(function));
  if (ckpt_rt_add_callback(kind, call_back, function) != CKPT_RT_OK)
    refuse(path, "there are too many plug-ins and callbacks: leave one out", CKPT_RT_UNSUPPORTED);
}

void load(const std::string& path) {
  if (const std::string why = why_not_trusted(path); !why.empty()) refuse(path, why, 77);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse(path, std::string("cannot be loaded: ") + dlerror(), CKPT_RT_UNSUPPORTED);
  const auto* plugin = static_cast<const struct ckpt_plugin*>(dlsym(library, "ckpt_plugin"));
  if (plugin == nullptr || plugin->size < kLeastSize || plugin->api_version != CKPT_PLUGIN_API_VERSION)
    refuse(path, "is none of this version: build it with this ckpt_plugin.h", 68);
  char why[256] = "";
  if (plugin->load != nullptr && plugin->load(why, sizeof(why)) != 0)
    refuse(path, why[0] != '\0' ? why : "does not want to be loaded", CKPT_RT_UNSUPPORTED);
  add(path, CKPT_RT_BEFORE_CHECKPOINT, plugin->stopped);
  add(path, CKPT_RT_AFTER_CHECKPOINT, plugin->go_on);
  add(path, CKPT_RT_AFTER_RESTART, plugin->restarted);
  if (!has(*plugin, plugin->prepare) && !has(*plugin, plugin->concluded)) return;
  if (preparing_count == kMostPreparing)
    refuse(path, "there are too many plug-ins: leave one out", CKPT_RT_UNSUPPORTED);
  preparing[preparing_count++] = {plugin, path};
}

void begin_preparing() {
  const struct {
    ckpt_rt_callback_kind kind;
    ckpt_rt_callback function;
  } wanted[] = {{CKPT_RT_PREPARE, prepare_all},
                {CKPT_RT_DURABLE, conclude_all},
                {CKPT_RT_ABANDONED, conclude_all},
                {CKPT_RT_CAME_BACK, conclude_all}};
  for (const auto& w : wanted) {
    if (ckpt_rt_add_callback(w.kind, w.function, nullptr) != CKPT_RT_OK)
      refuse(preparing[0].path, "there are too many plug-ins and callbacks: leave one out",
             CKPT_RT_UNSUPPORTED);
  }
  start_thread();
  pthread_atfork(nullptr, nullptr, start_thread);
}

__attribute__((constructor)) void load_all() {
  const int before = errno;
  const char* list = getenv("CKPT_PLUGINS");
  while (list != nullptr && *list != '\0') {
    const size_t length = strcspn(list, ":");
    if (length != 0) load(std::string(list, length));
    list += length;
    if (*list == ':') ++list;
  }
  if (preparing_count != 0) begin_preparing();
  errno = before;
}

}  // namespace
}  // namespace ckpt::plugins
