// What ckpt-restart says to its user.
//
// Owner: restart. Callers: main(), restart_job(); the main thread, but for the progress.
#pragma once

#include <functional>
#include <string>

#include "base/result.h"
#include "image/read/image_reader.h"
#include "restart/options.h"

namespace ckpt {

// One line, or one JSON object. Returns the exit code.
int finish_with_error(const RestartOptions& options, const Error& error);
void print_note(const RestartOptions& options, const std::string& text);
// For notes that are not to wait until all runs; none where they are a part of one JSON object. options must
// outlive it.
std::function<void(const std::string&)> notes_at_once(const RestartOptions& options);

// Checks that take long show how far they are, on a terminal.
VerifyProgress progress_on_terminal(const RestartOptions& options, const char* what);

}  // namespace ckpt
