// Names for the numbers in an image's records.
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt show`, `ckpt diff`.
#pragma once

#include <cstdint>
#include <string>

#include "image/read/image_meta.h"

namespace ckpt::cli {

const char* mapping_kind_name(uint32_t kind);  // MappingKind
const char* system_v_kind_name(SystemVKind kind);
// Describes the object in one line.
std::string system_v_text(const ParsedSystemV& object);
const char* open_file_kind_name(uint32_t kind);           // OpenFileKind
std::string protection_text(uint32_t prot, bool shared);  // "rw-p", as in /proc/PID/maps
std::string access_text(uint32_t open_flags);             // "r", "w", "rw", with ",append" and the like
std::string signal_text(int signal);                      // "SIGUSR1", "SIGRTMIN+3"

}  // namespace ckpt::cli
