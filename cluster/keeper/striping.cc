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

bool are_holders(std::span<const unsigned> holders, const redundancy::Scheme& scheme, unsigned hosts) {
  if (holders.empty()) return true;
  std::vector<unsigned> sorted(holders.begin(), holders.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted.size() == scheme.checks && sorted.back() < hosts &&
         std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

namespace {

uint64_t blocks_in(uint64_t bytes) { return (bytes + kStripeBlock - 1) / kStripeBlock; }

}  // namespace

Striping::Striping(const redundancy::Scheme& scheme, std::span<const uint64_t> lengths,
                   std::span<const unsigned> holders)
    : data_(scheme.data),
      hosts_(static_cast<unsigned>(lengths.size())),
      encoders_(holders.empty() ? hosts_ : static_cast<unsigned>(holders.size())),
      fans_in_(holders.size() == 1 && scheme.kind == redundancy::Kind::kParity),
      fixed_role_(lengths.size(), hosts_),
      fixed_host_(lengths.size()) {
  for (unsigned i = 0; i < holders.size(); ++i) fixed_role_[holders[i]] = data_ + i;
  uint64_t cycles = 0;
  for (unsigned host = 0; host < hosts_; ++host) {
    if (holders.empty() || fixed_role_[host] != hosts_)
      cycles = std::max(cycles, (blocks_in(lengths[host]) + data_ - 1) / data_);
  }
  rotating_ = stripes_ = cycles * hosts_;
  if (holders.empty()) return;
  unsigned role = 0;
  for (unsigned host = 0; host < hosts_; ++host) {
    if (fixed_role_[host] == hosts_) {
      fixed_role_[host] = role++;
      const uint64_t blocks = blocks_in(lengths[host]);
      stripes_ = std::max(stripes_, rotating_ + blocks - std::min(blocks, cycles * data_));
    }
    fixed_host_[fixed_role_[host]] = host;
  }
}

uint64_t Striping::block_of(unsigned host, uint64_t stripe) const {
  if (stripe >= rotating_) return rotating_ / hosts_ * data_ + (stripe - rotating_);
  const uint64_t cycle = stripe / hosts_;
  uint64_t rank = 0;
  for (uint64_t s = cycle * hosts_; s < stripe; ++s) rank += role_of(host, s) < data_ ? 1 : 0;
  return cycle * data_ + rank;
}

uint64_t Striping::check_of(unsigned host, uint64_t stripe) const {
  if (stripe >= rotating_) return rotating_ / hosts_ * (hosts_ - data_) + (stripe - rotating_);
  const uint64_t cycle = stripe / hosts_;
  uint64_t rank = 0;
  for (uint64_t s = cycle * hosts_; s < stripe; ++s) rank += role_of(host, s) >= data_ ? 1 : 0;
  return cycle * (hosts_ - data_) + rank;
}

uint64_t Striping::checks_on(unsigned host) const {
  const bool holds = stripes_ > rotating_ && fixed_role_[host] >= data_;
  return rotating_ / hosts_ * (hosts_ - data_) + (holds ? stripes_ - rotating_ : 0);
}

}  // namespace ckpt::keeper
