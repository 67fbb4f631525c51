#include "libckpt_rt/capture/descriptors/content/message_queues.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>

#include "base/clock.h"
#include "base/raii_fd.h"
#include "image/format/object_number.h"
#include "libckpt_rt/core/kernel/descriptor_info.h"
#include "libckpt_rt/core/kernel/file_turn.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

constexpr uint64_t kMostBytes = 64 << 20;
constexpr int64_t kLongestSend = 1'000'000'000;  // ns

// As mq_getattr(3) has it.
struct QueueAttributes {
  long flags, most, size, now, reserved[4];
};

// What reading a queue's descriptor shows (mq_overview(7)).
struct QueueText {
  uint64_t bytes = 0;     // of all messages
  uint64_t notified = 0;  // the process that is to be told of the next message, 0 none
};

QueueText read_text(int queue) {
  QueueText result;
  char text[160];
  const long n = sys::call(__NR_pread64, queue, text, sizeof(text), 0L);
  const std::string_view line(text, n > 0 ? static_cast<size_t>(n) : 0);
  number_after(line, "QSIZE:", 10, result.bytes);
  number_after(line, "NOTIFY_PID:", 10, result.notified);
  return result;
}

const std::byte* next_message(const std::byte* at, QueueMessage& head) {
  std::memcpy(&head, at, sizeof(head));
  return at + sizeof(head) + ((head.length + 7) & ~uint32_t{7});
}

// Returns the first that found no place.
const std::byte* send_all(int queue, const std::byte* at, const std::byte* end, const timespec* until) {
  while (at < end) {
    QueueMessage head;
    const std::byte* next = next_message(at, head);
    if (sys::call(__NR_mq_timedsend, queue, at + sizeof(head), head.length, head.priority, until) != 0) break;
    at = next;
  }
  return at;
}

}  // namespace

Result<void> MessageQueues::copy(size_t first_in_order, DescriptorContents& to) {
  CapturedDescriptor& head = files_.in_order(first_in_order);
  const std::string_view path(head.path, head.path_len);
  // Of our own: the program's may be for one direction only, and waits.
  ScopedFd queue(
      static_cast<int>(sys::call(__NR_openat, AT_FDCWD, TaskPath(access_.tid_of(head), "fd", head.fd).c_str(),
                                 O_RDWR | O_NONBLOCK | O_CLOEXEC, 0L)));
  const bool usable = queue.valid();
  if (!usable) queue.reset(access_.borrow(head));
  QueueAttributes now{};
  if (!queue.valid() || sys::call(__NR_mq_getsetattr, queue.get(), nullptr, &now) != 0)
    return notes_.add(kNoRestart, "descriptor {} ({}) is a message queue that cannot be looked at", head.fd,
                      path);
  const uint64_t limits = static_cast<uint64_t>(now.most) << 32 | static_cast<uint32_t>(now.size);
  for (const uint32_t k : files_.same_inode(first_in_order)) files_.entries()[k].value = limits;
  // Every member that has it looks at it.
  const FileTurn turn(queue.get());
  if (!turn.taken() || sys::call(__NR_mq_getsetattr, queue.get(), nullptr, &now) != 0)
    return notes_.add(kNoRestart,
                      "descriptor {} ({}): another process keeps the message queue from being looked at",
                      head.fd, path);
  head.now.queued = static_cast<int>(now.now);
  if (now.now == 0) return {};
  const auto forbid = [&](const char* why) {
    notes_.say_passing();
    return notes_.add(
        kNoRestart,
        "descriptor {} ({}) is a message queue in which {} messages wait, which cannot be saved: {}", head.fd,
        path, now.now, why);
  };
  if (!usable) return forbid("the program may not receive and send in it");
  const QueueText text = read_text(queue.get());
  // The notices that members asked for have ended by now (libckpt_rt/interpose/descriptors/queue_notice.cc).
  if (text.notified != 0)
    return forbid("a process that is not in the checkpoint is to be told of the next (mq_notify)");
  const auto size = static_cast<uint64_t>(now.size), count = static_cast<uint64_t>(now.now);
  const uint64_t room = text.bytes + count * (sizeof(QueueMessage) + 8) + size + 8;
  if (room > kMostBytes) return forbid("they are too long");
  auto* all = static_cast<std::byte*>(files_.arena().allocate(room));
  if (all == nullptr) return forbid("no memory for them");

  std::byte* end = all;
  uint64_t taken = 0;
  for (; taken < count && end + sizeof(QueueMessage) + size <= all + room; ++taken) {
    unsigned priority = 0;
    const long n =
        sys::call(__NR_mq_timedreceive, queue.get(), end + sizeof(QueueMessage), size, &priority, nullptr);
    if (n < 0) break;
    const QueueMessage message{priority, static_cast<uint32_t>(n)};
    std::memcpy(end, &message, sizeof(message));
    end += sizeof(message) + ((static_cast<uint64_t>(n) + 7) & ~uint64_t{7});
  }
  const std::byte* left = send_all(queue.get(), all, end, nullptr);
  if (left != end) {
    // Somebody else's message has taken the place. The remaining messages are sent when threads run.
    if (!unsent_.push_back({queue.release(), left, end})) return arena_full(files_.arena());
  }
  if (taken != count || left != end)
    return forbid("a process that is not in the checkpoint uses it at this moment");
  if (!to.push_back({head.open_file, object_number(head.now.device, head.now.inode), 0, all,
                     static_cast<uint64_t>(end - all)}))
    return arena_full(files_.arena());
  return {};
}

void MessageQueues::send_the_rest() {
  for (Unsent& u : unsent_) {
    sys::call(__NR_fcntl, u.queue, F_SETFL, 0L);
    const int64_t until = now_ns(CLOCK_REALTIME) + kLongestSend;
    const timespec deadline{until / 1'000'000'000, until % 1'000'000'000};
    (void)send_all(u.queue, u.at, u.end, &deadline);
    sys::call(__NR_close, u.queue);
  }
  unsent_.clear();
}

}  // namespace ckpt
