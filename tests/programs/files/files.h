// Descriptors and what lies behind them. Files are made in the current directory.
//
// Where a file keeps its name, its bytes are only ever added or rewritten with the same values: what
// was overwritten or removed after a checkpoint does not come back with it. Deleted files, memfds, pipes and
// mapped memory are part of the program and are rewritten at will.
//
// Owner: tests/programs/files. Each function is one exercise and returns its result line.
#pragma once

#include "tests/programs/victim.h"

namespace files {

// A file written through two descriptors that share one offset, read through a third of its own.
std::string offsets(uint64_t iterations);
std::string append(uint64_t iterations);
std::string deleted(uint64_t iterations);
std::string pipe(uint64_t iterations);
std::string memfd(uint64_t iterations);
std::string devshm(uint64_t iterations);
std::string shared_mapping(uint64_t iterations);
std::string private_mapping(uint64_t iterations);
// Flags of descriptors, devices, a directory half read, cwd, umask.
std::string state(uint64_t iterations);
// Lines on standard output while the program runs.
std::string output(uint64_t iterations);

}  // namespace files
