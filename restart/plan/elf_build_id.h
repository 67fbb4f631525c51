// The build id of an ELF file.
//
// Owner:     restart. Callers: check_files.cc. Ordinary C++.
// Source:    elf(5), note NT_GNU_BUILD_ID. Any input is survived: an answer or none.
#pragma once

#include <cstddef>
#include <vector>

namespace ckpt {

// Empty: not an ELF file of 64 bits, or without a build id.
std::vector<std::byte> read_build_id(int fd);

}  // namespace ckpt
