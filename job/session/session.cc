#include "job/session/session.h"

#include <fcntl.h>
#include <sys/prctl.h>

#include "job/format/job_name.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/core/library.h"
#include "libckpt_rt/core/own_directory.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

Session* current = nullptr;  // the agent's
int64_t stop_began_ns = 0;

}  // namespace

Session* session() { return current; }
void forget_session() { current = nullptr; }
ScopedSession::ScopedSession(Session& s) { current = &s; }
ScopedSession::~ScopedSession() { current = nullptr; }

void fill_place(Place& place, int directory, const char* job_directory, const char* job_name, int pid,
                uint64_t sequence) {
  const MemberImageName name = member_image_name(pid);
  place.directory = directory;
  place.sequence = sequence;
  std::memcpy(place.name, name.text, sizeof(place.name));
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

Result<ScopedFd> open_log_directory() {
  if (current == nullptr) return open_own_directory();
  const long fd =
      sys::call(__NR_openat, AT_FDCWD, library.job.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0L);
  return ScopedFd(sys::failed(fd) ? -1 : static_cast<int>(fd));
}

Result<void> prepared() { return current == nullptr ? Result<void>() : current->prepared(); }

Result<void> standing(int64_t began_ns) {
  stop_began_ns = began_ns;
  return current == nullptr ? Result<void>() : current->standing();
}

Result<void> sampled(const DescriptorCapture& descriptors) {
  if (current == nullptr) return {};
  Standing facts{};
  facts.began_ns = stop_began_ns;
  facts.tid = library.pid;
  if (stop_state.threads != nullptr) facts.tid = stop_state.threads->tid;
  for (const ThreadSlot* s = stop_state.threads; s != nullptr; s = s->next) {
    if (s->parent_death_signal != 0) facts.pdeath_signal = s->parent_death_signal;
  }
  int subreaper = 0;
  if (sys::call(__NR_prctl, PR_GET_CHILD_SUBREAPER, &subreaper, 0L, 0L, 0L) == 0)
    facts.subreaper = subreaper != 0;
  auto files = descriptors.list_open_files();
  if (!files.ok()) return files.error();
  return current->sampled(*files, facts);
}

Result<void> written(const Written& facts) {
  return current == nullptr ? Result<void>() : current->written(facts);
}

}  // namespace ckpt::job
