// Exit codes of `ckpt` and `ckpt-restart` (sysexits.h numbers where one fits), as documented in
// docs/exit_codes.md. ckpt-restart passes the program's own status through once the program runs.
//
// Owner: base. Callers: anybody; an error value carries one (base/result.h).
#pragma once

namespace ckpt {

enum class ExitCode : int {
  kOk = 0,
  kUsage = 64,           // wrong arguments or settings
  kImageDamaged = 65,    // truncated, corrupted, or not an image at all
  kNotFound = 66,        // no such image, directory or program
  kNoProcess = 67,       // no such process, not preloaded
  kIncompatible = 68,    // image of another version, architecture, CPU or vdso
  kUnavailable = 69,     // the kernel or container forbids what is needed (namespaces, tids in use)
  kInternal = 70,        // a bug in us, or a checkpoint that was given up
  kSystem = 71,          // a system call failed that should not
  kFileChanged = 72,     // a file the image refers to is missing or differs
  kCannotCreate = 73,    // image directory or file cannot be created
  kIo = 74,              // write or read error, disk full, file size limit
  kTimeout = 75,         // a thread did not stop in time, the program did not answer
  kNotRestartable = 76,  // a whole image, of which no restart can be
  kPermission = 77,      // not yours, not allowed
  kUnsupported = 78,     // static, setuid, 32-bit program; state that cannot be saved
};

}  // namespace ckpt
