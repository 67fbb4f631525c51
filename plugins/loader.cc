// libckpt_plugins.so: loads the plug-ins of CKPT_PLUGINS into a process, and has the library call them (ckpt_plugin.h).
//
// Owner:     plugins; preloaded by `ckpt run --plugins` behind libckpt_rt.so. A library of its own: processes without
//            plug-ins do without.
// Callers:   the dynamic linker, once, before main(): ordinary code. Later only call_back() runs, in callbacks of the
//            library, where signal-safety(7) holds.
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CKPT_RT_OPTIONAL
#include "include/ckpt_plugin.h"
#include "plugins/trusted.h"

namespace ckpt::plugins {
namespace {

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
  if (plugin == nullptr || plugin->size < sizeof(*plugin) || plugin->api_version != CKPT_PLUGIN_API_VERSION)
    refuse(path, "is none of this version: build it with this ckpt_plugin.h", 68);
  char why[256] = "";
  if (plugin->load != nullptr && plugin->load(why, sizeof(why)) != 0)
    refuse(path, why[0] != '\0' ? why : "does not want to be loaded", CKPT_RT_UNSUPPORTED);
  add(path, CKPT_RT_BEFORE_CHECKPOINT, plugin->stopped);
  add(path, CKPT_RT_AFTER_CHECKPOINT, plugin->go_on);
  add(path, CKPT_RT_AFTER_RESTART, plugin->restarted);
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
  errno = before;
}

}  // namespace
}  // namespace ckpt::plugins
