// The keepers' side of redundancy: hosts send each other blocks of their parts, and each host keeps its own checks.
// After hosts were lost: the hosts that are left send their blocks, and the new hosts compute what is lost.
//
// Owner: cluster/keeper. One object for one checkpoint, in a process of its own, at low priority while it makes checks.
//        One thread accepts, one for each peer receives; the caller's thread does all else. Memory: the blocks of two
//        batches, whatever a peer sends.
// Never: changes a part that is not lost; takes blocks of a peer that does not know the secret.
//
// No host begins a batch before all have finished the batch before. So the blocks under way are bounded, and every
// block is received at once: no host waits for a place in a queue.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cluster/keeper/part_stream.h"
#include "cluster/keeper/striping.h"
#include "cluster/link/sealed_link.h"
#include "cluster/redundancy/code.h"

namespace ckpt::keeper {

struct ExchangePlan {
  redundancy::Scheme scheme;
  unsigned hosts = 0, self = 0;
  cluster::Secret secret{};
  std::vector<std::string> addresses;  // of all
  std::vector<int> ports;
  std::vector<uint64_t> lengths;  // of all streams, bytes
  std::vector<bool> lost;         // empty: none; their streams and checks are computed
};

class Exchange {
 public:
  // Listens; the port goes to the others.
  Result<int> listen(const std::string& address);
  // stream: this host's. checks: its file of checks, open; `checks_at`: where in it they begin. Without `lost` the checks
  // are written. With `lost`, a lost host writes both, every other host reads both.
  Result<void> run(const ExchangePlan& plan, PartStream& stream, int checks, uint64_t checks_at);
  ~Exchange();

 private:
  struct Block {
    Block()
        : bytes(static_cast<std::byte*>(std::aligned_alloc(redundancy::Code::kAlignment, kStripeBlock)),
                &std::free) {}
    std::unique_ptr<std::byte, decltype(&std::free)> bytes;
    std::span<std::byte> span() const { return {bytes.get(), kStripeBlock}; }
  };
  using Key = std::pair<uint64_t, unsigned>;  // stripe, role

  Result<void> meet_all();
  void accept_all();
  void greet(ScopedFd peer);
  // messages: what the host has sent already, behind its hello.
  void receive_from(unsigned host, cluster::SealedLink link, std::vector<std::string> messages);
  bool take(unsigned host, std::string_view message);
  void fail(const std::string& why);
  Error failed() const;
  Result<void> send(unsigned host, uint32_t kind, uint64_t stripe, unsigned role,
                    std::span<const std::byte> bytes);
  Result<Block> await(uint64_t stripe, unsigned role);
  Result<void> finish_batch(uint64_t batch);
  Result<void> encode(uint64_t first, uint64_t end);
  Result<void> rebuild(uint64_t first, uint64_t end);
  Result<Block> own_block(uint64_t stripe) const;
  Result<void> store_block(uint64_t stripe, const Block& block);
  bool is_lost(unsigned host) const { return !plan_.lost.empty() && plan_.lost[host]; }

  ExchangePlan plan_;
  std::unique_ptr<Striping> striping_;
  std::unique_ptr<redundancy::Code> code_;
  PartStream* stream_ = nullptr;
  int checks_ = -1;
  uint64_t checks_at_ = 0, stripes_ = 0, batch_stripes_ = 0;
  ScopedFd listener_;
  std::vector<cluster::SealedLink> to_;  // each only sends
  std::thread acceptor_;
  std::vector<std::thread> receivers_;

  std::mutex lock_;  // all below
  std::condition_variable changed_;
  std::map<Key, Block> arrived_;
  std::vector<uint64_t> finished_;  // batches, of each host
  std::string why_;
  unsigned met_ = 0, greeted_ = 0;  // threads that greet or receive
  std::vector<bool> seen_;
  bool ending_ = false;
  std::vector<int> open_;  // of who is greeted or received from
};

}  // namespace ckpt::keeper
