// liburing for the writer. Where the program's calls of liburing lead (libckpt_rt/interpose/rings), the
// writer's do not: the functions of these names have others in its copy of liburing (image/CMakeLists.txt).
// One that is missing here does not link.
//
// Owner: image, write. Header only.
#pragma once

#define io_uring_queue_init_params ckpt_own_io_uring_queue_init_params
#define __io_uring_get_cqe ckpt_own___io_uring_get_cqe

#include <liburing.h>
