// What the kernel says about sockets by netlink (sock_diag(7)): peers, states, queues, of any process.
//
// Owner:     libckpt_rt, sockets. One SocketDiag lives for one stop.
// Callers:   the agent, in the stop. All memory is the arena's.
// Never:     changes a socket.
#pragma once

#include <linux/netlink.h>
#include <netinet/in.h>

#include "base/memory/arena.h"
#include "base/raii_fd.h"

namespace ckpt {

struct UnixSocketFacts {
  uint32_t inode;
  uint8_t state, shut_down;
  bool has_peer;
  uint32_t peer;              // inode; 0: it is gone, or waits to be accepted
  uint32_t waiting, backlog;  // UNIX_DIAG_RQLEN: of a listening socket connections, and listen(2)'s number
  const uint32_t* icons;      // of a listening socket: inodes of those that wait to be accepted, in order
  uint32_t icon_count;
  uint32_t file;  // the lower half of the inode number of the file that it is bound to; 0: none
};

struct TcpFacts {
  bool known;
  uint8_t state;
  uint32_t inode;  // 0: no descriptor leads to it
  uint32_t receive_queue, send_queue;
  bool counted;   // the kernel tells:
  uint64_t sent;  // bytes of the stream that have left it, each once
  uint32_t not_sent;
};

// An Internet address and port; IPv4 as ::ffff:a.b.c.d.
struct Endpoint {
  uint8_t address[16];
  uint16_t port;  // network order
  bool operator==(const Endpoint&) const = default;
};
Endpoint endpoint_of(const sockaddr_storage& address);
bool is_ipv4(const Endpoint& endpoint);

class SocketDiag {
 public:
  explicit SocketDiag(Arena& arena) : arena_(&arena), unix_(arena), udp_(arena), unaccepted_(arena) {}

  // One question for all Unix sockets of the network namespace. False: the kernel does not answer.
  bool read_unix();
  // Those alone that listen.
  bool read_unix_listening();
  const UnixSocketFacts* find_unix(uint32_t inode) const;
  std::span<const UnixSocketFacts> all_unix() const { return unix_.span(); }

  // What shutdown(2) has ended of a UDP socket, as SocketDetail::shut_down has it. One question for all of
  // the network namespace. 0 also where the kernel does not answer.
  uint8_t udp_shut_down(uint32_t inode);
  struct Ends {
    Endpoint client, server;
    uint32_t scope;
  };
  // What waits to be accepted at a port, in all sockets of this network namespace that listen there.
  struct Unaccepted {
    uint16_t port;
    bool far;                      // of a client on another host
    bool written;                  // its client is gone, and has sent bytes, or may have
    uint32_t reset;                // by their clients: the kernel has forgotten their ends
    uint32_t sockets;              // that listen
    std::span<const Ends> closed;  // their clients are gone, and have sent nothing
  };
  // One question for each port, whoever listens there. nullptr: no memory.
  const Unaccepted* look_at_unaccepted(uint16_t port);
  bool has_looked_at(uint16_t port) const;
  struct Listener {
    uint32_t inode;
    uint16_t port;
    uint32_t waiting;  // connections that nobody has accepted
  };
  // The TCP sockets that listen. False: the kernel does not answer, or there is no memory.
  bool list_listening(ArenaVector<Listener>& listeners);
  // Adds the connections to this port that nobody has accepted and in which bytes wait: a number of the
  // kernel's for each. False: as above.
  bool list_unread(uint16_t port, ArenaVector<uint64_t>& connections);
  // Where a TCP socket is being connected to, which getpeername(2) does not say. False: nobody knows.
  bool find_connecting(uint32_t inode, int domain, sockaddr_storage& peer, uint32_t& length);
  // The TCP socket that has these ends. IPv6 of a link: scope is its interface, else 0.
  TcpFacts ask_tcp(const Endpoint& local, const Endpoint& remote, uint32_t scope);

 private:
  enum class Answer {
    kAll,
    kNone,
    kInPart,
    kLeft
  };  // kNone: the question cannot be asked; kLeft: by the visitor
  bool open();
  // Asks for a list, and hands its messages of `least` bytes and more to visit(header), while that is true.
  template <typename Question, typename Visit>
  Answer ask_list(Question& question, size_t least, Visit visit);
  bool ask_unix(uint32_t states);
  bool take_unix(const nlmsghdr& header);
  // All of these protocol and states, to visit(const inet_diag_msg&, its nlmsghdr), while that is true.
  template <typename Visit>
  bool dump_internet(uint8_t protocol, uint32_t states, uint16_t port, Visit visit);

  Arena* arena_;
  ScopedFd socket_;
  ArenaVector<UnixSocketFacts> unix_;  // by inode
  struct UdpShutDown {
    uint32_t inode;
    uint8_t shut_down;
  };
  ArenaVector<UdpShutDown> udp_;  // those of which something is
  bool udp_asked_ = false;
  ArenaVector<Unaccepted> unaccepted_;
  char* buffer_ = nullptr;
};

}  // namespace ckpt
