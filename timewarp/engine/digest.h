// Digests that show whether two runs were the same, and the wording of a model's errors.
//
// Owner: engines. Callers: any thread. Header and digest.cc.
#pragma once

#include <cstdint>
#include <string>

#include "ckpt_timewarp.h"
#include "timewarp/engine/event.h"
#include "timewarp/engine/lp.h"

namespace ckpt::timewarp {

// Of an event with its message; events are added up, since threads commit in different orders.
uint64_t digest_of(const Event& event);
// Of an LP with its state, at the end.
uint64_t digest_of(const ckpt_tw_lp& lp, uint64_t sent, const void* state, size_t bytes);

std::string wrong_send(const ckpt_tw_model& model, uint32_t to, double delay, size_t bytes);
std::string state_too_large(const ckpt_tw_model& model, size_t bytes);
inline constexpr char kTooDeep[] =
    "65,535 messages without delay caused one another at this time: give some of them a delay";

}  // namespace ckpt::timewarp
