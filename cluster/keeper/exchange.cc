#include "cluster/keeper/exchange.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "base/checks/named_points.h"

namespace ckpt::keeper {

namespace {

// While what is lost is computed: its host gets all blocks of so many.
constexpr uint64_t kStripesInBatch = 8;

}  // namespace

void Exchange::fail(const std::string& why) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (why_.empty()) why_ = why;
  changed_.notify_all();
}

Error Exchange::failed() const {
  return make_error(ExitCode::kUnavailable, 0, "{}", why_.empty() ? "the exchange was given up" : why_);
}

void Exchange::gone(unsigned host) {
  const std::lock_guard<std::mutex> guard(lock_);
  if ((!begun_[host] || finished_[host] < batches()) && why_.empty())
    why_ = fmt::format("{}: is gone", plan_.addresses[host]);
  changed_.notify_all();
}

// How much of a block is not known to be zero.
uint64_t Exchange::bytes_of(unsigned role, uint64_t stripe) const {
  if (role >= striping_->data()) return longest_of(stripe);
  const unsigned host = striping_->host_of(role, stripe);
  const uint64_t at = striping_->block_of(host, stripe) * kStripeBlock;
  return plan_.lengths[host] <= at ? 0 : std::min(kStripeBlock, plan_.lengths[host] - at);
}

// Who gets what the host of this role sends while checks are made.
unsigned Exchange::next_of(unsigned role, uint64_t stripe) const {
  if (striping_->fans_in(stripe) && role + 1 < striping_->data()) return striping_->host_of(role + 1, stripe);
  return striping_->encoder_of(stripe);
}

// That: the block, or the sum of those of all roles up to this one.
uint64_t Exchange::bytes_to_send(unsigned role, uint64_t stripe) const {
  uint64_t bytes = bytes_of(role, stripe);
  for (unsigned before = 0; striping_->fans_in(stripe) && before < role; ++before)
    bytes = std::max(bytes, bytes_of(before, stripe));
  return bytes;
}

// Of the stripe's blocks; so long are its checks.
uint64_t Exchange::longest_of(uint64_t stripe) const {
  uint64_t longest = 0;
  for (unsigned role = 0; role < striping_->data(); ++role)
    longest = std::max(longest, bytes_of(role, stripe));
  if (longest == 0) return 0;
  if (!code_->by_place()) return kStripeBlock;
  constexpr uint64_t kMultiple = redundancy::Code::kAlignment;
  return (longest + kMultiple - 1) / kMultiple * kMultiple;
}

// Only what this host needs, once, of this batch or the next.
bool Exchange::take(unsigned host, const MessageHead& head, Block block, size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto asked_for = [&] {
    const uint64_t batch = finished_[plan_.self];
    if (head.exchange != plan_.number || begun_[host] == (head.kind == kBegun)) return false;
    if (head.kind == kBegun) return bytes == 0;
    if (head.kind == kFinished) return bytes == 0 && head.stripe == finished_[host] && head.stripe <= batch;
    if (head.kind != kBlock || head.stripe >= stripes_ || head.role >= plan_.hosts ||
        head.stripe < batch * batch_stripes_ || head.stripe >= (batch + 2) * batch_stripes_ || bytes == 0)
      return false;
    const unsigned owner = striping_->host_of(head.role, head.stripe);
    const uint64_t whole = bytes_of(head.role, head.stripe);
    if (!plan_.lost.empty()) return owner == host && is_lost(plan_.self) && bytes == whole;
    if (head.role >= striping_->data())
      return striping_->encoder_of(head.stripe) == host && owner == plan_.self && bytes == whole;
    return owner == host && next_of(head.role, head.stripe) == plan_.self &&
           bytes == bytes_to_send(head.role, head.stripe);
  };
  bool wanted = asked_for();
  if (wanted && head.kind == kBegun) {
    begun_[host] = true;
  } else if (wanted && head.kind == kFinished) {
    ++finished_[host];
  } else if (wanted) {
    wanted = arrived_.emplace(Key{head.stripe, head.role}, std::move(block)).second;
  }
  if (!wanted && why_.empty()) why_ = fmt::format("{}: sent what nobody asked for", plan_.addresses[host]);
  changed_.notify_all();
  return wanted;
}

MessageHead Exchange::head(MessageKind kind, unsigned role, uint64_t stripe) const {
  return {kind, role, stripe, plan_.number};
}

