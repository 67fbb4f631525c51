// For address spaces whose memory cannot be loaded any more: a thread that touches a missing page gets
// SIGBUS.
//
// Owner:     restart. Callers: the sentry (loader.h), the only process that still has their userfaultfds
//            open.
// Never:     allocates, takes a lock of libc's; lets a missing page be read as zeros.
#pragma once

namespace ckpt {

// Answers each fault of every userfaultfd that this process has open with SIGBUS (Linux 6.6; before that the
// thread waits). Returns when the last of the address spaces has ended. Knows 1,024 of them at most.
void refuse_pages();

}  // namespace ckpt
