#include "cli/back/job/far_barriers.h"

#include "base/protocol/back_protocol.h"
#include "cli/back/process_back.h"

namespace ckpt::cli {

Result<void> FarBarriers::take_part(uint32_t member) {
  member_ = member;
  auto lock = open_gate({member, member + 1, gate_.fd()}, true);
  if (!lock.ok()) return lock.error();
  lock_ = std::move(*lock);
  return {};
}

void FarBarriers::begin() {
  thread_ = std::thread([this] { run(); });
}

void FarBarriers::end() {
  if (thread_.joinable()) thread_.join();
}

void FarBarriers::run() {
  for (uint32_t barrier = 1; barrier <= kBackParts + 1; ++barrier) {
    if (auto come = come_to(barrier); !come.ok()) {
      if (gate_->failed.load() == 0) error_ = come.error();
      gate_->fail();
      return;
    }
  }
}

bool FarBarriers::others_here_at(uint32_t barrier) const {
  for (uint32_t i = 0; i < member_; ++i) {
    if (gate_->passed[i].load() < barrier) return false;
  }
  return true;
}

// Behind the second barrier all connections of all hosts are empty, and behind the third nobody sends to
// another. In between the hosts give each other again what waited in connections between them.
Result<void> FarBarriers::come_to(uint32_t barrier) {
  const auto failed = [this] { return gate_->failed.load() != 0; };
  if (barrier == kBackParts) CKPT_TRY(others_.give_back_queues(failed));
  for (;;) {
    const uint32_t seen = gate_->turns.load();
    if (failed()) return make_error(ExitCode::kInternal, 0, "a process of the job failed half way back");
    if (others_here_at(barrier)) break;
    gate_->wait(seen, {0, 50'000'000});
  }
  CKPT_TRY(others_.come_to(fmt::format("barrier {}", barrier), failed));
  gate_->come_to(member_, barrier);
  return {};
}

}  // namespace ckpt::cli