Result<void> Exchange::sent(unsigned host) {
  if (mesh_.send(host)) return {};
  fail(fmt::format("{}: is gone", plan_.addresses[host]));
  return failed();
}

Result<void> Exchange::send(unsigned host, const MessageHead& head, std::span<const std::byte> bytes) {
  const std::span<std::byte> room = mesh_.compose(host, head, bytes.size());
  std::copy(bytes.begin(), bytes.end(), room.begin());
  return sent(host);
}

Result<Block> Exchange::new_block() {
  Block block = mesh_.blocks().take();
  if (!block) return make_error(ExitCode::kSystem, ENOMEM, "no memory for blocks");
  return block;
}

Result<Block> Exchange::await(uint64_t stripe, unsigned role) {
  std::unique_lock<std::mutex> guard(lock_);
  for (;;) {
    if (const auto it = arrived_.find({stripe, role}); it != arrived_.end()) {
      Block block = std::move(it->second);
      arrived_.erase(it);
      return block;
    }
    if (!why_.empty()) return failed();
    changed_.wait(guard);
  }
}

Result<void> Exchange::begin_together() {
  for (unsigned host = 0; host < plan_.hosts; ++host) {
    if (host != plan_.self) CKPT_TRY(send(host, head(kBegun, plan_.self, 0), {}));
  }
  std::unique_lock<std::mutex> guard(lock_);
  begun_[plan_.self] = true;
  const auto missing = [this] { return std::find(begun_.begin(), begun_.end(), false); };
  changed_.wait_for(guard, std::chrono::milliseconds(kMeetMs),
                    [&] { return !why_.empty() || missing() == begun_.end(); });
  if (!why_.empty()) return failed();
  if (missing() == begun_.end()) return {};
  return make_error(ExitCode::kUnavailable, 0, "{}: does not begin its exchange of blocks",
                    plan_.addresses[static_cast<size_t>(missing() - begun_.begin())]);
}

// Until all hosts have finished so many.
Result<void> Exchange::await_finished(uint64_t batches) {
  std::unique_lock<std::mutex> guard(lock_);
  changed_.wait(guard, [&] {
    return !why_.empty() ||
           std::all_of(finished_.begin(), finished_.end(), [&](uint64_t done) { return done >= batches; });
  });
  return why_.empty() ? Result<void>() : Result<void>(failed());
}

Result<void> Exchange::finish_batch() {
  uint64_t batch = 0;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    batch = finished_[plan_.self]++;
    changed_.notify_all();
  }
  for (unsigned host = 0; host < plan_.hosts; ++host) {
    if (host != plan_.self) CKPT_TRY(send(host, head(kFinished, plan_.self, batch), {}));
  }
  return {};
}

// This host's block of the stripe: of its stream or of its checks.
Result<void> Exchange::read_own(uint64_t stripe, std::span<std::byte> block) const {
  if (striping_->role_of(plan_.self, stripe) < striping_->data())
    return stream_->read(striping_->block_of(plan_.self, stripe) * kStripeBlock, block);
  const auto at = static_cast<off_t>(checks_at_ + striping_->check_of(plan_.self, stripe) * kStripeBlock);
  if (pread(checks_, block.data(), block.size(), at) != static_cast<ssize_t>(block.size()))
    return make_error(ExitCode::kImageDamaged, errno, "{}: its checks are shorter than they were",
                      plan_.addresses[plan_.self]);
  return {};
}

// Checks are kept in the order of their file, one behind the other.
Result<void> Exchange::store_block(uint64_t stripe, const Block& block) {
  const unsigned role = striping_->role_of(plan_.self, stripe);
  const auto bytes = block.span().first(bytes_of(role, stripe));
  if (role < striping_->data())
    return stream_->write(striping_->block_of(plan_.self, stripe) * kStripeBlock, bytes);
  const auto at = static_cast<off_t>(checks_at_ + striping_->check_of(plan_.self, stripe) * kStripeBlock);
  const ssize_t n = pwrite(checks_, bytes.data(), bytes.size(), at);
  if (n != static_cast<ssize_t>(bytes.size()))
    return make_error(
        ExitCode::kIo, n < 0 ? errno : ENOSPC,
        "{}: no room for checks ({}): the keeper's memory is used up; start it with more --memory",
        plan_.addresses[plan_.self], errno_name(n < 0 ? errno : ENOSPC));
  checks_sum_.add(bytes);
  checks_sum_.add_zeros(kStripeBlock - bytes.size());
  return {};
}

