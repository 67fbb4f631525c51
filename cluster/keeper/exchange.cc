#include "cluster/keeper/exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/named_points.h"

namespace ckpt::keeper {

namespace {

constexpr uint64_t kCyclesInBatch = 4;  // while checks are made: each host gets the data of so many stripes
constexpr uint64_t kStripesInBatch =
    8;  // while what is lost is computed: its host gets all blocks of so many
constexpr int kPatienceMs = 30'000;
constexpr unsigned kMostStrangers = 16;  // who say nothing, at a time

enum Kind : uint32_t { kHello = 1, kBlock, kFinished };

struct Head {
  uint32_t kind;
  uint32_t role;    // kHello: the sender
  uint64_t stripe;  // kFinished: the batch
};

}  // namespace

Result<int> Exchange::listen(const std::string& address) {
  int port = 0;
  auto fd = cluster::listen_at(address, 0, &port);
  if (!fd.ok()) return fd.error();
  listener_ = std::move(*fd);
  return port;
}

void Exchange::fail(const std::string& why) {
  const std::lock_guard<std::mutex> guard(lock_);
  if (why_.empty()) why_ = why;
  changed_.notify_all();
}

Error Exchange::failed() const {
  return make_error(ExitCode::kUnavailable, 0, "{}", why_.empty() ? "the exchange was given up" : why_);
}

// Each host connects to each other host. The connecting end sends, the accepting end receives.
Result<void> Exchange::meet_all() {
  to_.resize(plan_.hosts);
  seen_.assign(plan_.hosts, false);
  acceptor_ = std::thread([this] { accept_all(); });
  for (unsigned host = 0; host < plan_.hosts; ++host) {
    if (host == plan_.self) continue;
    auto socket = cluster::connect_to(plan_.addresses[host], plan_.ports[host], kPatienceMs);
    if (!socket.ok()) return socket.error();
    auto link = cluster::SealedLink::connect(std::move(*socket), plan_.secret);
    if (!link.ok()) return link.error();
    to_[host] = std::move(*link);
    CKPT_TRY(send(host, kHello, 0, plan_.self, {}));
  }
  std::unique_lock<std::mutex> guard(lock_);
  changed_.wait_for(guard, std::chrono::milliseconds(kPatienceMs),
                    [this] { return met_ == plan_.hosts - 1 || !why_.empty(); });
  if (met_ == plan_.hosts - 1) return {};
  if (why_.empty()) why_ = "not all hosts have met";
  return failed();
}

// Each peer is greeted by a thread of its own: at low priority, on a busy machine, a host's hello may take seconds, and
// a stranger may never send one.
void Exchange::accept_all() {
  for (;;) {
    pollfd wait{listener_.get(), POLLIN, 0};
    (void)!poll(&wait, 1, 100);
    {
      const std::lock_guard<std::mutex> guard(lock_);
      if (ending_ || !why_.empty() || met_ == plan_.hosts - 1) return;
      if (wait.revents == 0 || greeted_ >= plan_.hosts + kMostStrangers) continue;
    }
    ScopedFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // Another descriptor of the same socket: to end it from outside, whatever becomes of the first.
    ScopedFd same(peer.valid() ? fcntl(peer.get(), F_DUPFD_CLOEXEC, 3) : -1);
    if (!same.valid()) continue;
    const std::lock_guard<std::mutex> guard(lock_);
    open_.push_back(same.get());
    ++greeted_;
    receivers_.emplace_back([this, fd = peer.release(), other = same.release()] {
      const ScopedFd closes(other);
      greet(ScopedFd(fd));
      const std::lock_guard<std::mutex> done(lock_);
      std::erase(open_, closes.get());
      --greeted_;
    });
  }
}

void Exchange::greet(ScopedFd peer) {
  auto link = cluster::SealedLink::accept(std::move(peer), plan_.secret, kPatienceMs);
  if (!link.ok()) return;  // a stranger
  std::vector<std::string> messages;
  Head head{};
  if (!link->receive(messages, true) || messages[0].size() != sizeof(head)) return;
  memcpy(&head, messages[0].data(), sizeof(head));
  if (head.kind != kHello || head.role >= plan_.hosts || head.role == plan_.self) return;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (seen_[head.role]) return;
    seen_[head.role] = true;
    ++met_;
    changed_.notify_all();
  }
  // A peer that has met all begins at once: its first blocks may have come with its hello.
  messages.erase(messages.begin());
  receive_from(head.role, std::move(*link), std::move(messages));
}

