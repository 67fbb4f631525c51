#include "job/session/session.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <string_view>

#include "image/write/directory/image_directory.h"
#include "job/format/job_name.h"
#include "job/identity/own_job.h"
#include "job/session/connecting.h"
#include "job/session/servers.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/process/children.h"
#include "libckpt_rt/core/directory/own_directory.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/settings/user_settings.h"
#include "libckpt_rt/core/threads/of_ours/urgency.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

constinit Session* current = nullptr;  // the agent's
constinit int64_t stop_began_ns = 0;
constinit ExpectAlone* expects_alone = nullptr;  // the agent's
constinit int asker_of_stopped = -1;

bool has_child(int which, int pid, long notice) {
  siginfo_t child{};
  return sys::call(__NR_waitid, which, pid, &child, notice | WNOHANG | WNOWAIT, 0L) == 0 && child.si_pid != 0;
}

// Ends and stops of children that wait(2) would report to the program are looked at, not taken.
Result<void> list_unreported(Arena& arena, ArenaVector<ChildNotice>& notices) {
  if (!has_child(P_ALL, 0, WSTOPPED | WEXITED | __WALL)) return {};
  constexpr size_t kRoom =
      16 << 20;  // for some 100,000 children; of address space, of which little is touched
  bool all = reserve_own(arena, kRoom);
  for (const LostChild& child : list_children(arena)) {
    if (child.record.state == static_cast<uint32_t>(ChildState::kEnded))
      all = all && notices.push_back({child.record.pid, child.record.status});
    else if (has_child(P_PID, child.record.pid, WSTOPPED))
      all = all && notices.push_back({child.record.pid, ChildNotice::kIsStopped});
  }
  if (all) return {};
  return make_error(ExitCode::kInternal, ENOMEM, "no memory for the list of children");
}

}  // namespace

Session* session() { return current; }
void forget_session() {
  current = nullptr;
  asker_of_stopped = -1;
}
ScopedSession::ScopedSession(Session& s) { current = &s; }
ScopedSession::~ScopedSession() { current = nullptr; }

ExpectAlone::ExpectAlone(bool may_repeat, bool holds_connects)
    : may_repeat_(may_repeat), holds_connects_(holds_connects) {
  expects_alone = this;
}
ExpectAlone::~ExpectAlone() {
  expects_alone = nullptr;
  connecting::release();
}

Result<void> ExpectAlone::check(bool has_children) {
  if (expects_alone == nullptr || current != nullptr || !has_children) return {};
  expects_alone->met_ = true;
  return make_error(
      ExitCode::kInternal, 0,
      "a child process was made while the checkpoint of its parent began; it is taken again with "
      "the child");
}

bool ExpectAlone::wait_for_passing(bool unaccepted) {
  if (current != nullptr) {
    if (!current->place.may_repeat) return false;
    current->unaccepted = unaccepted;
    return current->again = current->passing = true;
  }
  if (expects_alone == nullptr || !expects_alone->may_repeat_) return false;
  expects_alone->unaccepted_ = unaccepted;
  return expects_alone->passing_ = true;
}

void ExpectAlone::prepared(const DescriptorCapture& descriptors) {
  if (expects_alone == nullptr || !expects_alone->holds_connects_) return;
  Servers servers(descriptors.entries(), &pause_asleep, nullptr);
  servers.hold_in_turn(0);  // no others
  servers.await_accepted();
}

void fill_place(Place& place, int directory, const char* job_directory, const char* job_name,
                const char* temporary_name, int pid, uint64_t sequence) {
  const MemberImageName name = member_image_name(pid);
  place.directory = directory;
  place.sequence = sequence;
  std::memcpy(place.name, name.text, sizeof(place.name));
  *fmt::format_to_n(place.now, sizeof(place.now) - 1, "{}/{}", job_directory, temporary_name).out = '\0';
  *fmt::format_to_n(place.later, sizeof(place.later) - 1, "{}/{}", job_directory, job_name).out = '\0';
  *fmt::format_to_n(place.path, sizeof(place.path) - 1, "{}/{}/{}", job_directory, job_name, name.text).out =
      '\0';
  *fmt::format_to_n(place.as_parent, sizeof(place.as_parent) - 1, "../{}/{}", job_name, name.text).out = '\0';
}

std::span<const AddrRange> own_memory() {
  return current == nullptr ? std::span<const AddrRange>() : std::span<const AddrRange>(current->own_memory);
}

