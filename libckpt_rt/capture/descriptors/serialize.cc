#include <fcntl.h>

#include "image/format/object_number.h"
#include "image/format/records/process_records.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// A record's length has 32 bits.
constexpr uint64_t kMaxContentRecord = 1u << 30;

std::span<const std::byte> bytes_of(const char* text, size_t length) {
  return {reinterpret_cast<const std::byte*>(text), length};
}

template <typename T>
void put_record(ByteWriter& out, RecordType type, const T& fixed, std::span<const std::byte> first = {},
                std::span<const std::byte> second = {}) {
  const uint64_t length = sizeof(T) + first.size() + second.size();
  out.put(RecordHeader{static_cast<uint32_t>(type), static_cast<uint32_t>((length + 7) & ~uint64_t{7})});
  out.put(fixed);
  out.raw(first.data(), first.size());
  out.raw(second.data(), second.size());
  static constexpr std::byte kZeros[8] = {};
  out.raw(kZeros, static_cast<size_t>(-length & 7));
}

}  // namespace

bool DescriptorCapture::serialize(ByteWriter& out) const {
  for (uint32_t i : files_.order()) {
    const auto& d = files_.entries()[i];
    if (!d.shares) {
      OpenFileRecord r{};
      r.id = d.open_file;
      r.kind = static_cast<uint32_t>(d.kind);
      r.flags = d.flags | (names_.has_one_name(d) ? kOpenFileOneName : 0u);
      r.open_flags = d.now.open_flags;
      r.offset = d.now.offset;
      r.size = d.now.size;
      r.device = d.now.device;
      r.inode = d.now.inode;
      r.rdev = d.now.rdev;
      r.mtime_ns = d.now.mtime_ns;
      r.mode = d.now.mode;
      r.seals = d.kind == OpenFileKind::kMemfd ? d.now.seals : 0;
      r.owner = d.now.owner;
      r.owner_type = d.now.owner_type;
      r.owner_signal = d.now.owner_signal;
      r.pipe_size = d.now.pipe_size;
      r.object = object_number(d.now.device, d.now.inode);
      r.value = d.value;
      if (d.kind == OpenFileKind::kMessageQueue && d.now.links == 0) r.flags |= kOpenFileDeleted;
      const bool is_removed_directory =
          d.kind == OpenFileKind::kDirectory && (d.flags & kOpenFileDeleted) != 0;
      if (is_removed_directory ||
          (d.kind == OpenFileKind::kRegular && (d.flags & (kOpenFileDeleted | kOpenFileContents)) != 0)) {
        r.flags |= kOpenFileOwner;
        r.value = d.now.uid | uint64_t{d.now.gid} << 32;
      }
      r.path_len = d.path_len;
      r.details_len = d.details_len;
      put_record(out, RecordType::kOpenFile, r, bytes_of(d.path, d.path_len),
                 std::span<const std::byte>(d.details, d.details_len));
    }
    if (d.in_flight) continue;
    put_record(out, RecordType::kDescriptor,
               DescriptorRecord{d.fd, d.open_file, d.now.fd_flags & FD_CLOEXEC, 0});
  }
  for (const auto& c : contents_) {
    for (uint64_t at = 0; at < c.length; at += kMaxContentRecord) {
      const uint64_t n = c.length - at < kMaxContentRecord ? c.length - at : kMaxContentRecord;
      put_record(out, RecordType::kFileContent, FileContentRecord{c.open_file, 0, c.object, c.offset + at, n},
                 std::span<const std::byte>(c.data + at, n));
    }
  }
  for (const auto& n : notes_.all()) {
    put_record(out, RecordType::kNote, NoteRecord{n.severity, n.length}, bytes_of(n.text, n.length));
  }
  return out.ok();
}

}  // namespace ckpt
