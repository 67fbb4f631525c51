// The freestanding restorer's bytes: position-independent, entry (RestorerEntry) at the first byte.
//
// Owner: restart. Callers: restart/plan/memory/restorer_range.cc, which copies them into the restorer range.
#pragma once

#include <cstddef>
#include <span>

extern "C" const std::byte ckpt_restorer_begin[];
extern "C" const std::byte ckpt_restorer_end[];

namespace ckpt {

inline std::span<const std::byte> restorer_blob() { return {ckpt_restorer_begin, ckpt_restorer_end}; }

}  // namespace ckpt
