#include "cli/plan/measured.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <vector>

#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

template <typename T>
T median(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The number that follows `key`.
bool number_after(const std::string& line, const char* key, unsigned long long& out) {
  const size_t at = line.rfind(key);
  return at != line.npos &&
         std::sscanf(line.c_str() + at + std::char_traits<char>::length(key), "%llu", &out) == 1;
}

}  // namespace

Result<Measured> read_measured(const std::string& directory, int pid) {
  const std::string path = directory + "/ckpt_rt.log";
  std::ifstream log(path);
  if (!log)
    return failure(ExitCode::kNotFound, path, "cannot be read",
                   "name a program's pid, its image directory, or give "
                   "--overhead and --latency");
  std::vector<double> pauses, durables;
  std::vector<uint64_t> sizes;
  Measured m;
  for (std::string line; std::getline(log, line);) {
    // TIME pid N: image PATH mode realtime, an increment, pause 425 us, durable after 7 ms, 401408 bytes
    unsigned long long of = 0, pause = 0, durable = 0, bytes = 0;
    const size_t place = line.find(" pid ");
    if (place == line.npos || std::sscanf(line.c_str() + place, " pid %llu: image", &of) != 1) continue;
    if (pid != 0 && of != static_cast<unsigned long long>(pid)) continue;
    const size_t last = line.rfind(", ");
    if (!number_after(line, " pause ", pause) || !number_after(line, " durable after ", durable) ||
        last == line.npos || std::sscanf(line.c_str() + last, ", %llu bytes", &bytes) != 1) {
      continue;
    }
    pauses.push_back(static_cast<double>(pause) / 1e6);
    durables.push_back(static_cast<double>(durable) / 1e3);
    sizes.push_back(bytes);
    if (line.find(", an increment,") == line.npos) m.full_bytes = bytes;
  }
  if (pauses.empty())
    return failure(ExitCode::kNotFound, path, "tells of no checkpoint", "take some with ckpt now first");
  m.checkpoints = static_cast<unsigned>(pauses.size());
  m.pause = median(pauses);
  m.durable = median(durables);
  m.bytes = median(sizes);
  if (m.full_bytes == 0) m.full_bytes = *std::max_element(sizes.begin(), sizes.end());
  return m;
}

}  // namespace ckpt::cli
