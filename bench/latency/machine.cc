#include "bench/latency/machine.h"

#include <fmt/core.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "base/settings/settings.h"
#include "bench/latency/cgroup.h"

namespace latency {
namespace {

std::string line_of(const std::string& path, const std::string& start) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(start)) return line;
  }
  return "";
}

uint64_t kilobytes(const std::string& start) {
  std::istringstream words(line_of("/proc/meminfo", start));
  std::string name;
  uint64_t value = 0;
  words >> name >> value;
  return value << 10;
}

// "ext4 on /dev/vda": the mount that holds the directory.
std::string file_system(const std::string& directory) {
  std::ifstream mounts("/proc/self/mounts");
  std::string best, answer = "?", device, path, type, rest;
  while (mounts >> device >> path >> type && std::getline(mounts, rest)) {
    const bool holds = path == "/" || directory == path || directory.starts_with(path + "/");
    if (holds && path.size() >= best.size()) {
      best = path;
      answer = fmt::format("{} on {}", type, device);
    }
  }
  return answer;
}

const std::vector<std::string>& small_program(const Places& places) {
  static const std::vector<std::string> command{
      places.program("gaps"), "--load", "idle", "--size", "1M", "--threads", "1", "--seconds", "60"};
  return command;
}

}  // namespace

uint64_t available_memory() { return kilobytes("MemAvailable:"); }

uint64_t free_disk(const std::string& directory) {
  struct statvfs s {};
  return statvfs(directory.c_str(), &s) == 0 ? s.f_bavail * s.f_frsize : 0;
}

std::vector<std::pair<std::string, std::string>> describe_machine(const std::string& images) {
  std::string cpu = line_of("/proc/cpuinfo", "model name");
  utsname name{};
  uname(&name);
  std::string load;
  std::ifstream("/proc/loadavg") >> load;
  std::string huge = "?";
  std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), huge);
  std::string why = "usable";
  { auto group = Cgroup::make(&why); }
  return {{"cpu", cpu.substr(std::min(cpu.size(), cpu.find(':') + 2))},
          {"cores", std::to_string(std::thread::hardware_concurrency())},
          {"memory", fmt::format("{:.1f} GiB, {:.1f} GiB of it available",
                                 static_cast<double>(kilobytes("MemTotal:")) / 0x1p30,
                                 static_cast<double>(available_memory()) / 0x1p30)},
          {"swap", fmt::format("{:.1f} GiB", static_cast<double>(kilobytes("SwapTotal:")) / 0x1p30)},
          {"kernel", fmt::format("{} {}", name.sysname, name.release)},
          {"transparent_huge_pages", huge},
          {"file_system_of_images", file_system(images)},
          {"load_average_at_start", load},
          {"memory_cgroups", why}};
}

std::vector<Method> try_modes(const Places& places) {
  std::vector<Method> methods;
  for (uint32_t number = 0;; ++number) {
    const auto mode = static_cast<ckpt::Mode>(number);
    std::string name = ckpt::mode_name(mode);
    if (name == "?") return methods;
    if (mode == ckpt::Mode::kAuto) continue;
    Method method{name, ""};
    try {
      Child child(places, small_program(places), {.method = name});
      child.read_until("ready");
      std::string used = child.checkpoint().answer.value("mode", "");
      if (used != name) method.why_not = fmt::format("the library takes mode {} instead", used);
    } catch (const Failure& e) {
      method.why_not = e.what();
    }
    methods.push_back(method);
  }
}

Method try_criu(const Places& places) try {
  Child child(places, small_program(places), {.method = kCriu});
  child.read_until("ready");
  child.checkpoint();
  return {kCriu, ""};
} catch (const Failure& e) {
  return {kCriu, e.what()};
}

}  // namespace latency
