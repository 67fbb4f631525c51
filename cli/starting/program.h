// Can this program be preloaded? Looks at the file as execve(2) and the dynamic linker will.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt run`, `ckpt check`, the restart over hosts.
#pragma once

#include <string>

#include "base/result.h"

namespace ckpt::cli {

// The file that execvp(3) would run for `name`; kNotFound or kPermission.
Result<std::string> find_program(const std::string& name);

// How the library comes into the program's process.
enum class Entry {
  kPreloaded,  // LD_PRELOAD
  kBeside,     // ckpt-beside: a static program of Go
};

// Refuses what the library cannot be in: static and not of Go, setuid, setgid, with file capabilities, 32-bit
// or of another machine, not an executable; and what a sanitizer watches. A script is judged by its
// interpreter.
Result<Entry> check_program(const std::string& path);

}  // namespace ckpt::cli
