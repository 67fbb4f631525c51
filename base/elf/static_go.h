// Is this file a static program of Go, without C code in it?
//
// Owner:     base. Callers: `ckpt run` and its kin; a thread of the program that executes another one.
// Never:     allocates, moves the file's offset.
#pragma once

namespace ckpt {

// Such a program has Go's build id among its notes, or the table that Go 1.16 and later make for tracebacks;
// and neither an interpreter nor what a C library adds: a thread's own data (PT_TLS), relocations.
bool is_static_go(int fd);

}  // namespace ckpt
