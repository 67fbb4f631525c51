// Errors as values: what failed, on what, and what to do about it.
//
// Owner:     base. Callers: any thread, in the victim too: fixed size, no allocation.
// Never:     throws, allocates. Text longer than the buffer is cut, never overrun.
#pragma once

#include <fmt/core.h>

#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/exit_codes.h"

namespace ckpt {

struct [[nodiscard]] Error {
  ExitCode code = ExitCode::kInternal;
  int sys_errno = 0;  // 0 when no system call failed
  char text[320] = {};

  std::string_view message() const { return {text, std::strlen(text)}; }
};

// make_error(code, errno or 0, "format", args...): one line, names the thing and the remedy.
// A system error is appended as its name and number by the caller's format; see errno_name().
template <typename... Args>
Error make_error(ExitCode code, int sys_errno, fmt::format_string<Args...> format, Args&&... args) {
  Error e;
  e.code = code;
  e.sys_errno = sys_errno < 0 ? -sys_errno : sys_errno;
  auto out = fmt::format_to_n(e.text, sizeof(e.text) - 1, format, std::forward<Args>(args)...);
  *out.out = '\0';
  return e;
}

// "ENOSPC", "EACCES", …; "E?" for a number without a name. Static storage.
const char* errno_name(int error);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Error error) : error_(error) {}
  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }
  const Error& error() const { return error_; }

 private:
  std::optional<T> value_;
  Error error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : failed_(true), error_(error) {}
  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return error_; }

 private:
  bool failed_ = false;
  Error error_;
};

// return the error of `expr`, if any.
#define CKPT_TRY(expr)                                                                           \
  do {                                                                                           \
    if (auto ckpt_try_result_ = (expr); !ckpt_try_result_.ok()) return ckpt_try_result_.error(); \
  } while (0)

}  // namespace ckpt
