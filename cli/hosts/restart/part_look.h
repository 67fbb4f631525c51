// Whether a part of a job over hosts could be restarted on a host: ckpt-restart --check there, started by the
// launch command.
//
// Owner: cli/hosts. Callers: check_over_hosts, the head ahead of a move; main() on the other host.
// Never: a path on the launch command's line, which ssh gives to a shell: it goes over standard input.
#pragma once

#include <string>
#include <vector>

#include "base/exit_codes.h"
#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt::cli {

// What starts the look on that host.
std::vector<std::string> words_of_look(const std::string& launch, const std::string& host);
// What it is to read: which part, and more words for ckpt-restart.
Result<ScopedFd> task_of_look(const std::string& part, const std::vector<std::string>& restart_words);
// The look itself. Becomes ckpt-restart.
ExitCode run_look();

}  // namespace ckpt::cli
