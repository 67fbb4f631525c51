// The program's descriptors, and which of them are one open file.
//
// Owner:     DescriptorCapture. Callers: the agent. It is filled ahead of the stop and brought up to date in
//            it. OrderCheck::ask is also called by stopped threads.
// Order:     by device, inode and open file, as kcmp(2) has it: those of one open file are neighbours, and
//            the first of them is the one that does not `share`.
// Never:     touches an open file.
#pragma once

#include <span>

#include "base/memory/arena.h"
#include "base/result.h"
#include "job/format/wire.h"
#include "libckpt_rt/capture/descriptors/table/access.h"
#include "libckpt_rt/capture/descriptors/table/descriptor.h"

namespace ckpt {

class OpenFiles {
 public:
  explicit OpenFiles(const DescriptorAccess& access) : access_(access) {}
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;

  void begin(Arena& arena);
  Arena& arena() const { return *arena_; }

  // By number; those that wait in sockets come last.
  ArenaVector<CapturedDescriptor>& entries() { return entries_; }
  const ArenaVector<CapturedDescriptor>& entries() const { return entries_; }

  // Indices of entries(), by open file.
  std::span<const uint32_t> order() const { return order_.span(); }
  CapturedDescriptor& in_order(size_t i) { return entries_[order_[i]]; }
  // The first of those in order() that lead to its inode.
  bool begins_inode(size_t i) const;
  // The part of order() from `first` on that leads to the inode of that one.
  std::span<const uint32_t> same_inode(size_t first) const;

  Result<void> sort_by_open_file();
  // Descriptors are others, or other files, than when they were sorted.
  void note_change() { has_changed_ = true; }
  bool has_changed() const { return has_changed_; }
  // The kernel does not compare: which are one open file is guessed.
  void note_refusal() { is_refused_ = true; }
  bool is_refused() const { return is_refused_; }

  // Two neighbours, and what kcmp(2) says of them in the stop.
  struct OrderCheck {
    uint32_t before, d;  // indices of entries()
    int answer;
    void ask(int tid, const CapturedDescriptor* entries);
  };
  Result<void> list_order_checks();
  // Of those, whoever asks.
  std::span<OrderCheck> order_checks() { return checks_.span(); }
  void take_order_checks();
  Result<bool> sharing_unchanged();

  // When the order is final.
  void number_open_files();
  // One entry for each; in the arena.
  Result<std::span<const job::OpenFileKey>> list_open_files() const;
  // One of the sockets is that object.
  bool has_socket(uint64_t object) const;

 private:
  template <typename Fn>
  void for_each_group(Fn fn);
  void decide_who_asks();
  int compare(const CapturedDescriptor& a, const CapturedDescriptor& b);

  const DescriptorAccess& access_;
  Arena* arena_ = nullptr;
  ArenaVector<CapturedDescriptor> entries_;
  ArenaVector<uint32_t> order_;
  ArenaVector<OrderCheck> checks_;
  bool has_changed_ = false;
  bool is_refused_ = false;
};

}  // namespace ckpt
