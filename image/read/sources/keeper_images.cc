#include "image/read/sources/keeper_images.h"

#include <fcntl.h>
#include <unistd.h>

#include <map>

#include "image/format/keeper_client.h"

namespace ckpt {

namespace {

// By the socket's path: how this process reaches the directory. Not constinit: no std::map can be.
std::map<std::string, std::string, std::less<>>& reached() {
  static std::map<std::string, std::string, std::less<>> all;
  return all;
}

// "keeper:NAME/FILE@-1" as a path. Empty: no keeper can have that name.
std::string as_path(const std::string& argument) {
  const std::string_view rest = std::string_view(argument).substr(kKeeperScheme.size());
  const size_t end = std::min(rest.find_first_of("/@"), rest.size());
  const std::string_view name = rest.substr(0, end);
  if (!name.empty() && !is_keeper_name(name)) return {};
  return keeper_path(geteuid(), name).text + std::string(rest.substr(end));
}

}  // namespace

Result<std::string> reach_keeper_images(const std::string& argument, bool inherited) {
  const bool by_name = argument.starts_with(kKeeperScheme);
  std::string path = by_name ? as_path(argument) : argument;
  if (path.empty() && by_name) {
    return make_error(ExitCode::kUsage, 0,
                      "{}: no keeper has such a name; use keeper: and letters, digits, - and _",
                      argument.substr(0, 80));
  }
  // A part that follows the name may begin with '@'.
  const size_t at = path.find('@');
  const size_t bytes = keeper_part(std::string_view(path).substr(0, at));
  if (bytes == 0) return argument;
  const std::string socket = path.substr(0, bytes);
  auto known = reached().find(socket);
  if (known == reached().end()) {
    auto directory = open_keeper_directory(socket);
    if (!directory.ok()) return directory.error();
    int fd = directory->release();
    if (inherited) fcntl(fd, F_SETFD, 0);
    known = reached().emplace(socket, "/proc/self/fd/" + std::to_string(fd)).first;
  }
  return known->second + path.substr(bytes);
}

std::string with_keepers_named(std::string_view text) {
  std::string out(text);
  for (const auto& [socket, path] : reached()) {
    const size_t slash = socket.rfind('/') + 1;
    const std::string name =
        std::string(kKeeperScheme) + socket.substr(slash, socket.size() - slash - kKeeperSuffix.size());
    for (size_t at = 0; (at = out.find(path, at)) != std::string::npos; at += name.size()) {
      const size_t end = at + path.size();
      if (end < out.size() && out[end] >= '0' && out[end] <= '9') continue;  // another number
      out.replace(at, path.size(), name);
    }
  }
  return out;
}

}  // namespace ckpt
