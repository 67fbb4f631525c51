// --key-file of the commands that open images, and CKPT_KEY_FILE.
//
// Owner: cli. Ordinary code, one thread. The key is there when the command's callback runs; a key that cannot
// be had ends the command with its error line (CLI::RuntimeError carries the exit code). Callers: commands
// that read images.
#pragma once

#include <CLI/CLI.hpp>

namespace ckpt::cli {

void add_key_option(CLI::App* command);

}  // namespace ckpt::cli
