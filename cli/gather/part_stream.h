// A part of a checkpoint over several hosts as a stream of files: what `ckpt send-part` writes on the host
// that has it, and `ckpt gather` reads. docs/hosts.md, "Gathering".
//
// Owner: cli. Ordinary code, one thread. Callers: `ckpt gather`, and the two ends that it starts.
// Stream: for each file a line of JSON {"path", "bytes", "mtime_ns"} or, of a symbolic link, {"path",
// "link"}; of a file then its
//         bytes, and 16 hexadecimal digits, XXH3 of them. Then {"end": true}, or {"code", "error"}.
// Paths:  PART/NAME or PART/NAME.files/NAME. The manifest of the part itself comes last.
#pragma once

#include <string>

#include "base/result.h"

namespace ckpt::cli {

// The part at this path, and what its images are increments to, to `fd`.
Result<void> send_part(const std::string& part, int fd);

// Puts what comes from `fd` into `directory`: each part under a temporary name until all of it is durable. A
// part of that name that is there already is left as it is if its manifest is the same, else it is an error.
// part: the name that must be among them, and the checksum of its manifest. host: for messages. `bytes` gets
// how many came.
Result<void> receive_part(int fd, const std::string& directory, const std::string& part,
                          const std::string& checksum, const std::string& host, uint64_t* bytes);

}  // namespace ckpt::cli
