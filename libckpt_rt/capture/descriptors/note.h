// DescriptorCapture::note: one line for the user, kept in the arena.
//
// Owner: libckpt_rt, descriptors. Callers: the agent. Never: allocates but from the arena.
#pragma once

#include "libckpt_rt/capture/descriptors/descriptors.h"

namespace ckpt {

template <typename... Args>
Result<void> DescriptorCapture::note(uint32_t severity, fmt::format_string<Args...> format, Args&&... args) {
  constexpr size_t kMaxNote = 512;
  char* text = static_cast<char*>(arena_->allocate(kMaxNote, 1));
  if (text == nullptr) return arena_full();
  auto end = fmt::format_to_n(text, kMaxNote, format, std::forward<Args>(args)...);
  if (!notes_.push_back({severity, text, static_cast<uint32_t>(end.out - text)})) return arena_full();
  return {};
}

}  // namespace ckpt