void Exchange::receive_from(unsigned host, cluster::SealedLink link, std::vector<std::string> messages) {
  for (bool there = true;; messages.clear(), there = link.receive(messages, true)) {
    for (const std::string& m : messages) {
      if (!take(host, m)) return fail(fmt::format("{}: sent what nobody asked for", plan_.addresses[host]));
    }
    const std::lock_guard<std::mutex> guard(lock_);
    if (there && !ending_ && why_.empty()) continue;
    const uint64_t batches = (stripes_ + batch_stripes_ - 1) / batch_stripes_;
    if (!ending_ && finished_[host] < batches && why_.empty())
      why_ = fmt::format("{}: is gone", plan_.addresses[host]);
    changed_.notify_all();
    return;
  }
}

// Only what this host needs, once, of this batch or the next.
bool Exchange::take(unsigned host, std::string_view message) {
  Head head{};
  if (message.size() < sizeof(head)) return false;
  memcpy(&head, message.data(), sizeof(head));
  const std::lock_guard<std::mutex> guard(lock_);
  const uint64_t batch = finished_[plan_.self];
  if (head.kind == kFinished) {
    if (head.stripe != finished_[host] || head.stripe > batch) return false;
    ++finished_[host];
    changed_.notify_all();
    return true;
  }
  if (head.kind != kBlock || message.size() != sizeof(head) + kStripeBlock || head.stripe >= stripes_ ||
      head.role >= plan_.hosts)
    return false;
  if (head.stripe < batch * batch_stripes_ || head.stripe >= (batch + 2) * batch_stripes_) return false;
  const bool from_owner = striping_->host_of(head.role, head.stripe) == host;
  const unsigned encoder = striping_->encoder_of(head.stripe);
  const bool wanted = !plan_.lost.empty() ? from_owner && is_lost(plan_.self)
                      : head.role < striping_->data()
                          ? from_owner && encoder == plan_.self
                          : encoder == host && striping_->host_of(head.role, head.stripe) == plan_.self;
  if (!wanted) return false;
  Block block;
  if (block.bytes == nullptr) return false;
  memcpy(block.bytes.get(), message.data() + sizeof(head), kStripeBlock);
  if (!arrived_.emplace(Key{head.stripe, head.role}, std::move(block)).second) return false;
  changed_.notify_all();
  return true;
}

Result<void> Exchange::send(unsigned host, uint32_t kind, uint64_t stripe, unsigned role,
                            std::span<const std::byte> bytes) {
  const Head head{kind, role, stripe};
  std::string message(sizeof(head) + bytes.size(), '\0');
  memcpy(message.data(), &head, sizeof(head));
  if (!bytes.empty()) memcpy(message.data() + sizeof(head), bytes.data(), bytes.size());
  if (to_[host].send(message)) return {};
  fail(fmt::format("{}: is gone", plan_.addresses[host]));
  return failed();
}

Result<Exchange::Block> Exchange::await(uint64_t stripe, unsigned role) {
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

Result<void> Exchange::finish_batch(uint64_t batch) {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    finished_[plan_.self] = batch + 1;
  }
  for (unsigned host = 0; host < plan_.hosts; ++host) {
    if (host != plan_.self) CKPT_TRY(send(host, kFinished, batch, plan_.self, {}));
  }
  std::unique_lock<std::mutex> guard(lock_);
  changed_.wait(guard, [&] {
    return !why_.empty() ||
           std::all_of(finished_.begin(), finished_.end(), [&](uint64_t done) { return done > batch; });
  });
  return why_.empty() ? Result<void>() : Result<void>(failed());
}

// This host's block of the stripe: of its stream or of its checks.
Result<Exchange::Block> Exchange::own_block(uint64_t stripe) const {
  Block block;
  if (block.bytes == nullptr) return make_error(ExitCode::kSystem, ENOMEM, "no memory for blocks");
  if (striping_->role_of(plan_.self, stripe) < striping_->data()) {
    CKPT_TRY(stream_->read(striping_->block_of(plan_.self, stripe) * kStripeBlock, block.span()));
    return block;
  }
  const auto at = static_cast<off_t>(checks_at_ + striping_->check_of(plan_.self, stripe) * kStripeBlock);
  if (pread(checks_, block.bytes.get(), kStripeBlock, at) != static_cast<ssize_t>(kStripeBlock))
    return make_error(ExitCode::kImageDamaged, errno, "{}: its checks are shorter than they were",
                      plan_.addresses[plan_.self]);
  return block;
}

