#include <sys/stat.h>

#include <netinet/tcp.h>

#include <cstring>

#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/capture/sockets/socket_look.h"
#include "libckpt_rt/core/preload_rules.h"

// What was found out about sockets, as details of their records. Open files have their numbers now.

namespace ckpt {

Result<void> DescriptorCapture::describe_sockets(SocketLook& look) {
  struct Range {
    size_t at, length;
  };
  ByteWriter out(files_.arena());
  ArenaVector<Range> ranges(files_.arena());
  for (SocketState& s : look.sockets) {
    const size_t at = out.size();
    CapturedDescriptor& d = files_.entries()[s.entry];
    if (d.kind != OpenFileKind::kOther) {
      CKPT_TRY(decide_outside(s));
      SocketDetail detail = s.detail;
      const uint32_t names = (detail.address_len + detail.peer_len + 7u) & ~7u;
      out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocket),
                           static_cast<uint32_t>(sizeof(detail)) + names});
      out.put(detail);
      out.raw(&s.address, detail.address_len);
      out.raw(&s.peer, detail.peer_len);
      out.pad_to(8);
      out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocketLink), sizeof(s.link)});
      out.put(s.link);
      if (s.made_by.pid != 0) {
        out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocketPeer), sizeof(s.made_by)});
        out.put(s.made_by);
      }
      if (s.file.mode != 0) {
        const uint32_t places = (s.file.directory_len + s.file.now_len + 7u) & ~7u;
        out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocketFile),
                             static_cast<uint32_t>(sizeof(s.file)) + places});
        out.put(s.file);
        out.raw(s.directory, s.file.directory_len);
        out.raw(s.now_at, s.file.now_len);
        out.pad_to(8);
      }
      out.raw(look.options.span().data() + s.options_at, s.options_length);
      for (const SocketDiag::Ends& ends : s.closed) {
        AbandonedClientDetail client{{}, {}, ends.client.port, ends.server.port, ends.scope, 0, 0};
        std::memcpy(client.client, ends.client.address, sizeof(client.client));
        std::memcpy(client.server, ends.server.address, sizeof(client.server));
        out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kAbandonedClient), sizeof(client)});
        out.put(client);
      }
      for (uint32_t i = 0; i < s.reset_count; ++i) {
        out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kAbandonedClient),
                             sizeof(AbandonedClientDetail)});
        out.put(AbandonedClientDetail{{}, {}, 0, 0, 0, 1, 0});
      }
      const uint64_t object = object_number(d.now.device, d.now.inode);
      for (uint32_t i = 0; i < s.message_count; ++i) {
        const SocketMessage& m = look.messages[s.first_message + i];
        const uint32_t name = (m.detail.address_len + 3u) & ~3u;
        const uint32_t body = (name + m.detail.file_count * 4u + 7u) & ~7u;
        out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocketMessage),
                             static_cast<uint32_t>(sizeof(m.detail)) + body});
        out.put(m.detail);
        out.raw(m.address, m.detail.address_len);
        out.pad_to(4);
        for (uint32_t f = 0; f < m.detail.file_count; ++f)
          out.put(files_.entries()[look.files[m.first_file + f]].open_file);
        out.pad_to(8);
        if (m.detail.length != 0 &&
            !contents_.push_back({d.open_file, object, m.detail.number, m.bytes, m.detail.length}))
          return arena_full(files_.arena());
      }
    }
    if (!ranges.push_back({at, out.size() - at})) return arena_full(files_.arena());
  }
  if (!out.ok()) return arena_full(files_.arena());
  for (size_t i = 0; i < look.sockets.size(); ++i) {
    CapturedDescriptor& d = files_.entries()[look.sockets[i].entry];
    d.details = out.span().data() + ranges[i].at;
    d.details_len = static_cast<uint32_t>(ranges[i].length);
  }
  // Duplicates are of the same kind; they come after the first in the order. The first may be another than
  // the one that was looked at, if one came with a message.
  for (size_t i = 1; i < files_.order().size(); ++i) {
    auto& d = files_.in_order(i);
    auto& before = files_.in_order(i - 1);
    if (!d.shares || !S_ISSOCK(d.now.mode)) continue;
    d.kind = before.kind;
  }
  return {};
}

// By what describe_sockets() has written.
int DescriptorCapture::tcp_socket(uint64_t inode) const {
  int fd = -1;
  bool is_tcp = false;
  for (const CapturedDescriptor& d : files_.entries()) {
    if (!S_ISSOCK(d.now.mode) || d.now.inode != inode) continue;
    if (fd < 0 && !d.in_flight) fd = d.fd;
    DetailHeader header;
    SocketDetail detail;
    if (d.details_len < sizeof(header) + sizeof(detail)) continue;
    std::memcpy(&header, d.details, sizeof(header));
    std::memcpy(&detail, d.details + sizeof(header), sizeof(detail));
    is_tcp = is_tcp || (header.type == static_cast<uint32_t>(OpenFileDetail::kSocket) &&
                        detail.type == SOCK_STREAM && detail.protocol == IPPROTO_TCP);
  }
  return is_tcp ? fd : -1;
}

Result<void> DescriptorCapture::name_hidden_filter(const CapturedDescriptor& d) {
  return notes_.add(
      kChanged,
      "descriptor {} ({}): a program of eBPF decides what it takes (SO_ATTACH_BPF), which nobody can "
      "read: after a restart it takes all",
      d.fd, d.path);
}

// Which connections lead out of the process, and what becomes of them.
Result<void> DescriptorCapture::decide_outside(SocketState& s) {
  CapturedDescriptor& d = files_.entries()[s.entry];
  if (s.link.peer != 0 && !files_.has_socket(s.link.peer)) s.link.flags |= kLinkOutside;
  if (s.link.listener != 0 && !files_.has_socket(s.link.listener)) s.link.flags |= kLinkOutside;
  if ((s.link.flags & kLinkOutside) == 0 || has_partners_) return {};
  if (s.pair && s.detail.type == SOCK_DGRAM && s.detail.peer_len != 0) {
    d.kind = OpenFileKind::kSocket;  // connected again by its name
    return {};
  }
  if (d.fd <= 2 && !d.in_flight) {
    d.kind = OpenFileKind::kOther;  // the restarter's own stream, see decide_kinds()
    return {};
  }
  return notes_.add(
      kChanged,
      "descriptor {} ({}): the other end of the connection is not in the program: after restart it "
      "is {}",
      d.fd, d.path, s.connection ? "reset" : "closed there");
}

}  // namespace ckpt
