// For how long a restart asks again for a port that bind(2) refuses.
//
// Owner:     ChannelBuilder::bind_port, one object for each port. Callers: one thread.
// Rule:      after each refusal the caller counts the ended connections that hold the port. While there are
//            some, the kernel will free it. When it sees none, the last of them may have gone between its
//            bind(2) and its count: the port is somebody's only if bind(2) goes on refusing it.
// Source:    inet_twsk_kill in the kernel: a connection leaves the list that sock_diag(7) shows before it
//            gives back its port.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace ckpt {

class PortWait {
 public:
  // The kernel keeps an ended connection for 60 s, to a timer tick of 2 s.
  static constexpr int64_t kLongestNs = 65'000'000'000;
  // How often bind(2) is asked without an ended connection in sight before the port counts as taken.
  static constexpr int kAsksUnexplained = 5;

  explicit PortWait(int64_t now_ns) : until_ns_(now_ns + kLongestNs) {}

  // After bind(2) was refused: is it to be called again?
  bool ask_again(size_t ended_connections, int64_t now_ns) {
    if (ended_connections == 0) return ++unexplained_ < kAsksUnexplained;
    if (now_ns < until_ns_) {
      unexplained_ = 0;
      return true;
    }
    // The machine, or this process, may have stood still since the last look.
    return !std::exchange(asked_late_, true);
  }

 private:
  int64_t until_ns_;
  int unexplained_ = 0;
  bool asked_late_ = false;
};

}  // namespace ckpt
