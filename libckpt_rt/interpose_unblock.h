// Threads that libc makes for itself with every signal blocked, ours too: the helpers of
// timer_create(SIGEV_THREAD), aio_read() and mq_notify(). No interposed function is asked there.
//
// They leave one signal open, libc's own for setuid() and its kin (33). A handler of ours for it, which
// passes everything else on to libc's, takes the checkpoint signal out of the mask in the frame of the
// thread it runs on; the stop that is pending there arrives when it returns.
//
// Owner:     interposition.
// Callers:   the agent, while it stops threads, for a thread that has the checkpoint signal blocked.
// Never:     disturbs libc: 33 with any other origin than unblock_in_thread goes to libc's handler. libc
//            installs its own on the first setuid(); then ours is put in front of it again when needed.
#pragma once

namespace ckpt {

// Asks the thread to unblock the checkpoint signal; it does so soon. 0 or -errno. Once for each thread is
// enough: nothing in libc blocks it there again.
long unblock_in_thread(int tid);

}  // namespace ckpt
