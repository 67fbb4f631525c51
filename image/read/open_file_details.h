// The details of an open file's record, one type at a time.
//
// Owner:     image/read. Callers: whoever makes open files again, or compares them. Any thread.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/memory/bytes.h"
#include "image/format/records/terminal_records.h"
#include "image/read/image_meta.h"

namespace ckpt {

// All details of one type: visit(const Struct&, the bytes after the struct).
template <typename Struct, typename Visit>
void for_each_detail(const ParsedOpenFile& file, OpenFileDetail type, Visit visit) {
  ByteReader reader(file.details);
  while (reader.left() > 0) {
    auto header = reader.get<DetailHeader>();
    auto body = reader.take(header.length);
    if (!reader.ok()) return;
    if (header.type != static_cast<uint32_t>(type) || body.size() < sizeof(Struct)) continue;
    Struct detail;
    std::memcpy(static_cast<void*>(&detail), body.data(), sizeof(Struct));
    visit(detail, body.subspan(sizeof(Struct)));
  }
}

// The line that was begun in the other end of a terminal's master. Empty: none.
inline Blob begun_line(const ParsedOpenFile& file) {
  Blob line;
  for_each_detail<BegunLineDetail>(file, kBegunLineDetail, [&](const BegunLineDetail& d, Blob bytes) {
    line = bytes.first(std::min<size_t>(d.length, bytes.size()));
  });
  return line;
}

}  // namespace ckpt
