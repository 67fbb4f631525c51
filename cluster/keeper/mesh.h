// The connections of all hosts of an exchange with each other: each connects to each, sends on the links it
// made and receives on those that came to it. The connections may serve many exchanges, one after the other.
//
// Owner: cluster/keeper. One thread accepts, and one for each peer receives and decrypts; the caller's thread
// sends.
// Callers: the exchange.
// Never: takes a message of a peer that does not know the secret.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/raii_fd.h"
#include "base/result.h"
#include "cluster/keeper/blocks.h"
#include "cluster/link/sealed_link.h"

namespace ckpt::keeper {

enum MessageKind : uint32_t { kHello = 1, kBegun, kBlock, kFinished };
constexpr int kMeetMs = 30'000;  // for all hosts to come, or to begin

// The receiver of messages; called by the threads that receive, one at a time, with the mesh's lock held.
class MeshListener {
 public:
  virtual ~MeshListener() = default;
  // `bytes` of the block came with it. False: nobody asked for that; nothing is received from that host any
  // more.
  virtual bool take(unsigned host, const MessageHead& head, Block block, size_t bytes) = 0;
  virtual void gone(unsigned host) = 0;
};

class Mesh {
 public:
  struct Peers {
    unsigned self = 0;
    cluster::Secret secret{};
    std::vector<std::string> addresses;  // of all
    std::vector<int> ports;
  };

  ~Mesh();
  // The port goes to the others.
  Result<int> listen(const std::string& address);
  // Connects to all others, and waits until all have connected.
  Result<void> meet(const Peers& peers);
  // No connection is known to be broken, neither those made here nor those that came here.
  bool whole();
  // Messages that came before wait with their sender; the listener is told at once of a host that is gone
  // already. nullptr: behind the return no thread calls the former listener.
  void hear(MeshListener* listener);

  // Memory of messages that were sent. Between exchanges.
  void give_room_back();

  // Room for `bytes` of a block behind the head; then that it goes to that host. As SealedLink's.
  std::span<std::byte> compose(unsigned host, const MessageHead& head, size_t bytes);
  bool send(unsigned host) { return to_[host].send_composed(); }

  BlockPool& blocks() { return blocks_; }

 private:
  void accept_all();
  void greet(ScopedFd peer);
  void receive_from(unsigned host, cluster::SealedLink link);

  BlockPool blocks_;
  Peers peers_;
  ScopedFd listener_;                    // until all have come
  std::vector<cluster::SealedLink> to_;  // each only sends
  std::thread acceptor_;
  std::vector<std::thread> receivers_;

  std::mutex lock_;  // all below
  std::condition_variable changed_;
  MeshListener* hears_ = nullptr;
  unsigned met_ = 0, greeted_ = 0;  // threads that greet or receive
  std::vector<bool> seen_, gone_;
  bool ending_ = false, gave_up_ = false;
  std::vector<int> open_;  // of who is greeted or received from
};

}  // namespace ckpt::keeper
