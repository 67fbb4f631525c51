// What an io_uring is to the kernel: numbers and layouts that do not change, by io_uring_setup(2) and
// io_uring_register(2). linux/io_uring.h of the machine that builds may be older than the kernel that runs.
//
// Owner: rings. Header only. Callers: the room.
#pragma once

#include <linux/io_uring.h>

#include <cstdint>

namespace ckpt::rings {

// Flags of io_uring_setup(2).
enum Setup : uint32_t {
  kSqPoll = 1u << 1,
  kSqAffinity = 1u << 2,
  kCqSize = 1u << 3,
  kClamp = 1u << 4,
  kAttach = 1u << 5,
  kDisabled = 1u << 6,
  kSqe128 = 1u << 10,
  kCqe32 = 1u << 11,
  kSingleIssuer = 1u << 12,
  kDeferTaskRun = 1u << 13,
  kNoMmap = 1u << 14,
  kRegisteredFdOnly = 1u << 15,
  kNoSqArray = 1u << 16,
  // Flags without a meaning for requests that are under way or wait: IOPOLL, SUBMIT_ALL, COOP_TASKRUN,
  // TASKRUN_FLAG, HYBRID_IOPOLL.
  kOthers = 1u << 0 | 1u << 7 | 1u << 8 | 1u << 9 | 1u << 17,
  // With which a ring can be made again.
  kKnown = kSqPoll | kSqAffinity | kCqSize | kClamp | kAttach | kDisabled | kSqe128 | kCqe32 | kSingleIssuer |
           kDeferTaskRun | kNoSqArray | kOthers,
};

// Operations of io_uring_register(2) that are remembered, or whose effect fdinfo shows.
enum class Operation : uint32_t {
  kBuffers = 0,
  kUnregisterBuffers = 1,
  kFiles = 2,
  kUnregisterFiles = 3,
  kEventFd = 4,
  kUnregisterEventFd = 5,
  kFilesUpdate = 6,
  kEventFdAsync = 7,
  kProbe = 8,
  kPersonality = 9,
  kUnregisterPersonality = 10,
  kEnable = 12,
  kFiles2 = 13,
  kFilesUpdate2 = 14,
  kBuffers2 = 15,
  kBuffersUpdate = 16,
  kRingFds = 20,
  kUnregisterRingFds = 21,
  kProvidedRing = 22,
  kUnregisterProvidedRing = 23,
  kSyncCancel = 24,
  kProvidedStatus = 26,
};
// Instead of the descriptor its number among those that the task has registered.
inline constexpr uint32_t kUseRegisteredRing = 1u << 31;

// What mmap(2) of the ring gives at these offsets. Both queues lie in one piece of memory.
inline constexpr uint64_t kOffsetQueues = 0, kOffsetCompletions = 0x8000000, kOffsetSubmissions = 0x10000000;

// io_uring_enter(2).
inline constexpr long kGetEvents = 1, kWakeUp = 2;

// IOSQE_CQE_SKIP_SUCCESS; IORING_NOP_INJECT_RESULT.
inline constexpr uint8_t kSkipCompletion = 1u << 6;
inline constexpr uint32_t kInjectResult = 1;

// Flags of a completion. kMore: another completion of this request follows. kNotification: its buffer is free
// again.
inline constexpr uint32_t kMore = 1u << 1, kNotification = 1u << 3;
// In the flags of the submission queue: its thread sleeps.
inline constexpr uint32_t kNeedsWakeUp = 1u << 0;

struct Sizes {
  explicit Sizes(const io_uring_params& p)
      : submission((p.flags & kSqe128) != 0 ? 128 : 64),
        completion((p.flags & kCqe32) != 0 ? 32 : 16),
        completions_end(p.cq_off.cqes + uint64_t{p.cq_entries} * completion),
        queues((p.flags & kNoSqArray) != 0 ? completions_end
                                           : p.sq_off.array + uint64_t{p.sq_entries} * sizeof(uint32_t)),
        submissions(uint64_t{p.sq_entries} * submission) {}
  const uint32_t submission, completion;  // bytes of one
  const uint64_t completions_end, queues, submissions;
};

// The memory of both queues, at the place where it is mapped.
class Queues {
 public:
  Queues(uint64_t at, const io_uring_params& p) : at_(at), p_(p) {}
  uint32_t& submission_head() const { return word(p_.sq_off.head); }
  uint32_t& submission_tail() const { return word(p_.sq_off.tail); }
  uint32_t& submission_flags() const { return word(p_.sq_off.flags); }
  uint32_t& dropped() const { return word(p_.sq_off.dropped); }
  uint32_t* submission_array() const { return &word(p_.sq_off.array); }
  uint32_t& completion_head() const { return word(p_.cq_off.head); }
  uint32_t& completion_tail() const { return word(p_.cq_off.tail); }
  uint32_t& completion_flags() const { return word(p_.cq_off.flags); }
  uint32_t& overflowed() const { return word(p_.cq_off.overflow); }
  io_uring_cqe& completion(uint32_t i) const {
    return *reinterpret_cast<io_uring_cqe*>(at_ + p_.cq_off.cqes + uint64_t{i} * Sizes(p_).completion);
  }
  uint64_t at() const { return at_; }

 private:
  uint32_t& word(uint32_t offset) const { return *reinterpret_cast<uint32_t*>(at_ + offset); }
  uint64_t at_;
  const io_uring_params& p_;
};

// The kernel is the other side of each of these words: what it wrote before is seen; what we wrote before, it
// sees.
inline uint32_t load(const uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
inline void store(uint32_t& word, uint32_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }

}  // namespace ckpt::rings