Result<void> Exchange::store_block(uint64_t stripe, const Block& block) {
  if (striping_->role_of(plan_.self, stripe) < striping_->data())
    return stream_->write(striping_->block_of(plan_.self, stripe) * kStripeBlock, block.span());
  const auto at = static_cast<off_t>(checks_at_ + striping_->check_of(plan_.self, stripe) * kStripeBlock);
  const ssize_t n = pwrite(checks_, block.bytes.get(), kStripeBlock, at);
  if (n == static_cast<ssize_t>(kStripeBlock)) return {};
  return make_error(
      ExitCode::kIo, n < 0 ? errno : ENOSPC,
      "{}: no room for checks ({}): the keeper's memory is used up; start it with more --memory",
      plan_.addresses[plan_.self], errno_name(n < 0 ? errno : ENOSPC));
}

Result<void> Exchange::encode(uint64_t first, uint64_t end) {
  const unsigned data = striping_->data(), self = plan_.self;
  std::map<uint64_t, Block> mine;  // of stripes that this host encodes, but then it holds a check
  for (uint64_t s = first; s < end; ++s) {
    const unsigned role = striping_->role_of(self, s);
    if (role >= data) continue;
    auto block = own_block(s);
    if (!block.ok()) return block.error();
    CKPT_TRY(send(striping_->encoder_of(s), kBlock, s, role, block->span()));
  }
  for (uint64_t s = first; s < end; ++s) {
    if (striping_->encoder_of(s) != self) continue;
    std::vector<Block> all(plan_.hosts);
    std::vector<const std::byte*> from;
    std::vector<std::byte*> to;
    for (unsigned role = 0; role < data; ++role) {
      auto block = await(s, role);
      if (!block.ok()) return block.error();
      all[role] = std::move(*block);
      from.push_back(all[role].bytes.get());
    }
    for (unsigned role = data; role < plan_.hosts; ++role) to.push_back(all[role].bytes.get());
    code_->encode(from, to, kStripeBlock);
    CKPT_TRY(store_block(s, all[data]));
    for (unsigned role = data + 1; role < plan_.hosts; ++role)
      CKPT_TRY(send(striping_->host_of(role, s), kBlock, s, role, all[role].span()));
  }
  for (uint64_t s = first; s < end; ++s) {
    const unsigned role = striping_->role_of(self, s);
    if (role <= data) continue;
    auto block = await(s, role);
    if (!block.ok()) return block.error();
    CKPT_TRY(store_block(s, *block));
  }
  return {};
}

Result<void> Exchange::rebuild(uint64_t first, uint64_t end) {
  const unsigned self = plan_.self;
  for (uint64_t s = first; s < end && !is_lost(self); ++s) {
    auto block = own_block(s);
    if (!block.ok()) return block.error();
    for (unsigned host = 0; host < plan_.hosts; ++host) {
      if (is_lost(host)) CKPT_TRY(send(host, kBlock, s, striping_->role_of(self, s), block->span()));
    }
  }
  for (uint64_t s = first; s < end && is_lost(self); ++s) {
    std::vector<Block> all(plan_.hosts);
    std::vector<std::byte*> blocks;
    std::vector<bool> lost(plan_.hosts);
    for (unsigned role = 0; role < plan_.hosts; ++role) {
      lost[role] = is_lost(striping_->host_of(role, s));
      if (!lost[role]) {
        auto block = await(s, role);
        if (!block.ok()) return block.error();
        all[role] = std::move(*block);
      }
      blocks.push_back(all[role].bytes.get());
    }
    CKPT_TRY(code_->recover(blocks, lost, kStripeBlock));
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
  striping_ = std::make_unique<Striping>(plan_.scheme, plan_.hosts);
  stripes_ = striping_->stripes_for(plan_.lengths);
  batch_stripes_ = plan_.lost.empty() ? kCyclesInBatch * plan_.hosts : kStripesInBatch;
  finished_.assign(plan_.hosts, 0);
  CKPT_TRY(meet_all());
  for (uint64_t first = 0, batch = 0; first < stripes_; first += batch_stripes_, ++batch) {
    const uint64_t end = std::min(first + batch_stripes_, stripes_);
    if (batch == 1) points::at("exchange.batch");
    CKPT_TRY(plan_.lost.empty() ? encode(first, end) : rebuild(first, end));
    CKPT_TRY(finish_batch(batch));
  }
  return {};
}

Exchange::~Exchange() {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    ending_ = true;
    for (const int fd : open_) shutdown(fd, SHUT_RDWR);
  }
  for (cluster::SealedLink& link : to_) link.close();
  if (acceptor_.joinable()) acceptor_.join();
  {
    const std::lock_guard<std::mutex> guard(lock_);
    for (const int fd : open_) shutdown(fd, SHUT_RDWR);
  }
  for (std::thread& t : receivers_) t.join();
}

}  // namespace ckpt::keeper
