#include "libckpt_rt/checkpoint/preparation.h"

#include <signal.h>
#include <string.h>

#include <utility>

#include "base/clock.h"
#include "base/locks/futex.h"
#include "base/memory/fork_path.h"
#include "base/memory/large_table.h"
#include "job/format/wire.h"
#include "job/session/session.h"
#include "libckpt_rt/checkpoint/stages/callbacks.h"
#include "libckpt_rt/core/process/fork/child.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/request/own_signal.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::preparation {

namespace {

// An order is a number that grows, times 8, and the kind of callback. The agent gives one when the one before
// is done; so in every image the program's thread in ckpt_rt_serve() waits for the next. (In this file
// "serving" means that thread, not the one that serves faults.)
//
//   agent                     thread in ckpt_rt_serve()
//   order = n | PREPARE  -->  callbacks
//                        <--  done = n | PREPARE
//   order = n+1 | DURABLE or ABANDONED, or, in a restarted process, CAME_BACK
//
// A thread that comes back too late finds its order in `abandoned`.
constinit FutexWord order{0}, done{0}, serving{0};  // serving: the thread's tid
constinit FutexWord abandoned{0};
constinit FutexWord started{0};

constexpr uint32_t kMostRounds = 32;

constinit char refused[200];
constinit std::atomic<bool> in_prepare{false};

CKPT_LARGE_TABLE alignas(8) constinit std::byte outgoing[job::kMostPostedBytes];
constinit uint32_t outgoing_bytes = 0;  // the serving thread's in PREPARE, else the agent's
CKPT_LARGE_TABLE alignas(8) constinit std::byte mail[job::kMostMailBytes];
constinit std::atomic<uint32_t> mail_bytes{0};

constexpr size_t padded(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

ckpt_rt_callback_kind kind_of(uint32_t o) { return static_cast<ckpt_rt_callback_kind>(o & 7); }

// Waits until holds(word) is true. False: not in time.
template <typename Holds>
bool await(FutexWord& word, int64_t deadline_ns, Holds holds) {
  for (;;) {
    const uint32_t now = word.load(std::memory_order_acquire);
    if (holds(now)) return true;
    const int64_t left = deadline_ns - now_ns();
    if (left <= 0) return false;
    const timespec time{left / 1'000'000'000, left % 1'000'000'000};
    futex_wait(word, now, &time);
  }
}

uint32_t next_order(ckpt_rt_callback_kind kind) {
  return ((order.load(std::memory_order_relaxed) | 7) + 1) | static_cast<uint32_t>(kind);
}

void give(uint32_t o) {
  // release: the serving thread sees what the agent has put in place for it (mail).
  order.store(o, std::memory_order_release);
  futex_wake(order);
}

void run(uint32_t o) {
  const bool prepares = kind_of(o) == CKPT_RT_PREPARE;
  if (prepares) {
    refused[0] = '\0';
    outgoing_bytes = 0;
    in_prepare.store(true, std::memory_order_relaxed);
  }
  callbacks::run(kind_of(o));
  if (prepares) in_prepare.store(false, std::memory_order_relaxed);
  // seq_cst with ~Preparation(): either it finds the order done, or this thread finds it abandoned.
  done.store(o, std::memory_order_seq_cst);
  futex_wake(done);
  uint32_t late = o;
  if (prepares && abandoned.compare_exchange_strong(late, 0, std::memory_order_seq_cst))
    callbacks::run(CKPT_RT_ABANDONED);
}

// asked: becomes true when the callbacks are called.
Result<void> prepare_once(bool& asked) {
  const int64_t deadline = now_ns() + user_settings().prepare_timeout_ns;
  if (!await(serving, deadline, [](uint32_t tid) { return tid != 0; }))
    return make_error(ExitCode::kTimeout, 0,
                      "it has plug-ins or callbacks that prepare checkpoints, and no thread for them "
                      "(ckpt_rt_serve): the checkpoint was given up");
  const uint32_t before = order.load(std::memory_order_relaxed);
  const bool idle = await(done, deadline, [before](uint32_t d) { return d == before; });
  const uint32_t mine = next_order(CKPT_RT_PREPARE);
  if (idle) {
    asked = true;
    give(mine);
  }
  if (!idle || !await(done, deadline, [mine](uint32_t d) { return d == mine; }))
    return make_error(ExitCode::kTimeout, 0,
                      "what plug-ins or callbacks do ahead of a checkpoint took longer than "
                      "CKPT_PREPARE_TIMEOUT: the checkpoint was given up");
  if (refused[0] != '\0')
    return make_error(ExitCode::kUnavailable, 0, "{}", static_cast<const char*>(refused));
  return {};
}

}  // namespace

CKPT_START_PATH void library_started() {
  started.store(1, std::memory_order_release);
  futex_wake(started);
}

int serve() {
  // The loader of plug-ins is behind us in LD_PRELOAD, so its constructor runs first, and its thread may be
  // here before ours has.
  while (started.load(std::memory_order_acquire) == 0) futex_wait(started, 0);
  if (!this_process.active) return CKPT_RT_NOT_LOADED;
  const uint64_t ours = 1ull << (own_signal.number - 1);
  sys::call(__NR_rt_sigprocmask, SIG_UNBLOCK, &ours, 0L, 8L);
  know_child();
  uint32_t nobody = 0;
  if (!serving.compare_exchange_strong(nobody, static_cast<uint32_t>(sys::gettid())))
    return CKPT_RT_UNAVAILABLE;
  futex_wake(serving);
  for (;;) {
    const uint32_t o = order.load(std::memory_order_acquire);
    if (o == done.load(std::memory_order_relaxed))
      futex_wait(order, o);
    else
      run(o);
  }
}

void refuse(const char* why) {
  if (!in_prepare.load(std::memory_order_relaxed)) return;
  const size_t n = strnlen(why, sizeof(refused) - 1);
  std::memcpy(refused, why, n);
  refused[n] = '\0';
  for (char& c : refused) {
    if (c == '\n') c = ' ';
  }
  if (n == 0) std::memcpy(refused, "refused by a plug-in", sizeof("refused by a plug-in"));
}

namespace {

int put(job::Post head, const void* bytes, size_t length) {
  const size_t all = sizeof(head) + padded(length);
  if (outgoing_bytes + all > sizeof(outgoing)) return CKPT_RT_UNAVAILABLE;
  head.length = static_cast<uint32_t>(length);
  std::memcpy(outgoing + outgoing_bytes, &head, sizeof(head));
  std::memset(outgoing + outgoing_bytes + sizeof(head), 0, padded(length));
  if (length != 0) std::memcpy(outgoing + outgoing_bytes + sizeof(head), bytes, length);
  outgoing_bytes += static_cast<uint32_t>(all);
  return CKPT_RT_OK;
}

}  // namespace

int post(const char* subject, const char* host, int pid, const void* bytes, size_t length) {
  job::Post head{};
  const size_t name = strnlen(subject, sizeof(head.subject));
  const size_t at = host == nullptr ? 0 : strnlen(host, sizeof(head.host));
  if (!in_prepare.load(std::memory_order_relaxed) || name == 0 || name >= sizeof(head.subject) ||
      at >= sizeof(head.host) || length > job::kMostPostBytes || pid < 0)
    return CKPT_RT_USAGE;
  std::memcpy(head.subject, subject, name);
  if (at != 0) std::memcpy(head.host, host, at);
  head.pid = pid;
  return put(head, bytes, length);
}

// A message without a subject, to the coordinator.
int take_over(int pid, const char* who) {
  if (!in_prepare.load(std::memory_order_relaxed) || pid <= 0) return CKPT_RT_USAGE;
  job::Post head{};
  head.pid = pid;
  return put(head, who, strnlen(who, job::kMostClaimBytes));
}

int directory(char* now, char* later, size_t size) {
  // The agent, whose session it is, waits for us.
  if (!in_prepare.load(std::memory_order_relaxed) || job::place() == nullptr) return CKPT_RT_UNAVAILABLE;
  for (const auto& [to, from] : {std::pair{now, job::place()->now}, std::pair{later, job::place()->later}}) {
    const size_t n = strnlen(from, sizeof(job::Place::now));
    if (n >= size) return CKPT_RT_USAGE;
    std::memcpy(to, from, n + 1);
  }
  return CKPT_RT_OK;
}

int next(const char* subject, uint32_t* position, ckpt_rt_message& message) {
  const uint32_t end = mail_bytes.load(std::memory_order_acquire);
  while (*position < end && end - *position >= sizeof(job::Post)) {
    job::Post head;
    const std::byte* at = mail + *position;
    std::memcpy(&head, at, sizeof(head));
    *position += static_cast<uint32_t>(sizeof(head) + padded(head.length));
    if (strncmp(subject, head.subject, sizeof(head.subject)) != 0) continue;
    message.bytes = at + sizeof(head);
    message.length = head.length;
    message.pid = head.pid;
    std::memcpy(message.host, head.host, sizeof(message.host));
    return CKPT_RT_OK;
  }
  return CKPT_RT_UNAVAILABLE;
}

bool wanted() {
  return callbacks::any(CKPT_RT_PREPARE) || callbacks::any(CKPT_RT_DURABLE) ||
         callbacks::any(CKPT_RT_ABANDONED) || callbacks::any(CKPT_RT_CAME_BACK);
}

bool deliver(std::span<const std::byte> posts) {
  const uint32_t used = mail_bytes.load(std::memory_order_relaxed);
  if (posts.size() > sizeof(mail) - used) return false;
  if (!posts.empty()) std::memcpy(mail + used, posts.data(), posts.size());
  mail_bytes.store(used + static_cast<uint32_t>(posts.size()), std::memory_order_release);
  return true;
}

Result<void> Preparation::begin() {
  const bool prepares = wanted();
  job::Session* session = job::session();
  if (!prepares && (session == nullptr || !session->in_rounds)) return {};
  // Written only if there was mail: the page may never have been touched.
  if (mail_bytes.load(std::memory_order_relaxed) != 0) mail_bytes.store(0, std::memory_order_relaxed);
  for (uint32_t round = 0; round < kMostRounds; ++round) {
    if (prepares) CKPT_TRY(prepare_once(asked_));
    // A process that is alone has nobody to write to.
    if (session == nullptr) return {};
    const std::span<const std::byte> posts(outgoing, prepares ? outgoing_bytes : 0);
    if (!session->in_rounds) {
      if (posts.empty()) return {};
      session->again = true;
      return make_error(
          ExitCode::kUnavailable, 0,
          "a plug-in posts messages in a process that came too late for that; the checkpoint is "
          "taken again");
    }
    auto more = session->exchange(posts);
    if (!more.ok()) return more.error();
    if (!*more) return {};
  }
  return make_error(ExitCode::kTimeout, 0,
                    "plug-ins go on posting messages after {} rounds: the checkpoint was given up",
                    kMostRounds);
}

void Preparation::is_durable() {
  if (!asked_) return;
  asked_ = false;
  give(next_order(CKPT_RT_DURABLE));
}

Preparation::~Preparation() {
  if (!asked_) return;
  const uint32_t last = order.load(std::memory_order_relaxed);
  abandoned.store(last, std::memory_order_seq_cst);
  if (done.load(std::memory_order_seq_cst) != last) return;
  uint32_t mine = last;
  if (abandoned.compare_exchange_strong(mine, 0, std::memory_order_seq_cst))
    give(next_order(CKPT_RT_ABANDONED));
}

void reset(uint32_t generation) {
  if (generation == 0) {
    // Pages of a child that knows nothing of this stay its parent's.
    if (serving.load(std::memory_order_relaxed) == 0) return;
    serving.store(0, std::memory_order_relaxed);
    order.store(0, std::memory_order_relaxed);
    done.store(0, std::memory_order_relaxed);
    abandoned.store(0, std::memory_order_relaxed);
    in_prepare.store(false, std::memory_order_relaxed);
    mail_bytes.store(0, std::memory_order_relaxed);
    return;
  }
  if (serving.load(std::memory_order_relaxed) != 0 && wanted())
    order.store(next_order(CKPT_RT_CAME_BACK), std::memory_order_release);
}

}  // namespace ckpt::preparation
