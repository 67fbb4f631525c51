// The memory that one system call writes to, as it is worked out from the call's arguments.
//
// Owner:     the call's visitor, on the stack. Header only. Callers: calls.cc, special_calls.cc.
// Never:     touches memory of the program but by copy_in(), which cannot fault.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include "libckpt_rt/guard/call_table.h"
#include "libckpt_rt/guard/calls.h"
#include "libckpt_rt/guard/record.h"

namespace ckpt::guard {

class Outputs {
 public:
  explicit Outputs(const Visitor& visitor) : visitor_(visitor) {}
  bool ok() const { return ok_; }

  // A null pointer and what lies beyond the address space are the kernel's to refuse.
  void add(long start, uint64_t size) {
    constexpr uint64_t kEnd = 1ull << 47;
    const auto from = static_cast<uint64_t>(start);
    if (from == 0 || size == 0 || from >= kEnd) return;
    const uint64_t end = size > kEnd - from ? kEnd : from + size;
    ok_ = ok_ && visitor_.visit(visitor_.context, {Addr{from}, Addr{end}});
  }

  void vector(uint64_t at, uint64_t count) {
    if (count > 1024) return;  // EINVAL
    iovec pieces[64];
    while (count != 0 && ok_) {
      const uint64_t n = count < std::size(pieces) ? count : std::size(pieces);
      if (!copy_in(pieces, at, n * sizeof(iovec))) return;  // EFAULT
      for (uint64_t i = 0; i < n; ++i) add(reinterpret_cast<long>(pieces[i].iov_base), pieces[i].iov_len);
      at += n * sizeof(iovec);
      count -= n;
    }
  }

  void message(long at) {
    msghdr m{};
    if (!copy_in(&m, static_cast<uint64_t>(at), sizeof(m))) return;
    add(at, sizeof(m));
    add(reinterpret_cast<long>(m.msg_name), m.msg_namelen);
    add(reinterpret_cast<long>(m.msg_control), m.msg_controllen);
    vector(reinterpret_cast<uint64_t>(m.msg_iov), m.msg_iovlen);
  }

  void by_pointer(long start, long length_at) {
    uint32_t length = 0;
    if (!copy_in(&length, static_cast<uint64_t>(length_at), sizeof(length))) return;
    add(length_at, sizeof(length));
    add(start, length);
  }

  void take(const Output& o, const long* args) {
    const long at = args[o.argument];
    const auto of = static_cast<uint64_t>(args[o.of]);
    switch (o.size) {
      case OutputSize::kNone:
        return;
      case OutputSize::kBytes:
        return add(at, o.n);
      case OutputSize::kArgument:
        return add(at, of + o.n < of ? ~0ull : of + o.n);
      case OutputSize::kElements:
        return add(at, (of & 0xffffffff) * o.n);
      case OutputSize::kVector:
        return vector(static_cast<uint64_t>(at), of);
      case OutputSize::kMessage:
        return message(at);
      case OutputSize::kMessages:
        for (uint64_t i = 0; i < (of & 0xffffffff) && i < 1024 && ok_; ++i) {
          message(at + static_cast<long>(i * sizeof(mmsghdr)));
          add(at + static_cast<long>(i * sizeof(mmsghdr)), sizeof(mmsghdr));
        }
        return;
      case OutputSize::kByPointer:
        return by_pointer(at, args[o.of]);
    }
  }

 private:
  const Visitor& visitor_;
  bool ok_ = true;
};

}  // namespace ckpt::guard
