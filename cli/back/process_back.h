// One process on its way back to an image: the asker's side of base/protocol/back_protocol.h, step by step.
//
// Owner:     cli. Ordinary code, one thread. Callers: back.cc for a process alone, job_back.cc for each of a
//            job.
// A process alone: open, begin, hear_standing, compare, hand_plan, hear_ready, tell_cutting, cut_files,
// commit, send_pages while it wants_pages, answer. After an error before commit give_up() leaves the program
// as it was, unless was_cut().
// A member of a job: hear_held, let_stand, hear_stopped and let_look come before hear_standing; no
// tell_cutting, for the gate says it. begin, let_stand, let_look and hand_plan end with a message to the
// program; the next step waits for its answer, so that all members work at the same time.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/protocol/back_protocol.h"
#include "base/sockets/job_addresses.h"
#include "cli/ask/asker.h"
#include "cli/back/descriptors/descriptor_difference.h"
#include "cli/back/descriptors/shared_parts.h"
#include "cli/back/memory_difference.h"
#include "cli/back/page_source.h"
#include "restart/descriptors/builder.h"

namespace ckpt::cli {

// Which member of a job the process is. gate: the memfd, of which each member gets an open file of its own.
struct BackMember {
  uint32_t member = 0, members = 0;
  int gate = -1;
};

// An open file of the gate's memfd. with_lock: it holds the lock of part.member.
Result<ScopedFd> open_gate(const BackMember& part, bool with_lock);
// Sends the order with these descriptors. False: the program has hung up.
bool send_order(int connection, const BackOrder& order, const std::vector<int>& fds);

class ProcessBack {
 public:
  // target and limits outlive it.
  // trust: whoever wrote the image says which files are opened and written.
  ProcessBack(const Target& target, const AskLimits& limits, bool anyway, bool trust)
      : target_(target), limits_(limits), anyway_(anyway), trust_(trust) {}
  ~ProcessBack();
  ProcessBack(const ProcessBack&) = delete;
  ProcessBack& operator=(const ProcessBack&) = delete;

  Result<void> open(const std::string& path);
  // part: nullptr for a process alone.
  Result<void> begin(const BackMember* part);
  Result<void> hear_held();
  Result<void> let_stand();
  Result<void> hear_stopped();
  Result<void> let_look();
  Result<void> hear_standing();
  // What is to be done; nothing is changed.
  Result<void> compare(const SharedParts& shared, ReplacedFiles replaced);
  // ended: processes born since, for whose end the program may have to wait. addresses: BackPlan's.
  Result<void> hand_plan(const std::vector<int32_t>& ended, std::span<const AddressLine> addresses);
  Result<void> hear_ready();
  // Of a process alone: from here on it is killed if this process ends, until give_up() or commit().
  Result<void> tell_cutting();
  // open_in_job: as DescriptorOptions has it.
  Result<void> cut_files(const std::set<uint64_t>& open_in_job);
  bool was_cut() const { return was_cut_; }
  Result<void> commit();
  // Pages are left that had no room in the first part.
  bool wants_pages() const { return !missing_.empty(); }
  Result<void> send_pages();
  Result<Answer> answer();
  void give_up();
  void kill() const;

  const Target& target() const { return target_; }
  int connection() const { return connection_.get(); }
  const ImageMeta& then() const { return image_->meta(); }
  const ImageChain& image() const { return *image_; }
  const ImageMeta& now() const { return *now_; }
  DescriptorDifference& descriptors() { return *descriptors_; }

 private:
  Result<void> check_can() const;
  Result<void> open_window(uint32_t members);
  void join_pages() const;
  Error no_memory() const;
  Result<void> order(const BackMember* part);
  Error broke_off() const;
  Result<void> hear(BackSays what);
  Result<void> reply(uint32_t more = 0, uint64_t fills = 0, uint64_t fill_count = 0);
  std::vector<AddrRange> ranges(uint64_t at, uint64_t count) const;
  std::vector<AddrRange> unwritten() const { return ranges(heard_.ranges, heard_.range_count); }
  uint64_t put(Blob bytes, uint64_t at = 0);
  Result<void> check_same_process() const;
  Result<void> compare_open_files(const SharedParts& shared, ReplacedFiles replaced);
  std::set<pid_t> children_then() const;
  Result<void> say_what_cannot(bool of_job);
  Result<void> write_plan(const std::vector<int32_t>& ended, std::span<const AddressLine> addresses);
  bool will_connect() const;
  Result<void> hand_over();

  const Target& target_;
  const AskLimits& limits_;
  const bool anyway_, trust_;
  int64_t started_ns_ = 0;
  std::unique_ptr<ImageChain> image_;
  ScopedFd memfd_, connection_, listener_;
  std::byte *mapped_ = nullptr, *window_ = nullptr, *plan_ = nullptr, *data_ = nullptr;
  uint64_t mapped_bytes_ = 0, window_bytes_ = 0, plan_used_ = 0, fills_at_ = 0;
  bool plan_full_ = false, was_cut_ = false;
  BackMessage heard_{};
  std::unique_ptr<PageSource> source_;
  AddrRange late_{};  // the library's data
  std::optional<ImageMeta> now_;
  std::optional<MemoryDifference> memory_;
  std::optional<DescriptorDifference> descriptors_;
  std::vector<AddrRange> missing_;
  std::vector<ScopedFd> made_;
  WorkingFds working_;
  DescriptorOptions descriptor_options_;
  std::vector<std::string> notes_;
};

}  // namespace ckpt::cli
