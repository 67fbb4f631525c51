#include "tests/unit/copier/model_memory.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>

namespace ckpt::test {

ModelMemory::ModelMemory(size_t pages)
    : base_(Addr::of(aligned_alloc(64 * kPageSize, (pages + 63) / 64 * 64 * kPageSize))),
      count_(pages),
      pages_(new Page[pages]) {
  for (size_t i = 0; i < pages; ++i) fill(i, 0);
}

ModelMemory::~ModelMemory() {
  stop_serving();
  free(base_.as<void>());
}

void ModelMemory::fill(size_t i, uint64_t value) {
  auto* words = page(i).as<uint64_t>();
  for (size_t w = 0; w < kPageSize / 8; ++w) words[w] = value;
}

void ModelMemory::set(size_t i, uint64_t value) { fill(i, value); }

void ModelMemory::serve(Copier& copier) {
  handler_ = std::thread([this, &copier] {
    for (;;) {
      Addr a;
      {
        std::unique_lock lock(faults_lock_);
        fault_came_.wait(lock, [&] { return stopping_ || !faults_.empty(); });
        if (faults_.empty()) return;
        a = faults_.front();
        faults_.pop_front();
      }
      copier.fault(a);
    }
  });
}

void ModelMemory::stop_serving() {
  if (!handler_.joinable()) return;
  {
    std::lock_guard lock(faults_lock_);
    stopping_ = true;
  }
  fault_came_.notify_all();
  handler_.join();
}

bool ModelMemory::write(size_t i, uint64_t value) {
  Page& p = pages_[i];
  for (;;) {
    {
      std::lock_guard lock(p.lock);
      if (p.gone) return false;
      if (p.is_protected == 0) {
        fill(i, value);
        return true;
      }
    }
    {
      std::lock_guard lock(faults_lock_);
      faults_.push_back(page(i) + value % kPageSize);
    }
    fault_came_.notify_one();
    futex_wait(p.is_protected, 1);
  }
}

void ModelMemory::give_back(size_t first, size_t count) {
  for (size_t i = first; i < first + count; ++i) {
    std::lock_guard lock(pages_[i].lock);
    pages_[i].gone = true;
    fill(i, 0xdeadbeefdeadbeef);
  }
}

long ModelMemory::read(std::byte* to, Addr from, size_t bytes, bool) {
  for (size_t done = 0; done < bytes; done += kPageSize) {
    if (pages_[index(from + done)].gone) return -EFAULT;
    std::memcpy(to + done, (from + done).as(), kPageSize);
  }
  if (after_read) after_read(from);
  return 0;
}

long ModelMemory::read_pieces(std::span<const CopyPiece> pieces, bool readable) {
  together.push_back(pieces.size());
  if (!together_fails) return ProgramMemory::read_pieces(pieces, readable);
  read(pieces[0].to, pieces[0].from, pieces[0].bytes, readable);
  std::fill(pieces.back().to, pieces.back().to + pieces.back().bytes, std::byte{0x5a});
  return -EFAULT;
}

long ModelMemory::unprotect(AddrRange range) {
  if (before_unprotect) before_unprotect(range);
  for (Addr a = range.start; a < range.end; a = a + kPageSize) {
    if (pages_[index(a)].gone) return -ENOENT;
  }
  for (Addr a = range.start; a < range.end; a = a + kPageSize) {
    Page& p = pages_[index(a)];
    std::lock_guard lock(p.lock);
    p.is_protected = 0;
    futex_wake(p.is_protected);
  }
  return 0;
}

bool ModelMemory::still_protected(AddrRange range) {
  bool all = true;
  for (Addr a = range.start; all && a < range.end; a = a + kPageSize)
    all = !pages_[index(a)].gone && is_protected(index(a));
  if (after_still_protected) after_still_protected(range);
  return all;
}

void ModelMemory::replace(size_t i, uint64_t value) {
  std::lock_guard lock(pages_[i].lock);
  pages_[i].is_protected = 0;
  fill(i, value);
  futex_wake(pages_[i].is_protected);
}

void ModelMemory::wake(AddrRange range) {
  for (Addr a = range.start; a < range.end; a = a + kPageSize) {
    Page& p = pages_[index(a)];
    std::lock_guard lock(p.lock);
    // A page that is gone has no protection left to sleep on.
    if (p.gone) p.is_protected = 0;
    futex_wake(p.is_protected);
  }
}

void ModelMemory::settle_events() {
  if (in_settle) in_settle();
}

uint64_t value_of(const std::byte* page) {
  auto* words = reinterpret_cast<const uint64_t*>(page);
  for (size_t w = 1; w < kPageSize / 8; ++w) {
    if (words[w] != words[0]) {
      ADD_FAILURE() << "torn page: word " << w << " is " << words[w] << ", word 0 is " << words[0];
      break;
    }
  }
  return words[0];
}

}  // namespace ckpt::test