// Checks that are not written are zero.
Result<void> Exchange::begin_checks() {
  std::vector<std::byte> before(checks_at_);
  const uint64_t blocks = striping_->checks_on(plan_.self);
  if (pread(checks_, before.data(), before.size(), 0) != static_cast<ssize_t>(before.size()) ||
      ftruncate(checks_, static_cast<off_t>(checks_at_ + blocks * kStripeBlock)) != 0)
    return make_error(ExitCode::kIo, errno, "{}: its file of checks cannot be begun ({})",
                      plan_.addresses[plan_.self], errno_name(errno));
  checks_sum_.add(before);
  return {};
}

// The block is read to the room in which it is encrypted. The sum that other hosts have added up before it is
// waited for: they wait for nothing of this host.
Result<void> Exchange::send_for_encoding(uint64_t stripe) {
  const unsigned role = striping_->role_of(plan_.self, stripe);
  if (role >= striping_->data()) return {};
  const uint64_t bytes = bytes_to_send(role, stripe);
  if (bytes == 0) return {};
  const uint64_t before = striping_->fans_in(stripe) && role > 0 ? bytes_to_send(role - 1, stripe) : 0;
  Block sum;
  if (before != 0) {
    auto block = await(stripe, role - 1);
    if (!block.ok()) return block.error();
    sum = std::move(*block);
  }
  const unsigned next = next_of(role, stripe);
  const std::span<std::byte> room = mesh_.compose(next, head(kBlock, role, stripe), bytes);
  const std::span<std::byte> own = room.first(bytes_of(role, stripe));
  CKPT_TRY(read_own(stripe, own));
  stream_sum_.add(own);
  if (own.size() < bytes) memset(own.data() + own.size(), 0, bytes - own.size());
  if (before != 0) redundancy::xor_into(room.data(), sum.bytes(), before);
  return sent(next);
}

Result<void> Exchange::send_for_rebuilding(uint64_t stripe) {
  const unsigned role = striping_->role_of(plan_.self, stripe);
  const uint64_t bytes = bytes_of(role, stripe);
  if (is_lost(plan_.self) || bytes == 0) return {};
  auto block = new_block();
  if (!block.ok()) return block.error();
  const auto own = block->span().first(bytes);
  CKPT_TRY(read_own(stripe, own));
  for (unsigned host = 0; host < plan_.hosts; ++host) {
    if (is_lost(host)) CKPT_TRY(send(host, head(kBlock, role, stripe), own));
  }
  return {};
}

Result<void> Exchange::send_blocks(uint64_t first, uint64_t end) {
  for (uint64_t s = first; s < std::min(end, stripes_); ++s)
    CKPT_TRY(plan_.lost.empty() ? send_for_encoding(s) : send_for_rebuilding(s));
  return {};
}

// All checks of the stripe, which this host encodes; returns its own.
Result<Block> Exchange::encode_stripe(uint64_t stripe) {
  const unsigned data = striping_->data();
  const uint64_t longest = longest_of(stripe);
  if (striping_->fans_in(stripe)) {
    auto sum = await(stripe, data - 1);
    if (!sum.ok()) return sum.error();
    const uint64_t bytes = bytes_to_send(data - 1, stripe);
    memset(sum->bytes() + bytes, 0, longest - bytes);
    return std::move(*sum);
  }
  std::vector<Block> all(plan_.hosts);
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (unsigned role = 0; role < data; ++role) {
    const uint64_t bytes = bytes_of(role, stripe);
    if (bytes != 0) {
      auto block = await(stripe, role);
      if (!block.ok()) return block.error();
      all[role] = std::move(*block);
      memset(all[role].bytes() + bytes, 0, longest - bytes);
    }
    from.push_back(bytes != 0 ? all[role].bytes() : zeros_.bytes());
  }
  for (unsigned role = data; role < plan_.hosts; ++role) {
    auto block = new_block();
    if (!block.ok()) return block.error();
    all[role] = std::move(*block);
    to.push_back(all[role].bytes());
  }
  code_->encode(from, to, longest);
  for (unsigned role = data; role < plan_.hosts; ++role) {
    if (const unsigned host = striping_->host_of(role, stripe); host != plan_.self)
      CKPT_TRY(send(host, head(kBlock, role, stripe), all[role].span().first(longest)));
  }
  return std::move(all[striping_->role_of(plan_.self, stripe)]);
}

