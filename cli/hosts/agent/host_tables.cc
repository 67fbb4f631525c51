#include "cli/hosts/agent/host_tables.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>

#include "base/clock.h"
#include "base/protocol/keeper_protocol.h"
#include "base/raii_fd.h"
#include "cli/hosts/job/users.h"
#include "cli/hosts/placing.h"
#include "cli/text/failure.h"
#include "image/format/keeper_client.h"

namespace ckpt::cli {

namespace {

Result<void> write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".tmp";
  unlink(temporary.c_str());
  ScopedFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (fd.valid() && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      rename(temporary.c_str(), path.c_str()) == 0)
    return {};
  return failure(ExitCode::kCannotCreate, path, fmt::format("cannot be written: {}", strerror(errno)),
                 "name a directory that this host may write, with --dir");
}

Result<void> remove_file(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  return failure(ExitCode::kCannotCreate, path, fmt::format("cannot be removed: {}", strerror(errno)),
                 "remove it");
}

}  // namespace

Result<void> make_host_directory(const std::string& directory) {
  for (size_t at = directory.find('/', 1); at != std::string::npos; at = directory.find('/', at + 1))
    mkdir(directory.substr(0, at).c_str(), 0700);
  if (mkdir(directory.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return failure(ExitCode::kCannotCreate, directory, fmt::format("cannot be created: {}", strerror(errno)),
                 "name a directory that this host may write, with --dir");
}

Result<void> await_other_job(const std::string& directory, const std::string& job) {
  std::ifstream file(directory + "/" + kOnTable);
  const Json table = Json::parse(file, nullptr, false);
  if (!table.is_object() || table.value("job", job) == job) return {};
  const std::string name = agent_socket_name(table.value("job", ""), table.value("own", ""));
  constexpr int64_t kEndsNs = 3'000'000'000;
  const int64_t until = now_ns() + kEndsNs;
  for (int other; (other = who_listens_to_users(name)) > 0;) {
    if (now_ns() > until)
      return failure(
          ExitCode::kUnavailable, directory,
          fmt::format("is the directory of another job, which runs (process {} serves it here)", other),
          "name another with --dir");
    const ScopedFd process(static_cast<int>(syscall(SYS_pidfd_open, other, 0)));
    pollfd gone{process.get(), POLLIN, 0};
    (void)!poll(&gone, 1, process.valid() ? 1000 : 10);
  }
  return {};
}

Result<void> write_host_tables(const std::string& directory, Json table, const std::string& images) {
  ScopedFd in_keeper;
  std::string path = images;
  if (keeper_part(images) != 0) {
    auto opened = open_keeper_directory(images);
    if (!opened.ok()) return opened.error();
    in_keeper = std::move(*opened);
    path = fmt::format("/proc/self/fd/{}", in_keeper.get());
  }
  path += "/.hosts-addresses";
  const std::string own_name = table.value("own", "");
  bool moved = false;
  for (const auto& h : table["hosts"])
    moved = moved || h.value("address", "") != h.value("job_address", "") || h.contains("ports");
  if (moved) {
    std::string text;
    for (const std::string& line : address_lines(table, own_name)) text += line + "\n";
    CKPT_TRY(write_file(path, text));
  } else {
    CKPT_TRY(remove_file(path));
  }
  for (auto& h : table["hosts"]) {
    // ckpt-on is a process of the job: its calls go to where that is now.
    if (h.contains("job_address")) h["address"] = h["job_address"];
    h.erase("ports");
    h.erase("slice");
  }
  return write_file(directory + "/" + kOnTable, table.dump() + "\n");
}

}  // namespace ckpt::cli
