// liburing for the writer. Where the program's calls of liburing lead (libckpt_rt/interpose/rings), the
// writer's do not: the functions of these names have others in its copy of liburing (image/CMakeLists.txt).
// A function that the writer calls and this file does not name is not found when the library is linked.
//
// Owner:     image/write. Header only. Callers: the writer's back end by io_uring.
#pragma once

#define io_uring_queue_init_params ckpt_own_io_uring_queue_init_params
#define __io_uring_get_cqe ckpt_own___io_uring_get_cqe

#include <liburing.h>
