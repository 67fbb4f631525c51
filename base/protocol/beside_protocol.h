// What ckpt-beside, the library, and whoever looks for it in a process agree on (docs/static_programs.md).
//
// Owner: base. Header only.
#pragma once

namespace ckpt {

// Of ckpt-beside: what LD_PRELOAD is to be in the program. Of the library that it puts beside a program:
// where that one's list of its environment is, in hexadecimal digits.
inline constexpr const char* kBesideVariable = "CKPT_BESIDE";

// Ahead of ckpt-beside's other words: where the library cannot be put beside the program, that is executed
// without.
inline constexpr char kOrAlone[] = "--or-alone";

inline constexpr const char* kBesideCommand = "ckpt-beside";

// Go's runtime takes all signals for itself as it starts, but for this one, which it leaves to a C library
// (Go 1.15 and later).
inline constexpr int kSignalBeside = 34;

}  // namespace ckpt
