// The handler of the checkpoint signal: a request from outside, the interval timer, or the stop.
//
// Owner:     libckpt_rt. Callers: the kernel, on any thread of the program.
// Never:     touches errno, TLS or libc. All signals are blocked while it runs, but under guard (of memory)
//            those of faults.
#pragma once

namespace ckpt {

// Installs the handler. 0 or -errno.
long install_signal_handler(int signal);

}  // namespace ckpt
