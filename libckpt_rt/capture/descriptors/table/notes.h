// What a capture of descriptors has to tell the user: a line each, kept in the arena.
//
// Owner: DescriptorCapture. Callers: the agent. Never: allocates but from the arena.
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "base/memory/arena.h"
#include "base/result.h"
#include "image/format/records/note_severity.h"

namespace ckpt {

// What every part of a capture says when its arena has no more memory.
Error arena_full(const Arena& arena);

class DescriptorNotes {
 public:
  struct Note {
    uint32_t severity;
    const char* text;
    uint32_t length;
  };

  void begin(Arena& arena) {
    arena_ = &arena;
    notes_ = ArenaVector<Note>(arena);
    has_passing_ = has_unaccepted_ = false;
  }

  template <typename... Args>
  Result<void> add(uint32_t severity, fmt::format_string<Args...> format, Args&&... args) {
    constexpr size_t kMaxNote = 512;
    char* text = static_cast<char*>(arena_->allocate(kMaxNote, 1));
    if (text == nullptr) return arena_full(*arena_);
    auto end = fmt::format_to_n(text, kMaxNote, format, std::forward<Args>(args)...);
    if (!notes_.push_back({severity, text, static_cast<uint32_t>(end.out - text)}))
      return arena_full(*arena_);
    return {};
  }

  // What is to be named is on its way, or waits to be accepted: it may be gone at the next look.
  void say_passing() { has_passing_ = true; }
  bool has_passing() const { return has_passing_; }
  // It waits to be accepted.
  void say_unaccepted() { has_passing_ = has_unaccepted_ = true; }
  bool has_unaccepted() const { return has_unaccepted_; }

  std::span<const Note> all() const { return notes_.span(); }
  // The first that says what forbids every restart. Empty: none does.
  std::string_view why_no_restart() const {
    for (const Note& n : notes_) {
      if (n.severity == kNoRestart) return {n.text, n.length};
    }
    return {};
  }

 private:
  Arena* arena_ = nullptr;
  ArenaVector<Note> notes_;
  bool has_passing_ = false, has_unaccepted_ = false;
};

}  // namespace ckpt
