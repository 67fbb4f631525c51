// A file that shuts out its own user (chmod 0) after the program has opened it. ckpt-restart itself cannot
// open it; the new process can, for in the user namespace that a user's restart needs it may open what
// belongs to its user.
//
// Owner:     restart. Callers: the checks of mapped and open files, before anything is touched.
#pragma once

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace ckpt {

// error: of open(2). st: of the file.
inline bool opens_later(const std::string& path, int error, struct stat& st) {
  return error == EACCES && geteuid() != 0 && stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode) &&
         st.st_uid == geteuid() && st.st_gid == getegid();
}

}  // namespace ckpt
