// Builds the META section, record by record:
//     MetaWriter meta(arena);
//     meta.record(RecordType::kMapping, mapping, path, build_id);   // struct, then its strings/blobs
//     meta.finish();  sink.set_meta(meta.span());
// The caller fills the *_len fields; the order of the parts is that of the fields.
//
// Owner:     image/write. Header only. Callers: the checkpoint agent, in the victim. Memory: the arena.
#pragma once

#include <span>
#include <string_view>

#include "base/memory/bytes.h"
#include "image/format/records/process_records.h"

namespace ckpt {

class MetaWriter {
 public:
  explicit MetaWriter(Arena& arena) : bytes_(arena) {}

  template <typename Struct, typename... Parts>
  void record(RecordType type, const Struct& fixed, const Parts&... parts) {
    begin(type);
    bytes_.put(fixed);
    (add(parts), ...);
    end();
  }
  // The same in steps, for parts whose number is not known: begin, add*, end.
  void begin(RecordType type) {
    start_ = bytes_.size();
    bytes_.put(RecordHeader{static_cast<uint32_t>(type), 0});
  }
  void add(std::span<const std::byte> part) { bytes_.raw(part.data(), part.size()); }
  void add(std::string_view part) { bytes_.raw(part.data(), part.size()); }
  template <typename T>
  requires std::is_trivially_copyable_v<T> && std::is_class_v<T> &&
      (!std::is_convertible_v<T, std::string_view>)void add_struct(const T& fixed) {
    bytes_.put(fixed);
  }
  void end() {
    bytes_.pad_to(8);
    uint64_t length = bytes_.size() - start_ - sizeof(RecordHeader);
    if (length > UINT32_MAX) too_long_ = true;
    bytes_.patch(start_ + offsetof(RecordHeader, length), static_cast<uint32_t>(length));
  }
  // Whole records written by someone else: write(ByteWriter&) says whether it could.
  template <typename Write>
  bool append_records(Write write) {
    return write(bytes_);
  }
  // The end record, without which META is refused; nothing after it.
  void finish() {
    begin(RecordType::kEnd);
    end();
  }
  // False: the arena was full, or a record is longer than 4 GiB.
  bool ok() const { return bytes_.ok() && !too_long_; }
  std::span<const std::byte> span() const { return bytes_.span(); }

 private:
  ByteWriter bytes_;
  size_t start_ = 0;
  bool too_long_ = false;
};

}  // namespace ckpt
