// A program whose memory is copied, and a kernel that protects it: what the copier needs of both, so
// that its protocol can be raced in one ordinary process, under a sanitizer.
//
// Owner:     tests/unit. One ModelMemory is the memory of one checkpoint.
// Callers:   write(), give_back(): the model's program threads. read(), unprotect(), wake(): the copier.
// A page's words are all the same value, so that a torn copy shows. Content is changed only under the
// page's lock and only while the page is unprotected; it is read without, as the copier does: a thread
// sanitizer sees every copy that the protocol does not order before the write.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/locks/futex.h"
#include "copier/copier.h"

namespace ckpt::test {

class ModelMemory final : public ProgramMemory {
 public:
  explicit ModelMemory(size_t pages);
  ~ModelMemory();

  Addr base() const { return base_; }
  Addr page(size_t i) const { return base_ + i * kPageSize; }
  AddrRange pages(size_t first, size_t count) const { return {page(first), page(first + count)}; }
  size_t size() const { return count_; }

  // Before threads run.
  void set(size_t i, uint64_t value);
  void protect(size_t i) { pages_[i].is_protected = 1; }

  // The fault handler thread, until its destruction.
  void serve(Copier& copier);
  void stop_serving();

  // A thread of the program writes; waits in its fault while the page is protected. False: no such page.
  bool write(size_t i, uint64_t value);
  // The pages go, as by munmap: anybody's bytes are there afterwards.
  void give_back(size_t first, size_t count);
  // Another page is there, unprotected, and nobody is told: as when the kernel drops a page that was given to
  // MADV_FREE.
  void replace(size_t i, uint64_t value);
  bool is_protected(size_t i) const { return pages_[i].is_protected.load() != 0; }
  bool is_gone(size_t i) const { return pages_[i].gone; }

  long read(std::byte* to, Addr from, size_t bytes, bool readable) override;
  long read_pieces(std::span<const CopyPiece> pieces, bool readable) override;
  long unprotect(AddrRange range) override;
  bool still_protected(AddrRange range) override;
  void wake(AddrRange range) override;
  void settle_events() override;

  // How many pieces were read by one call, each time; and that such a call fails, having read some.
  std::vector<size_t> together;
  bool together_fails = false;

  // Called where they are named, on the copying thread.
  std::function<void(Addr)> after_read;
  std::function<void()> in_settle;
  std::function<void(AddrRange)> before_unprotect, after_still_protected;

 private:
  struct Page {
    std::mutex lock;
    FutexWord is_protected{0};
    std::atomic<bool> gone{false};
  };
  size_t index(Addr a) const { return (a - base_) / kPageSize; }
  void fill(size_t i, uint64_t value);

  Addr base_;
  size_t count_;
  std::unique_ptr<Page[]> pages_;

  std::mutex faults_lock_;
  std::condition_variable fault_came_;
  std::deque<Addr> faults_;
  bool stopping_ = false;
  std::thread handler_;
};

// The value of a copied page; fails the test if its words differ.
uint64_t value_of(const std::byte* page);

}  // namespace ckpt::test
