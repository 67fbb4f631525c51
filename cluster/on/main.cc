#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/files/standard_descriptors.h"
#include "cluster/on/on.h"

namespace ckpt::cluster {

Result<OnTable> read_on_table() {
  const char* path = getenv("CKPT_ON");
  if (path == nullptr)
    return make_error(ExitCode::kUsage, 0,
                      "ckpt-on runs in a job over several hosts only: ckpt run --hosts (CKPT_ON is not set)");
  struct stat st;
  if (stat(path, &st) != 0)
    return make_error(ExitCode::kNotFound, errno, "{}: the table of the job's hosts cannot be read ({})",
                      path, errno_name(errno));
  if (st.st_uid != geteuid() || (st.st_mode & 077) != 0)
    return make_error(ExitCode::kPermission, 0, "{}: belongs to another user, or others may read it", path);
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in, nullptr, false);
  OnTable table;
  if (!json.is_object() || !read_secret(json.value("secret", ""), table.secret) || !json.contains("hosts"))
    return make_error(ExitCode::kImageDamaged, 0, "{}: is no table of a job's hosts", path);
  table.own = json.value("own", "");
  table.silence_ms = std::clamp(json.value("silence_ms", table.silence_ms), 1000, 600'000);
  for (const auto& h : json["hosts"])
    table.hosts.push_back({h.value("name", ""), h.value("address", ""), h.value("port", 0)});
  return table;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

namespace {

// As ssh is called by mpirun and hydra: options that mean nothing here, the host, the words of a command.
int main(int argc, char** argv) {
  if (argc >= 3 && strcmp(argv[1], "--serve") == 0) {
    char** program = argc > 4 && strcmp(argv[3], "--") == 0 ? argv + 4 : nullptr;
    return serve(atoi(argv[2]), program);
  }
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; ++i) {
    if (strcmp(argv[i], "-l") == 0) ++i;  // the user: ours
  }
  std::string command;
  for (int k = i + 1; k < argc; ++k) command += (k > i + 1 ? " " : "") + std::string(argv[k]);
  if (i >= argc || command.empty()) {
    std::fprintf(stderr,
                 "usage: ckpt-on HOST COMMAND...\nruns a command on another host of a job (ckpt run "
                 "--hosts), as ssh does\n");
    return static_cast<int>(ExitCode::kUsage);
  }
  return run_on(argv[i], command);
}

}  // namespace
}  // namespace ckpt::cluster

int main(int argc, char** argv) {
  ckpt::take_standard_descriptors();
  return ckpt::cluster::main(argc, argv);
}
