#include "cli/back/descriptors/waiting_messages.h"

#include "base/memory/bytes.h"
#include "cli/back/descriptors/still_open.h"
#include "restart/descriptors/builder.h"

namespace ckpt::cli {

std::vector<WaitingMessage> waiting_messages(const ImageMeta& meta, const ParsedOpenFile& socket) {
  std::vector<WaitingMessage> all;
  for_each_detail<SocketMessageDetail>(
      socket, OpenFileDetail::kSocketMessage, [&](const SocketMessageDetail& detail, Blob rest) {
        WaitingMessage message{detail, {}, {}, {}};
        for (const auto& c : meta.contents) {
          if (c.record.open_file == socket.record.id && c.record.offset == detail.number)
            message.bytes.insert(message.bytes.end(), c.bytes.begin(), c.bytes.end());
        }
        const uint64_t padded = (uint64_t{detail.address_len} + 3) & ~uint64_t{3};
        if (padded + uint64_t{detail.file_count} * 4 <= rest.size()) {
          message.sender.assign(rest.begin(), rest.begin() + detail.address_len);
          ByteReader reader(rest.subspan(padded));
          for (uint32_t i = 0; i < detail.file_count; ++i) {
            const auto id = reader.get<uint32_t>();
            if (const ParsedOpenFile* f = meta.open_file(id))
              message.files.push_back({kind_of(*f), f->record.open_flags, f->record.device, f->record.inode,
                                       kind_of(*f) == OpenFileKind::kPidFd ? f->record.value : 0,
                                       first_descriptor(meta, id) < 0 ? f->record.offset : 0,
                                       first_descriptor(meta, id) >= 0, content_of(meta, id)});
          }
        }
        all.push_back(std::move(message));
      });
  return all;
}

}  // namespace ckpt::cli
