// CHECK and ASSERT: assumptions that would corrupt an image if they were wrong.
//
//   if (!CHECK(written_.push_back(id))) return;      always on; its value is the condition's
//   CHECK_EQ(planned, copied)                        prints both sides
//   ASSERT(condition)                                debug builds alone; nothing otherwise
//
// A failed check does not kill the program that is being checkpointed. Its line (file, line, text, both
// sides) is held, the first of them; ScopedChecks takes it, and the attempt fails with it. Where no
// ScopedChecks can come (tests, ckpt, ckpt-restart: Policy::kAbort, which is the default), the line goes to
// standard error and the process aborts.
//
// Owner:     base, one line for the process. Callers: any thread, also in a signal handler; the text is made
//            in a fixed buffer on the stack.
// Never:     allocates, locks, waits.
#pragma once

#include <fmt/core.h>

#include <span>

#include "base/result.h"

namespace ckpt::check {

enum class Policy { kAbort, kHold };
void set_policy(Policy policy);

// Holds or prints the line. Always false.
bool failed(const char* file, int line, std::string_view text);

template <typename A, typename B>
[[gnu::cold, gnu::noinline]] bool unequal(const A& a, const B& b, const char* file, int line,
                                          const char* text) {
  char both[200];
  const auto end = fmt::format_to_n(both, sizeof(both), "{}: {} and {}", text, a, b);
  return failed(file, line, {both, static_cast<size_t>(end.out - both)});
}

template <typename A, typename B>
bool equal(const A& a, const B& b, const char* file, int line, const char* text) {
  return a == b || unequal(a, b, file, line, text);
}

// The checks of one attempt, and of what came before it and was not asked for.
//
//   ScopedChecks checks;
//   ...
//   CKPT_TRY(checks.result());
class ScopedChecks {
 public:
  ScopedChecks() = default;
  // The next attempt begins afresh.
  ~ScopedChecks();
  ScopedChecks(const ScopedChecks&) = delete;
  ScopedChecks& operator=(const ScopedChecks&) = delete;

  // Has a check failed? Any thread's.
  Result<void> result() const;
};

}  // namespace ckpt::check

#define CHECK(condition) \
  (static_cast<bool>(condition) || ::ckpt::check::failed(__FILE__, __LINE__, "CHECK(" #condition ")"))
#define CHECK_EQ(a, b) ::ckpt::check::equal((a), (b), __FILE__, __LINE__, "CHECK_EQ(" #a ", " #b ")")

#ifdef NDEBUG
#define ASSERT(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#else
#define ASSERT(condition) static_cast<void>(CHECK(condition))
#endif
