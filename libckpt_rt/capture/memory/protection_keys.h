// Keys of memory (pkeys(7)): a restart gives neither the keys nor the memory's key back. Here it is told
// whether there are any.
//
// Owner:     libckpt_rt. Callers: the agent, threads standing.
// Source:    pkey_alloc(2), arch/x86/include/asm/pkeys.h, arch/x86/mm/pkeys.c.
#pragma once

#include <span>

namespace ckpt {

struct Mapping;

namespace protection_keys {

// Whether the program has taken one. The kernel lists keys to nobody: what is free is taken and given back.
// Threads stand: none of them is given another number by that. Not to be called under seccomp filters.
bool any_taken(std::span<const Mapping> mappings);

}  // namespace protection_keys
}  // namespace ckpt
