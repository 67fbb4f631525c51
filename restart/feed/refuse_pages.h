// What becomes of address spaces whose memory cannot be loaded any more.
//
// Owner:     restart. Callers: the guard (loader.h), the only process left that has their userfaultfds.
// Never:     allocates, takes a lock of libc's; lets a missing page be read as zeros.
#pragma once

namespace ckpt {

// Answers faults of every userfaultfd that this process has open with SIGBUS (Linux 6.6; before that they
// wait), until nobody is left who could ask.
void refuse_pages();

}  // namespace ckpt
