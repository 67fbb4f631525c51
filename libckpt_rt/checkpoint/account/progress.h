// How far the image is written, for the asker that waits for it (base/protocol/control_protocol.h).
//
// Owner:     libckpt_rt.
// Callers:   tell: the agent, before and after the checkpoint it takes for an asker. expect: the agent in
//            the stop, or just after it. written: the thread (or forked child) that writes the image.
// Never:     waits for the asker: a line that does not fit into the socket is left out, since threads may
//            be waiting for buffers that only the writer gives back.
#pragma once

#include <cstdint>

namespace ckpt::checkpoint_progress {

// Lines go to this socket; -1 none.
void tell(int socket);
// Bytes of memory that the image will be made from.
void expect(uint64_t bytes);
// So many of them are on their way to the disk or need no place there.
void written(uint64_t bytes);

}  // namespace ckpt::checkpoint_progress
