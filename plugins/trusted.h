// May this plug-in be loaded? It runs with all rights of the program that it is loaded into.
//
// Owner:     plugins. Callers: `ckpt run`, before the program is there; the loader in each process. Ordinary
//            code.
#pragma once

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace ckpt::plugins {

// Empty: the file and its directory belong to this user or root. Nobody else may write them, but the
// directory may be sticky. Else what is wrong, and what to do.
inline std::string why_not_trusted(const std::string& path) {
  if (path.empty() || path[0] != '/') return "is no absolute path: name the whole of it";
  const auto of_others = [](const struct stat& st) {
    return (st.st_uid != geteuid() && st.st_uid != 0) ||
           ((st.st_mode & 022) != 0 && (st.st_mode & S_ISVTX) == 0);
  };
  struct stat st;
  if (lstat(path.c_str(), &st) != 0)
    return std::string("cannot be read (") + strerror(errno) + "): name another file";
  if (!S_ISREG(st.st_mode)) return "is no file: name the file itself, no link";
  if (of_others(st))
    return "belongs to someone else, or others may write it: chmod go-w it, or use one of yours";
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  if (stat(directory.c_str(), &st) != 0 || of_others(st))
    return "lies in a directory of someone else, or that others may write: move it, or chmod go-w the "
           "directory";
  return "";
}

}  // namespace ckpt::plugins