bool reserve_own(Arena& arena, size_t bytes) {
  if (!arena.reserve(bytes)) return false;
  // A child that the program forks meanwhile has no use for it.
  sys::call(__NR_madvise, arena.range().start.value, arena.range().size(), MADV_DONTFORK);
  return true;
}

Result<ScopedFd> open_job_directory(const char** name) {
  *name = own_job.identity.directory;
  auto of_job = open_image_directory(own_job.identity.directory);
  if (of_job.ok() || of_job.error().code != ExitCode::kPermission) return of_job;
  auto own = open_own_directory();
  if (!own.ok()) return of_job;
  *name = own_directory::name();
  return own;
}

Result<ScopedFd> open_log_directory() {
  if (current == nullptr) return open_own_directory();
  const long fd =
      sys::call(__NR_openat, AT_FDCWD, own_job.identity.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0L);
  if (!sys::failed(fd)) return ScopedFd(static_cast<int>(fd));
  return open_own_directory();
}

Result<void> prepared(const DescriptorCapture& descriptors) {
  if (current == nullptr) {
    ExpectAlone::prepared(descriptors);
    return {};
  }
  current->own_descriptors = descriptors.entries();
  return current->prepared();
}

Result<void> standing(int64_t began_ns) {
  stop_began_ns = began_ns;
  return current == nullptr ? Result<void>() : current->standing();
}

AskedWhileStopped::AskedWhileStopped(int asker) { asker_of_stopped = asker; }
AskedWhileStopped::~AskedWhileStopped() { asker_of_stopped = -1; }

int stop_signal() {
  if (asker_of_stopped >= 0) {
    constexpr std::string_view kQuestion = "need stop_signal\n";
    uint8_t signal = 0;
    if (sys::call(__NR_sendto, asker_of_stopped, kQuestion.data(), kQuestion.size(), MSG_NOSIGNAL, 0L, 0L) >
        0) {
      // The tracer interrupts this thread to learn the answer: a receive with a time limit ends with EINTR by
      // that.
      while (sys::call(__NR_recvfrom, asker_of_stopped, &signal, 1L, 0L, 0L, 0L) == -EINTR) {
      }
    }
    // Without an answer the signal is 0: the process that traced this one is gone.
    if (current != nullptr) current->stop_signal = signal;
    return signal;
  }
  return current == nullptr ? 0 : current->stop_signal;
}

bool over_hosts() { return current != nullptr && current->over_hosts; }

Result<void> drained(std::span<const Bookmark> connections) {
  return over_hosts() ? current->drained(connections) : Result<void>();
}

Result<void> sampled(const DescriptorCapture& descriptors) {
  if (current == nullptr) return {};
  Standing facts{};
  facts.began_ns = stop_began_ns;
  facts.tid = this_process.pid;
  if (stop_state.threads != nullptr) facts.tid = stop_state.threads->tid;
  for (const ThreadSlot* s = stop_state.threads; s != nullptr; s = s->next) {
    if (s->parent_death_signal != 0) facts.pdeath_signal = s->parent_death_signal;
  }
  int subreaper = 0;
  if (sys::call(__NR_prctl, PR_GET_CHILD_SUBREAPER, &subreaper, 0L, 0L, 0L) == 0)
    facts.subreaper = subreaper != 0;
  Arena arena;
  ArenaVector<ChildNotice> unreported(arena);
  CKPT_TRY(list_unreported(arena, unreported));
  auto files = descriptors.list_open_files();
  if (!files.ok()) return files.error();
  return current->sampled(*files, facts, unreported.span());
}

// An agent that began to copy at once would keep the agents of others from letting their threads go. Those
// agents have nice -20 and the copying agent has not, but that does not help: a thread that wakes and has had
// more than its share is not eligible at once (EEVDF). Its wait grows with the ratio of the weights. Of 64
// processes on two processors the last stood 10 to 40 ms longer than the first, in which nearly all that ran
// was copies. To let threads go takes an agent some 50 us.
void let_others_go() {
  if (current == nullptr) return;
  constexpr int64_t kEachNs = 400'000, kMostNs = 100'000'000;
  const uint64_t processors = allowed_processors();
  if (processors == 0 || current->going < processors) return;
  const int64_t ns = std::min(static_cast<int64_t>(current->going / processors) * kEachNs, kMostNs);
  const timespec moment{0, ns};
  sys::call(__NR_nanosleep, &moment, nullptr);
}

bool is_streamed() { return current != nullptr ? current->place.streamed : user_settings().to[0] != '\0'; }

Result<void> written(const Written& facts) {
  if (current == nullptr || current->told_written) return {};
  current->told_written = true;
  return current->written(facts);
}

}  // namespace ckpt::job
