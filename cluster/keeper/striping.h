// Which host holds which block: parity that rotates over the hosts of a job, as RAID 5 does over disks.
//
// N hosts have a stream of bytes each, cut into blocks. In each stripe every host has one role: roles below
// `data` are blocks of its stream, the others are checks. A host has in stripe s the role (host + s) mod N.
// So in N stripes each host has each role once, and no two roles of a stripe share a host. Work and memory
// are the same for all.
//
// Owner: cluster/keeper. Pure; any thread.
// Callers: who plans checks (cli/hosts/checkpoints), `ckpt run`, the exchange.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cluster/redundancy/scheme.h"

namespace ckpt::keeper {

inline constexpr uint64_t kStripeBlock = 256 << 10;  // bytes

// "parity", "rs:3+2" and the like for so many hosts. rs needs K + M hosts, mirror an even number. With the
// others all hosts that hold no check hold data. kUsage: the words do not fit the hosts.
Result<redundancy::Scheme> scheme_for_hosts(std::string_view text, unsigned hosts);

class Striping {
 public:
  Striping(const redundancy::Scheme& scheme, unsigned hosts) : data_(scheme.data), hosts_(hosts) {}

  unsigned hosts() const { return hosts_; }
  unsigned data() const { return data_; }
  unsigned role_of(unsigned host, uint64_t stripe) const {
    return static_cast<unsigned>((host + stripe) % hosts_);
  }
  unsigned host_of(unsigned role, uint64_t stripe) const {
    return static_cast<unsigned>((role + hosts_ - stripe % hosts_) % hosts_);
  }
  // It gets all data of the stripe and makes all checks.
  unsigned encoder_of(uint64_t stripe) const { return host_of(data_, stripe); }
  // Of the host's stream, the number of the block in that stripe. Its role there must be below data().
  uint64_t block_of(unsigned host, uint64_t stripe) const;
  // Of the host's checks, the same. Its role must be at least data().
  uint64_t check_of(unsigned host, uint64_t stripe) const;
  // How many stripes hold streams of these lengths, bytes: a multiple of hosts().
  uint64_t stripes_for(std::span<const uint64_t> lengths) const;

 private:
  unsigned data_, hosts_;
};

}  // namespace ckpt::keeper
