// Memory is protected by a userfaultfd whose faults a thread of ours serves (the watch): modes realtime and
// realtime-large with CKPT_FAULTS=handler, and of mode standing. The only back end that can make increments.
//
// Owner:     run_stages(). Callers: the agent.
#pragma once

#include "libckpt_rt/checkpoint/back_ends/protecting.h"

namespace ckpt {

class HandlerBackEnd final : public ProtectingBackEnd {
 public:
  HandlerBackEnd(Attempt& attempt, const HowCopied& how)
      : ProtectingBackEnd(attempt, how, attempt.watch.protection, attempt.watch.arming, attempt.watch.table),
        watch_(attempt.watch) {}

  Result<void> open(const Room& room) override;
  const char* why_no_increments() const override;
  Result<void> get_ready() override;
  bool protects_ahead() const override { return true; }
  Result<void> capture_memory() override;
  void release_faults() override;
  void end() override;

 private:
  Result<void> mappings_in_motion(int round) override;
  Result<void> renew_table(std::span<const Mapping> map) override;
  Result<void> check_table() override;
  bool tracks_shared() const override;
  Result<void> offer_shared(std::span<const Mapping> map) override;
  Result<void> agree_on_shared(std::span<Mapping> map) override;
  void save_for_others(Addr page) override;
  Result<void> await_sharers(bool complete) override;
  void serve_copier() override { watch_.protection.serve(&copier_); }
  void before_go() override;
  Result<void> after_copying() override;
  int late_signal() override { return ask_for_late_signal(); }
  Result<void> list_inherited(ArenaVector<AddrRange>& inherited) override;
  void take_protection_off();

  Watch& watch_;
};

}  // namespace ckpt
