#include "image/format/image_bytes.h"

#include <algorithm>
#include <cstring>

#include "image/format/checksum.h"
#include "image/format/image_probe.h"
#include "image/format/io_error.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

Error unreadable(const char* path, uint64_t at, int error) {
  return make_error(ExitCode::kIo, error, "{}: cannot be read at byte {} ({}); see the kernel log",
                    shown_path(path).text, at, errno_name(error));
}

Error damaged(const char* path, uint64_t at, const char* what) {
  return make_error(ExitCode::kImageDamaged, 0,
                    "{}: damaged at byte {}: {}; use an older image of this program", shown_path(path).text,
                    at, what);
}

}  // namespace

Result<ImageBytes> ImageBytes::open(int fd, uint64_t file_bytes, const ImageKey* key, const char* path) {
  ImageBytes image;
  image.fd_ = fd;
  image.bytes_ = file_bytes;
  SealedHeader header{};
  int error = 0;
  if (!read_exactly(fd, &header, std::min(file_bytes, kBlockSize), 0, &error) && error != 0) {
    return unreadable(path, 0, error);
  }
  image.sealed_ =
      std::memcmp(header.magic, kHeaderMagic, sizeof(kHeaderMagic)) == 0 && header.version == kSealedVersion;
  if (image.sealed_) {
    CKPT_TRY(image.open_sealed(header, file_bytes, key, path));
  } else if (key != nullptr) {
    return make_error(
        ExitCode::kPermission, 0,
        "{}: not encrypted, though a key was given; if you trust it all the same, leave the key file away",
        shown_path(path).text);
  }
  return image;
}

Result<void> ImageBytes::open_sealed(const SealedHeader& header, uint64_t file_bytes, const ImageKey* key,
                                     const char* path) {
  if (file_bytes < kBlockSize || header.checksum != checksum_of({reinterpret_cast<const std::byte*>(&header),
                                                                 offsetof(SealedHeader, checksum)})) {
    return damaged(path, 0, "checksum of the header is wrong");
  }
  const bool zeros =
      std::all_of(header.zeros, header.zeros + sizeof(header.zeros), [](uint8_t b) { return b == 0; });
  if (header.byte_order != kByteOrderMark || header.machine != kMachineX86_64 ||
      header.cipher != kCipherXChaCha20Poly1305 || !zeros) {
    return make_error(ExitCode::kIncompatible, 0,
                      "{}: encrypted in a way this ckpt_rt does not know; use the one that wrote it",
                      shown_path(path).text);
  }
  if (key == nullptr) {
    return make_error(ExitCode::kPermission, 0,
                      "{}: encrypted; give its key with --key-file or CKPT_KEY_FILE", shown_path(path).text);
  }
  if (!key_fits(*key, header)) {
    return make_error(ExitCode::kPermission, 0,
                      "{}: encrypted with another key; give its own with --key-file or CKPT_KEY_FILE",
                      shown_path(path).text);
  }
  const uint64_t blocks = sealed_block_count(file_bytes);
  if (blocks == 0) {
    return make_error(ExitCode::kImageDamaged, 0,
                      "{}: truncated or appended to ({} bytes); use an older image", shown_path(path).text,
                      file_bytes);
  }
  bytes_ = blocks * kBlockSize;
  cipher_ = BlockCipher(*key, header);
  // All that is not authenticated: behind the last tags.
  std::byte rest[kBlockSize];
  const uint64_t at = sealed_tag_offset(blocks - 1, blocks) + kTagBytes, n = file_bytes - at;
  int error = 0;
  if (!read_exactly(fd_, rest, n, at, &error)) return unreadable(path, at, error);
  if (!std::all_of(rest, rest + n, [](std::byte b) { return b == std::byte{0}; })) {
    return damaged(path, at, "padding is used");
  }
  // The last block says that it is one: nothing was cut off.
  std::byte last[kBlockSize];
  const uint64_t end = bytes_ - kBlockSize;
  if (auto r = read(last, kBlockSize, end, path); !r.ok()) {
    if (r.error().code != ExitCode::kImageDamaged) return r;
    return make_error(ExitCode::kImageDamaged, 0,
                      "{}: truncated, never finished or damaged at its end ({} bytes); use an older image",
                      shown_path(path).text, file_bytes);
  }
  return {};
}

Result<void> ImageBytes::read(void* to, uint64_t bytes, uint64_t offset, const char* path) const {
  int error = 0;
  auto* out = static_cast<std::byte*>(to);
  if (!sealed_) {
    if (read_exactly(fd_, to, bytes, offset, &error)) return {};
    return unreadable(path, offset, error);
  }
  if ((bytes | offset) % kBlockSize != 0) {
    return make_error(ExitCode::kInternal, 0, "{}: encrypted, and read in part at byte {}",
                      shown_path(path).text, offset);
  }
  if (offset > bytes_ || bytes > bytes_ - offset) return unreadable(path, offset, 0);
  const uint64_t total = bytes_ / kBlockSize;
  std::byte tags[kBlockSize];
  for (uint64_t i = offset / kBlockSize, end = (offset + bytes) / kBlockSize; i < end;) {
    // The blocks of a group are together in the file, and their tags too.
    const uint64_t group_end = (i / kBlocksOfGroup + 1) * kBlocksOfGroup, n = std::min(end, group_end) - i;
    const uint64_t at = sealed_block_offset(i), tags_at = sealed_tag_offset(i, total);
    if (!read_exactly(fd_, out, n * kBlockSize, at, &error)) return unreadable(path, at, error);
    if (!read_exactly(fd_, tags, n * kTagBytes, tags_at, &error)) return unreadable(path, tags_at, error);
    for (uint64_t k = 0; k < n; k++, i++, out += kBlockSize) {
      if (!cipher_.open(i, i + 1 == total, out, tags + k * kTagBytes, out)) {
        return damaged(path, sealed_block_offset(i), "it is not what was encrypted there");
      }
    }
  }
  return {};
}

}  // namespace ckpt
