// What every stage of an attempt writes into: memory for lists, the ranges that are ours, the notes.
//
// Owner:     one Attempt. Callers: the agent (mode fork: the child that writes the image, too).
// Never:     in an image: its memory is in own().
#pragma once

#include <errno.h>

#include <span>

#include "base/memory/arena.h"
#include "base/raii_fd.h"
#include "base/result.h"
#include "base/units.h"
#include "image/format/records/note_severity.h"
#include "libckpt_rt/protect/spare_memory.h"

namespace ckpt {

inline Error no_memory(const char* what) {
  return make_error(ExitCode::kInternal, ENOMEM, "no address space left for {}; raise the limit (ulimit -v)",
                    what);
}

struct NoteLine {
  uint32_t severity;
  const char* text;
};

class Workspace {
 public:
  Workspace() = default;
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  Result<void> reserve(uint64_t bytes, SpareMemory& spare);
  // The next checkpoint gets the memory of the lists, when all is done.
  void leave_to(SpareMemory& spare) { heir_ = &spare; }

  Arena& arena() { return arena_; }
  // The image directory, in which the log is; not valid before the image has a name.
  ScopedFd& directory() { return directory_; }
  int log() const { return directory_.get(); }

  // Memory that no image holds. False: no room in the list.
  [[nodiscard]] bool own(AddrRange range) { return range.empty() || own_.push_back(range); }
  std::span<const AddrRange> own() const { return own_.span(); }
  ArenaVector<AddrRange>& own_list() { return own_; }
  // Memory that is given back, or was. The program may have mapped something else at its place by the time
  // that its mappings are read again.
  void disown(Arena& arena);
  void disown(AddrRange gone);

  // A line of the log that is in the image as well. text: a literal, or in the arena.
  void note(uint32_t severity, const char* text);
  std::span<const NoteLine> notes() const { return notes_.span(); }

 private:
  Arena arena_;
  SpareMemory* heir_ = nullptr;
  ScopedFd directory_;
  ArenaVector<AddrRange> own_;
  ArenaVector<NoteLine> notes_;
};

// A child that the program forks meanwhile has no use for this memory, and would keep it for ever.
void hide_from_children(AddrRange range);

}  // namespace ckpt
