// The keepers' side of redundancy: hosts send each other blocks of their parts, and each host keeps its own
// checks. After hosts were lost: the hosts that are left send their blocks, and the new hosts compute what is
// lost.
//
// Owner: cluster/keeper. One object for one checkpoint, in a process of its own, at low priority while it
//        makes checks. The process may live longer, for the exchanges of later checkpoints.
//        The mesh's threads receive; the caller's thread does all else. Memory: the blocks of two batches and
//        of one stripe, and for each other host one that comes and one that goes; whatever a peer sends.
// Callers: the process of exchanges (cli/keeper/exchange_main.cc), and the benchmark.
// Never: changes a part that is not lost; takes a block that nobody asked for.
//
// Each host says that it has begun, and sends nothing else before all have: over connections of an earlier
// exchange a host receives once it has begun, and may begin much later than the others.
//
// A host sends the blocks of a batch while the batch before is computed, but not before all hosts have
// finished the one before that. So the blocks under way are bounded, and every block is received at once: no
// host waits for a place in a queue. Bytes behind the end of a stream, which are zero, are neither sent nor
// computed.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cluster/keeper/mesh.h"
#include "cluster/keeper/part_stream.h"
#include "cluster/keeper/running_sum.h"
#include "cluster/keeper/striping.h"
#include "cluster/redundancy/code.h"

namespace ckpt::keeper {

struct ExchangePlan {
  redundancy::Scheme scheme;
  std::vector<unsigned> holders;  // hosts that the checks are on; empty: on all
  unsigned hosts = 0, self = 0;
  uint64_t number = 0;  // of the exchange, the same for all: a message of another one is not wanted
  cluster::Secret secret{};
  std::vector<std::string> addresses;  // of all
  std::vector<int> ports;              // empty: the mesh has met before
  std::vector<uint64_t> lengths;       // of all streams, bytes
  std::vector<bool> lost;              // empty: none; their streams and checks are computed
};

class Exchange final : public MeshListener {
 public:
  // The mesh listens, or has met the same hosts before.
  explicit Exchange(Mesh& mesh) : mesh_(mesh) {}
  // stream: this host's. checks: its file of checks, open; `checks_at`: where in it they begin. Without
  // `lost` the checks are written. With `lost`, a lost host writes both, every other host reads both.
  Result<void> run(const ExchangePlan& plan, PartStream& stream, int checks, uint64_t checks_at);
  // XXH3 of the stream and of all of the file of checks, as they went through run(). Only without `lost`.
  uint64_t sum_of_stream() const { return stream_sum_.value(); }
  uint64_t sum_of_checks() const { return checks_sum_.value(); }

 private:
  using Key = std::pair<uint64_t, unsigned>;  // stripe, role

  bool take(unsigned host, const MessageHead& head, Block block, size_t bytes) override;
  void gone(unsigned host) override;
  void fail(const std::string& why);
  Error failed() const;
  MessageHead head(MessageKind kind, unsigned role, uint64_t stripe) const;
  Result<void> send(unsigned host, const MessageHead& head, std::span<const std::byte> bytes);
  Result<void> sent(unsigned host);
  Result<Block> new_block();
  Result<Block> await(uint64_t stripe, unsigned role);
  Result<void> begin_together();
  Result<void> await_finished(uint64_t batches);
  Result<void> finish_batch();
  uint64_t batches() const { return (stripes_ + batch_stripes_ - 1) / batch_stripes_; }
  Result<void> begin_checks();
  Result<void> send_blocks(uint64_t first, uint64_t end);
  Result<void> send_for_encoding(uint64_t stripe);
  Result<void> send_for_rebuilding(uint64_t stripe);
  Result<void> encode(uint64_t first, uint64_t end);
  Result<Block> encode_stripe(uint64_t stripe);
  Result<void> rebuild(uint64_t first, uint64_t end);
  Result<void> read_own(uint64_t stripe, std::span<std::byte> block) const;
  Result<void> store_block(uint64_t stripe, const Block& block);
  bool is_lost(unsigned host) const { return !plan_.lost.empty() && plan_.lost[host]; }
  uint64_t bytes_of(unsigned role, uint64_t stripe) const;
  unsigned next_of(unsigned role, uint64_t stripe) const;
  uint64_t bytes_to_send(unsigned role, uint64_t stripe) const;
  uint64_t longest_of(uint64_t stripe) const;

  Mesh& mesh_;
  ExchangePlan plan_;
  std::unique_ptr<Striping> striping_;
  std::unique_ptr<redundancy::Code> code_;
  PartStream* stream_ = nullptr;
  int checks_ = -1;
  uint64_t checks_at_ = 0, stripes_ = 0, batch_stripes_ = 1;
  Block zeros_;
  RunningSum stream_sum_, checks_sum_;

  std::mutex lock_;  // all below
  std::condition_variable changed_;
  std::map<Key, Block> arrived_;
  std::vector<bool> begun_;         // of each host
  std::vector<uint64_t> finished_;  // batches, of each host
  std::string why_;
};

}  // namespace ckpt::keeper
