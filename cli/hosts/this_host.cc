#include "cli/hosts/this_host.h"

#include <dirent.h>
#include <stdlib.h>

#include <fstream>
#include <map>
#include <memory>

#include "cli/program/preload.h"

namespace ckpt::cli {

Json files_of_host() {
  Json files = Json::object();
  auto library = find_library("libckpt_rt.so");
  if (library.ok()) files["libckpt_rt.so"] = checksum_of_file(*library);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t slash = line.find('/');
    if (slash == std::string::npos) continue;
    const std::string path = line.substr(slash), name = path.substr(path.rfind('/') + 1);
    if (name.starts_with("libc.so") || name.starts_with("ld-linux") || name.starts_with("libstdc++"))
      files[name] = checksum_of_file(path);
  }
  return files;
}

std::vector<int> descendants(int of) {
  std::multimap<int, int> children;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir("/proc"), closedir);
  while (dir != nullptr) {
    const dirent* e = readdir(dir.get());
    if (e == nullptr) break;
    const int pid = atoi(e->d_name);
    if (pid <= 0) continue;
    std::ifstream stat("/proc/" + std::string(e->d_name) + "/stat");
    std::string text;
    std::getline(stat, text);
    const size_t end = text.rfind(')');
    if (end == std::string::npos || end + 4 > text.size()) continue;
    children.emplace(atoi(text.c_str() + end + 4), pid);
  }
  std::vector<int> all, left{of};
  while (!left.empty()) {
    const int pid = left.back();
    left.pop_back();
    for (auto [i, end] = children.equal_range(pid); i != end; ++i) {
      all.push_back(i->second);
      left.push_back(i->second);
    }
  }
  return all;
}

}  // namespace ckpt::cli
