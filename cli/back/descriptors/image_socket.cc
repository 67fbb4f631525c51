#include "cli/back/descriptors/image_socket.h"

#include <netinet/in.h>

#include <cstring>

#include "restart/descriptors/builder.h"

namespace ckpt::cli {

ImageSocket socket_of(const ParsedOpenFile& f) {
  ImageSocket s;
  if (kind_of(f) != OpenFileKind::kSocket && kind_of(f) != OpenFileKind::kConnection) return s;
  (void)read_socket_names(f, s.detail, s.local, s.remote);
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
