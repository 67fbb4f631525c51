#include "cli/hosts/host_tables.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/raii_fd.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// 32 digits; IPv4 as ::ffff:a.b.c.d.
std::string hex_of_address(const std::string& text) {
  uint8_t bytes[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (inet_pton(AF_INET, text.c_str(), bytes + 12) != 1) (void)inet_pton(AF_INET6, text.c_str(), bytes);
  std::string hex;
  for (const uint8_t b : bytes) hex += fmt::format("{:02x}", b);
  return hex;
}

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

Result<void> write_host_tables(const std::string& directory, Json table, const std::string& images) {
  const std::string own_name = table.value("own", ""), path = images + "/.hosts-addresses";
  std::string own, others;  // this host is the first line
  bool moved = false;
  for (auto& h : table["hosts"]) {
    const std::string now = h.value("address", ""), first = h.value("job_address", now);
    moved = moved || now != first;
    (h.value("name", "") == own_name ? own : others) += hex_of_address(first) + hex_of_address(now) + "\n";
    h["address"] = first;  // ckpt-on is a process of the job: its calls go to where that is now
  }
  CKPT_TRY(moved ? write_file(path, own + others) : remove_file(path));
  return write_file(directory + "/" + kOnTable, table.dump() + "\n");
}

}  // namespace ckpt::cli