Result<void> Exchange::encode(uint64_t first, uint64_t end) {
  const unsigned data = striping_->data(), self = plan_.self;
  std::map<uint64_t, Block> mine;
  for (uint64_t s = first; s < end; ++s) {
    if (striping_->encoder_of(s) != self || longest_of(s) == 0) continue;
    auto block = encode_stripe(s);
    if (!block.ok()) return block.error();
    mine[s] = std::move(*block);
  }
  for (uint64_t s = first; s < end; ++s) {
    const unsigned role = striping_->role_of(self, s);
    if (role < data) continue;
    if (longest_of(s) == 0) {
      checks_sum_.add_zeros(kStripeBlock);
    } else if (mine.contains(s)) {
      CKPT_TRY(store_block(s, mine[s]));
    } else {
      auto block = await(s, role);
      if (!block.ok()) return block.error();
      CKPT_TRY(store_block(s, *block));
    }
  }
  return {};
}

Result<void> Exchange::rebuild(uint64_t first, uint64_t end) {
  const unsigned self = plan_.self;
  for (uint64_t s = first; s < end && is_lost(self); ++s) {
    const uint64_t longest = longest_of(s);
    if (longest == 0) continue;
    std::vector<Block> all(plan_.hosts);
    std::vector<std::byte*> blocks;
    std::vector<bool> lost(plan_.hosts);
    for (unsigned role = 0; role < plan_.hosts; ++role) {
      lost[role] = is_lost(striping_->host_of(role, s));
      const uint64_t bytes = bytes_of(role, s);
      const bool comes = !lost[role] && bytes != 0;
      if (comes || lost[role]) {
        auto block = comes ? await(s, role) : new_block();
        if (!block.ok()) return block.error();
        all[role] = std::move(*block);
        if (comes) memset(all[role].bytes() + bytes, 0, longest - bytes);
      }
      blocks.push_back(all[role] ? all[role].bytes() : zeros_.bytes());
    }
    CKPT_TRY(code_->recover(blocks, lost, longest));
    CKPT_TRY(store_block(s, all[striping_->role_of(self, s)]));
  }
  return {};
}

Result<void> Exchange::run(const ExchangePlan& plan, PartStream& stream, int checks, uint64_t checks_at) {
  plan_ = plan;
  stream_ = &stream;
  checks_ = checks;
  checks_at_ = checks_at;
  auto code = redundancy::Code::make(plan_.scheme);
  if (!code.ok()) return code.error();
  code_ = std::move(*code);
  striping_ = std::make_unique<Striping>(plan_.scheme, plan_.lengths, plan_.holders);
  stripes_ = striping_->stripes();
  batch_stripes_ = plan_.lost.empty() ? striping_->in_batch() : kStripesInBatch;
  begun_.assign(plan_.hosts, false);
  finished_.assign(plan_.hosts, 0);
  auto zeros = new_block();
  if (!zeros.ok()) return zeros.error();
  zeros_ = std::move(*zeros);
  memset(zeros_.bytes(), 0, kStripeBlock);
  if (plan_.lost.empty() || is_lost(plan_.self)) CKPT_TRY(begin_checks());
  struct Hearing {
    Hearing(Mesh& at, MeshListener* who) : mesh(at) { mesh.hear(who); }
    ~Hearing() {
      mesh.hear(nullptr);
      mesh.give_room_back();
    }
    Mesh& mesh;
  } hearing(mesh_, this);
  if (!plan_.ports.empty()) CKPT_TRY(mesh_.meet({plan_.self, plan_.secret, plan_.addresses, plan_.ports}));
  CKPT_TRY(begin_together());
  CKPT_TRY(send_blocks(0, batch_stripes_));
  for (uint64_t batch = 0; batch < batches(); ++batch) {
    const uint64_t first = batch * batch_stripes_, end = std::min(first + batch_stripes_, stripes_);
    if (batch == 1) points::at("exchange.batch");
    CKPT_TRY(await_finished(batch));
    CKPT_TRY(send_blocks(end, end + batch_stripes_));
    CKPT_TRY(plan_.lost.empty() ? encode(first, end) : rebuild(first, end));
    CKPT_TRY(finish_batch());
  }
  return await_finished(batches());
}

}  // namespace ckpt::keeper
