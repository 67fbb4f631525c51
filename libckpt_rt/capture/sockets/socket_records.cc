#include "libckpt_rt/capture/sockets/socket_records.h"

#include <sys/stat.h>

#include <netinet/tcp.h>

#include <cstring>

#include "image/format/object_number.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {

namespace {

template <typename T>
void put_detail(ByteWriter& out, OpenFileDetail type, const T& detail) {
  out.put(DetailHeader{static_cast<uint32_t>(type), sizeof(detail)});
  out.put(detail);
}

void put_names(const SocketState& s, ByteWriter& out) {
  const uint32_t names = (s.detail.address_len + s.detail.peer_len + 7u) & ~7u;
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocket),
                       static_cast<uint32_t>(sizeof(s.detail)) + names});
  out.put(s.detail);
  out.raw(&s.address, s.detail.address_len);
  out.raw(&s.peer, s.detail.peer_len);
  out.pad_to(8);
}

void put_file(const SocketState& s, ByteWriter& out) {
  const uint32_t places = (s.file.directory_len + s.file.now_len + 7u) & ~7u;
  out.put(DetailHeader{static_cast<uint32_t>(OpenFileDetail::kSocketFile),
                       static_cast<uint32_t>(sizeof(s.file)) + places});
  out.put(s.file);
  out.raw(s.directory, s.file.directory_len);
  out.raw(s.now_at, s.file.now_len);
  out.pad_to(8);
}

// Clients that wait to be accepted, and are gone.
void put_abandoned(const SocketState& s, ByteWriter& out) {
  for (const SocketDiag::Ends& ends : s.closed) {
    AbandonedClientDetail client{{}, {}, ends.client.port, ends.server.port, ends.scope, 0, 0};
    std::memcpy(client.client, ends.client.address, sizeof(client.client));
    std::memcpy(client.server, ends.server.address, sizeof(client.server));
    put_detail(out, OpenFileDetail::kAbandonedClient, client);
  }
  for (uint32_t i = 0; i < s.reset_count; ++i)
    put_detail(out, OpenFileDetail::kAbandonedClient, AbandonedClientDetail{{}, {}, 0, 0, 0, 1, 0});
}

}  // namespace

Result<void> SocketRecords::put_messages(const SocketLook& look, const SocketState& s, ByteWriter& out) {
  const CapturedDescriptor& d = files_.entries()[s.entry];
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
  return {};
}

Result<void> SocketRecords::describe(SocketLook& look) {
  struct Range {
    size_t at, length;
  };
  ByteWriter out(files_.arena());
  ArenaVector<Range> ranges(files_.arena());
  for (SocketState& s : look.sockets) {
    const size_t at = out.size();
    if (files_.entries()[s.entry].kind != OpenFileKind::kOther) {
      CKPT_TRY(decide_outside(s));
      put_names(s, out);
      put_detail(out, OpenFileDetail::kSocketLink, s.link);
      if (s.made_by.pid != 0) put_detail(out, OpenFileDetail::kSocketPeer, s.made_by);
      if (s.file.mode != 0) put_file(s, out);
      out.raw(look.options.span().data() + s.options_at, s.options_length);
      put_abandoned(s, out);
      CKPT_TRY(put_messages(look, s, out));
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

int SocketRecords::tcp_socket(uint64_t inode) const {
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

// Which connections lead out of the process, and what becomes of them.
Result<void> SocketRecords::decide_outside(SocketState& s) {
  CapturedDescriptor& d = files_.entries()[s.entry];
  if (s.link.peer != 0 && !files_.has_socket(s.link.peer)) s.link.flags |= kLinkOutside;
  if (s.link.listener != 0 && !files_.has_socket(s.link.listener)) s.link.flags |= kLinkOutside;
  if ((s.link.flags & kLinkOutside) == 0 || partners_.any) return {};
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
