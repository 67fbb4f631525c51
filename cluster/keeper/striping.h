// Which host holds which block: parity that rotates over the hosts of a job, as RAID 5 does over disks, or
// that is on certain hosts alone.
//
// N hosts have a stream of bytes each, cut into blocks. In each stripe every host has one role: roles below
// `data` are blocks of its stream, the others are checks. A host has in stripe s the role (host + s) mod N.
// So in N stripes each host has each role once, and no two roles of a stripe share a host. Work and memory
// are the same for all.
//
// With holders, as many hosts as there are checks, roles rotate no longer than the holders' own streams need:
// few stripes, where they run nothing of the program. Behind these roles are fixed: the others give data, the
// holders have the checks, and make them in turns.
//
// Owner: cluster/keeper. Pure; any thread.
// Callers: who plans checks (cli/hosts/checkpoints), `ckpt run`, the exchange.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cluster/redundancy/scheme.h"

namespace ckpt::keeper {

inline constexpr uint64_t kStripeBlock = 256 << 10;  // bytes

// "parity", "rs:3+2" and the like for so many hosts. rs needs K + M hosts, mirror an even number. With the
// others all hosts that hold no check hold data. kUsage: the words do not fit the hosts.
Result<redundancy::Scheme> scheme_for_hosts(std::string_view text, unsigned hosts);

// None, or as many hosts as the scheme has checks, each once.
bool are_holders(std::span<const unsigned> holders, const redundancy::Scheme& scheme, unsigned hosts);

class Striping {
 public:
  // lengths: of the streams, bytes. holders: hosts, by number, that the checks are on; none: on all. As
  // are_holders() wants them.
  Striping(const redundancy::Scheme& scheme, std::span<const uint64_t> lengths,
           std::span<const unsigned> holders = {});

  unsigned hosts() const { return hosts_; }
  unsigned data() const { return data_; }
  uint64_t stripes() const { return stripes_; }
  // In the stripes below, roles rotate; a multiple of hosts().
  uint64_t rotating() const { return rotating_; }
  unsigned role_of(unsigned host, uint64_t stripe) const {
    return stripe < rotating_ ? static_cast<unsigned>((host + stripe) % hosts_) : fixed_role_[host];
  }
  unsigned host_of(unsigned role, uint64_t stripe) const {
    return stripe < rotating_ ? static_cast<unsigned>((role + hosts_ - stripe % hosts_) % hosts_)
                              : fixed_host_[role];
  }
  // The encoder gets all data of the stripe, makes all checks, and holds one of the checks.
  unsigned encoder_of(uint64_t stripe) const {
    return host_of(stripe < rotating_ ? data_ : data_ + static_cast<unsigned>(stripe % (hosts_ - data_)),
                   stripe);
  }
  // Its data is added up on the way to the encoder, from role to role.
  bool fans_in(uint64_t stripe) const { return fans_in_ && stripe >= rotating_; }
  // How many stripes are encoded together: four for each host that makes checks. So what comes to one of them
  // at a time is bounded by the number of hosts, wherever the checks are. Where data is added up on the way
  // each host gets one block of a stripe, and sums are to be under way between all of them.
  uint64_t in_batch() const { return fans_in_ ? std::max(4u, data_) : 4 * encoders_; }
  // Of the host's stream, the number of the block in that stripe. Its role there must be below data().
  uint64_t block_of(unsigned host, uint64_t stripe) const;
  // Of the host's checks, the same. Its role must be at least data().
  uint64_t check_of(unsigned host, uint64_t stripe) const;
  // How many checks the host has.
  uint64_t checks_on(unsigned host) const;

 private:
  unsigned data_, hosts_, encoders_;
  bool fans_in_;
  uint64_t rotating_ = 0, stripes_ = 0;
  std::vector<unsigned> fixed_role_, fixed_host_;
};

}  // namespace ckpt::keeper
