#include "cli/back/descriptors/image_socket.h"

#include <netinet/in.h>

#include <cstring>

#include "restart/descriptors/builder.h"

namespace ckpt::cli {

namespace {

bool take_name(Blob& from, uint32_t length, SocketName& name) {
  if (length > sizeof(name.address) || length > from.size()) return false;
  std::memcpy(&name.address, from.data(), length);
  name.length = length;
  from = from.subspan(length);
  return true;
}

}  // namespace

ImageSocket socket_of(const ParsedOpenFile& f) {
  ImageSocket s;
  if (kind_of(f) != OpenFileKind::kSocket && kind_of(f) != OpenFileKind::kConnection) return s;
  for_each_detail<SocketDetail>(f, OpenFileDetail::kSocket, [&](const SocketDetail& d, Blob rest) {
    s.detail = d;
    (void)(take_name(rest, d.address_len, s.local) && take_name(rest, d.peer_len, s.remote));
  });
  for_each_detail<SocketLinkDetail>(f, OpenFileDetail::kSocketLink,
                                    [&](const SocketLinkDetail& l, Blob) { s.link = l; });
  return s;
}

bool is_corked(const ParsedOpenFile& file) {
  constexpr int kUdpCork = 1;
  bool corked = false;
  for_each_detail<SocketOptionDetail>(
      file, OpenFileDetail::kSocketOption, [&](const SocketOptionDetail& o, Blob) {
        int value = 0;
        std::memcpy(&value, o.value, sizeof(value));
        corked = corked || (o.level == IPPROTO_UDP && o.name == kUdpCork && value != 0);
      });
  return corked;
}

}  // namespace ckpt::cli
