#include "cluster/keeper/striping.h"

#include <algorithm>

namespace ckpt::keeper {

Result<redundancy::Scheme> scheme_for_hosts(std::string_view text, unsigned hosts) {
  // How many checks there are does not depend on the data, but with mirrors.
  const bool mirror = text == "mirror";
  if (hosts < 2 || (mirror && hosts % 2 != 0)) {
    return make_error(ExitCode::kUsage, 0, "--redundancy {}: takes {}, not {}; name more, or use another",
                      text.substr(0, 40), mirror ? "an even number of hosts" : "two hosts at least", hosts);
  }
  if (mirror) return redundancy::parse_scheme(text, hosts / 2);
  // rs:K+M says K itself; of the others the checks are known from a first look.
  auto first = redundancy::parse_scheme(text, text.starts_with("rs") ? 0 : hosts);
  if (!first.ok()) return first;
  if (text.starts_with("rs") ? first->data + first->checks != hosts : first->checks >= hosts) {
    return make_error(ExitCode::kUsage, 0, "--redundancy {}: {} data and {} checks do not fit {} hosts",
                      text.substr(0, 40), text.starts_with("rs") ? first->data : 1, first->checks, hosts);
  }
  return text.starts_with("rs") ? first : redundancy::parse_scheme(text, hosts - first->checks);
}

uint64_t Striping::block_of(unsigned host, uint64_t stripe) const {
  const uint64_t cycle = stripe / hosts_;
  uint64_t rank = 0;
  for (uint64_t s = cycle * hosts_; s < stripe; ++s) rank += role_of(host, s) < data_ ? 1 : 0;
  return cycle * data_ + rank;
}

uint64_t Striping::check_of(unsigned host, uint64_t stripe) const {
  const uint64_t cycle = stripe / hosts_;
  uint64_t rank = 0;
  for (uint64_t s = cycle * hosts_; s < stripe; ++s) rank += role_of(host, s) >= data_ ? 1 : 0;
  return cycle * (hosts_ - data_) + rank;
}

uint64_t Striping::stripes_for(std::span<const uint64_t> lengths) const {
  uint64_t cycles = 0;
  for (const uint64_t bytes : lengths) {
    const uint64_t blocks = (bytes + kStripeBlock - 1) / kStripeBlock;
    cycles = std::max(cycles, (blocks + data_ - 1) / data_);
  }
  return cycles * hosts_;
}

}  // namespace ckpt::keeper
