// Running a command, mostly one of our own, and reading what it prints.
//
// Owner: cli. Ordinary code, one thread. Callers: commands that start others.
#pragma once

#include <signal.h>

#include <string>
#include <vector>

#include "base/result.h"

namespace ckpt::cli {

// "ckpt", "ckpt-restart": they are installed beside each other.
std::string command_path(const char* command);

struct Said {
  std::string text, errors;  // standard output, standard error
  int status = 0;            // as waitpid(2) gives it
};
struct CommandEnd {
  int asked = -1;                  // readable: the command gets SIGTERM, once; -1: never
  const sigset_t* mask = nullptr;  // of the command; nullptr: ours
};
// words[0] is a path, or found in PATH. The command reads from `in`; -1: nothing. catch_errors: into
// `errors`, else they go where ours go.
Result<Said> run_command(const std::vector<std::string>& words, bool catch_errors = false, int in = -1,
                         const CommandEnd& end = {});

// In a child that was forked: the command takes its place. words as above. What fails is said on standard
// error, behind `speaker`, and is exit code 127.
[[noreturn]] void become(const std::vector<std::string>& words, const char* speaker = "ckpt: ");

}  // namespace ckpt::cli
