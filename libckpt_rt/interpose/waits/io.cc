// Reading and writing descriptors that can block. pread and pwrite are not here: they work only on files that
// have positions, and such reads and writes are not interrupted. stdio needs nothing: it writes the rest of a
// short write by itself.
#include "libckpt_rt/interpose/abi.h"
#include "libckpt_rt/interpose/calls.h"
#include "libckpt_rt/core/preload_rules.h"

using namespace ckpt;

CKPT_INTERPOSE(ssize_t, read, int fd, void* buffer, size_t n) {
  CancellationPoint here;
  return to_errno(calls::read(fd, buffer, n));
}
CKPT_INTERPOSE_ALIAS(read, __read);

CKPT_INTERPOSE(ssize_t, __read_chk, int fd, void* buffer, size_t n, size_t buffer_bytes) {
  if (n > buffer_bytes) __chk_fail();
  return ckpt_libc_read(fd, buffer, n);
}

CKPT_INTERPOSE(ssize_t, write, int fd, const void* buffer, size_t n) {
  CancellationPoint here;
  return to_errno(calls::write(fd, buffer, n));
}
CKPT_INTERPOSE_ALIAS(write, __write);

CKPT_INTERPOSE(ssize_t, readv, int fd, const iovec* pieces, int n) {
  CancellationPoint here;
  return to_errno(calls::readv(fd, pieces, n));
}

CKPT_INTERPOSE(ssize_t, writev, int fd, const iovec* pieces, int n) {
  CancellationPoint here;
  return to_errno(calls::writev(fd, pieces, n));
}

CKPT_INTERPOSE(ssize_t, sendfile, int out, int in, off_t* offset, size_t n) {
  return to_errno(calls::sendfile(out, in, offset, n));
}
CKPT_INTERPOSE_ALIAS(sendfile, sendfile64);

CKPT_INTERPOSE(ssize_t, getrandom, void* buffer, size_t n, unsigned flags) {
  CancellationPoint here;
  return to_errno(calls::getrandom(buffer, n, flags));
}
