#include "restart/files/file_bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/units.h"

namespace ckpt {

namespace {

// The next byte of data at or behind `at`; `end` without any. A file system that does not tell has nothing
// but data.
uint64_t next_data(int fd, uint64_t at, uint64_t end) {
  const off_t data = lseek(fd, static_cast<off_t>(at), SEEK_DATA);
  if (data < 0) return errno == ENXIO ? end : at;
  return std::min(static_cast<uint64_t>(data), end);
}

bool write_all(int fd, std::span<const std::byte> bytes, uint64_t at) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(at + done));
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool is_zeros(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

bool write_zeros(int fd, std::span<const std::byte> zeros, uint64_t at) {
  return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                   static_cast<off_t>(zeros.size())) == 0 ||
         write_all(fd, zeros, at);
}

// Page by page, those of one kind together.
bool write_changes(int fd, uint64_t at, std::span<const std::byte> is, std::span<const std::byte> was,
                   bool sparse) {
  enum class Kind { kSame, kZeros, kBytes };
  auto page = [&](size_t from) { return std::min<size_t>(kPageSize, was.size() - from); };
  auto kind_of = [&](size_t from) {
    const auto then = was.subspan(from, page(from));
    if (std::memcmp(is.data() + from, then.data(), then.size()) == 0) return Kind::kSame;
    return sparse && is_zeros(then) ? Kind::kZeros : Kind::kBytes;
  };
  for (size_t from = 0, end; from < was.size(); from = end) {
    const Kind kind = kind_of(from);
    end = from + page(from);
    while (end < was.size() && kind_of(end) == kind) end += page(end);
    const auto run = was.subspan(from, end - from);
    if (kind == Kind::kZeros && !write_zeros(fd, run, at + from)) return false;
    if (kind == Kind::kBytes && !write_all(fd, run, at + from)) return false;
  }
  return true;
}

}  // namespace

void FileBytes::sort() {
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
}

void FileBytes::take(std::vector<std::byte> bytes) {
  own_ = std::move(bytes);
  pieces_ = {{0, Blob(own_)}};
}

std::vector<FileBytes::Piece>::const_iterator FileBytes::first_behind(uint64_t at) const {
  return std::upper_bound(pieces_.begin(), pieces_.end(), at,
                          [](uint64_t a, const Piece& p) { return a < p.end(); });
}

void FileBytes::read_then(uint64_t at, std::span<std::byte> to) const {
  std::fill(to.begin(), to.end(), std::byte{0});
  for (auto p = first_behind(at); p != pieces_.end() && p->offset < at + to.size(); ++p) {
    const uint64_t begin = std::max(at, p->offset), end = std::min(at + to.size(), p->end());
    if (begin < end)
      std::memcpy(to.data() + (begin - at), p->bytes.data() + (begin - p->offset), end - begin);
  }
}

template <typename Fn>
bool FileBytes::for_each_chunk(int fd, Fn&& fn) const {
  std::vector<std::byte> is(kChunk), was(kChunk);
  for (uint64_t at = 0; at < size_;) {
    const auto piece = first_behind(at);
    const uint64_t then = piece != pieces_.end() ? std::max(at, piece->offset) : size_;
    at = std::min(then, next_data(fd, at, size_)) & ~(kPageSize - 1);
    if (at >= size_) break;
    const size_t bytes = std::min(kChunk, size_ - at);
    size_t have = 0;
    while (have < bytes) {
      const ssize_t n = pread(fd, is.data() + have, bytes - have, static_cast<off_t>(at + have));
      if (n < 0) return false;
      if (n == 0) break;
      have += static_cast<size_t>(n);
    }
    std::fill(is.begin() + static_cast<ptrdiff_t>(have), is.end(), std::byte{0});
    read_then(at, {was.data(), bytes});
    if (!fn(at, std::span<const std::byte>(is.data(), bytes), std::span<const std::byte>(was.data(), bytes)))
      return false;
    at += bytes;
  }
  return true;
}

int FileBytes::are_in(int fd) const {
  bool same = true;
  const bool read = for_each_chunk(fd, [&](uint64_t, auto is, auto was) {
    same = std::equal(is.begin(), is.end(), was.begin());
    return same;
  });
  return !same ? 0 : read ? 1 : -1;
}

bool FileBytes::put_into(int fd) const {
  const off_t now = lseek(fd, 0, SEEK_END);
  if (now < 0) return false;
  if (static_cast<uint64_t>(now) < size_ && ftruncate(fd, static_cast<off_t>(size_)) != 0) return false;
  return for_each_chunk(
      fd, [&](uint64_t at, auto is, auto was) { return write_changes(fd, at, is, was, sparse_); });
}

int copy_with_holes(int from, uint64_t at, uint64_t bytes, int to, bool* reading) {
  std::vector<std::byte> buffer(1 << 20);
  const uint64_t begin = at, end = at + bytes;
  for (;;) {
    at = next_data(from, at, end);
    if (at >= end) break;
    const ssize_t n =
        pread(from, buffer.data(), std::min<uint64_t>(buffer.size(), end - at), static_cast<off_t>(at));
    *reading = true;
    if (n < 0) return errno;
    if (n == 0) {  // it is shorter by now
      bytes = at - begin;
      break;
    }
    *reading = false;
    // What is read together may have a hole in it.
    const std::span<const std::byte> all(buffer.data(), static_cast<size_t>(n));
    for (size_t done = 0, next; done < all.size(); done = next) {
      next = done + std::min<size_t>(kPageSize, all.size() - done);
      const bool zeros = is_zeros(all.subspan(done, next - done));
      while (next < all.size() &&
             is_zeros(all.subspan(next, std::min<size_t>(kPageSize, all.size() - next))) == zeros)
        next += std::min<size_t>(kPageSize, all.size() - next);
      if (!zeros && !write_all(to, all.subspan(done, next - done), at - begin + done)) return errno;
    }
    at += static_cast<uint64_t>(n);
  }
  *reading = false;
  return ftruncate(to, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

}  // namespace ckpt
