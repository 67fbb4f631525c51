// Which redundancy: the words that a user writes, as numbers.
//
// Owner: cluster/redundancy. Ordinary code, any thread.
// Callers: codes and striping; `ckpt run`, for what the user has set.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace ckpt::redundancy {

enum class Kind { kMirror, kParity, kEvenOdd, kReedSolomon };

struct Scheme {
  Kind kind = Kind::kParity;
  unsigned data = 0;    // blocks that are protected
  unsigned checks = 0;  // blocks of redundancy: mirror: as many as data; parity: groups; evenodd: 2
  bool operator==(const Scheme&) const = default;
};

// Data and checks together, but for mirrors: what Reed-Solomon over bytes can number.
inline constexpr unsigned kMostBlocks = 255;

// "mirror", "parity", "parity:M" (M groups), "evenodd", "rs:K+M". data: how many blocks there are; K must be
// the same number. 0 with rs: K says it. Errors: kUsage, with the words that are known.
Result<Scheme> parse_scheme(std::string_view text, unsigned data);
std::string scheme_name(const Scheme& scheme);
// How many blocks may be lost, whichever they are.
unsigned survives(const Scheme& scheme);

}  // namespace ckpt::redundancy
