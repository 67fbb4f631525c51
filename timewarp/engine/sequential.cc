#include "timewarp/engine/sequential.h"

#include <cstring>

#include "base/clock.h"
#include "timewarp/engine/digest.h"
#include "timewarp/engine/progress.h"
#include "timewarp/engine/queue/event_queue.h"

namespace ckpt::timewarp {

namespace {

class Sequential final : public Executor {
 public:
  explicit Sequential(Setup& setup)
      : setup_(setup), queue_(setup.options.queue, setup.options.prefetch != 0), end_(setup.options.end) {
    regions_.set_page(setup.options.page_kib);
    events_.open(regions_, setup.event_bytes);
    message_.resize(setup.model.message_bytes + 1);
  }

  void run(ckpt_tw_result& result) {
    for (uint32_t id = 0; id < setup_.model.lps && !failing_; ++id) {
      Lp& lp = setup_.lp(id);
      lp.executor = this;
      setup_.model.init(&lp, lp.state());
      if (failing_) return setup_.fail(CKPT_TW_MODEL, "LP " + std::to_string(id) + ", in init: " + failure_);
    }
    const int64_t began = now_ns();
    loop();
    result.seconds = static_cast<double>(now_ns() - began) / 1e9;
    result.committed = result.executed = executed_;
    result.events_digest = digest_;
    result.peak_bytes = regions_.taken();
  }

  void send(Lp& lp, uint32_t to, double delay, const void* message, size_t bytes) override {
    const double time = lp.now + delay;
    if (!(delay >= 0) || to >= setup_.model.lps || bytes > setup_.model.message_bytes) [[unlikely]] {
      return fail(lp, wrong_send(setup_.model, to, delay, bytes).c_str());
    }
    uint64_t depth = 0;
    if (time == lp.now) {
      depth = running_ ? depth_of(key_.order) + 1 : 0;
      if (depth > kDeepest) return fail(lp, kTooDeep);
    }
    const uint64_t order = depth << kCountBits | lp.sent++;
    if (!(time < end_)) return;
    auto* event = static_cast<Event*>(events_.take());
    event->time = time;
    event->order = order;
    event->sender = lp.id;
    event->receiver = to;
    event->bytes = static_cast<uint32_t>(bytes);
    std::memcpy(event->message(), message, bytes);
    queue_.push({time, event});
  }
  void save(Lp&, const void*, size_t) override {}
  void resize(Lp& lp, size_t bytes) override {
    if (bytes > setup_.model.state_bytes) return fail(lp, state_too_large(setup_.model, bytes).c_str());
    if (bytes < lp.state_bytes) std::memset(lp.state() + bytes, 0, lp.state_bytes - bytes);
    lp.state_bytes = static_cast<uint32_t>(bytes);
  }
  uint64_t* bits(Lp&) override { return &bits_; }
  void fail(Lp&, const char* what) override {
    if (failing_) return;
    failing_ = true;
    failure_ = what;
  }
  void* context() const override { return setup_.model.context; }

 private:
  void loop() {
    const bool watched = setup_.options.progress > 0;
    const uint64_t most = setup_.options.memory_bytes;
    running_ = true;
    for (;;) {
      const Entry first = queue_.min();
      if (first.event == nullptr) break;
      queue_.pop();
      if (const Event* soon = queue_.soon(); soon != nullptr) prefetch_lp(setup_.lp(soon->receiver));
      Event* const event = first.event;
      const uint32_t bytes = event->bytes;
      key_ = event->key();
      Lp& lp = setup_.lp(event->receiver);
      if (setup_.options.digest != 0) digest_ += digest_of(*event);
      std::memcpy(message_.data(), event->message(), bytes);
      events_.give(event);
      lp.now = key_.time;
      bits_ = 0;
      setup_.model.event(&lp, lp.state(), message_.data(), bytes);
      if (setup_.model.commit != nullptr) setup_.model.commit(&lp, key_.time, message_.data(), bytes);
      ++executed_;
      if (failing_) [[unlikely]]
        return setup_.fail(CKPT_TW_MODEL, name_of(key_, lp.id) + ": " + failure_);
      if ((executed_ & 1023) == 0 && (most != 0 || watched)) {
        if (watched) report_sequential(setup_, key_.time, executed_, &next_progress_);
        const uint64_t used = regions_.taken() - events_.free_blocks() * events_.block_bytes();
        if (most != 0 && used > most) {
          return setup_.fail(CKPT_TW_MEMORY, "the memory limit of " + std::to_string(most) +
                                                 " bytes is too small: at time " + std::to_string(key_.time) +
                                                 " the waiting events alone take " + std::to_string(used) +
                                                 ": raise the limit");
        }
      }
    }
  }

  Setup& setup_;
  Regions regions_;
  Pool events_;
  EventQueue queue_;
  const double end_;
  std::vector<std::byte> message_;
  Key key_;
  bool running_ = false, failing_ = false;
  std::string failure_;
  uint64_t bits_ = 0, executed_ = 0, digest_ = 0;
  int64_t next_progress_ = 0;
};

}  // namespace

void run_sequential(Setup& setup, ckpt_tw_result& result) { Sequential(setup).run(result); }

}  // namespace ckpt::timewarp
