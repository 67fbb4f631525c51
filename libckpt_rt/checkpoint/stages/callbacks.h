// Functions of the program that want to know of checkpoints (ckpt_rt.h).
//
// Owner:     libckpt_rt. Callers: add/remove: threads of the program. run: a thread of the program in
//            the handler of the checkpoint signal, or the leader at restart.
#pragma once

#include "include/ckpt_rt.h"

namespace ckpt::callbacks {

int add(ckpt_rt_callback_kind kind, ckpt_rt_callback function, void* context);
int remove(ckpt_rt_callback_kind kind, ckpt_rt_callback function, void* context);
bool any(ckpt_rt_callback_kind kind);
void run(ckpt_rt_callback_kind kind);

}  // namespace ckpt::callbacks
