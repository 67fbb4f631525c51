// The messages that plug-ins on several hosts exchange ahead of a checkpoint, in rounds
// (libckpt_rt/checkpoint/preparation.h). Pure states: a host hands in what its processes have posted to other
// hosts; when all have, each gets what is for it.
//
// Owner:     cluster. Callers: the head's loop, one thread. A host that has come to kPrepared hands in
//            nothing any more: it counts as a host without posts. For a host that does neither, the head
//            machine's time-out for kPrepared ends the checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ckpt::cluster {

class PostOffice {
 public:
  // to_host "*": all other hosts. text: as the hosts understand it.
  struct Post {
    std::string to_host;
    std::string text;
  };
  struct Delivery {
    bool more = false;  // another round follows
    std::vector<std::string> texts;
  };

  explicit PostOffice(std::vector<std::string> hosts);

  void begin();  // a checkpoint
  // any: did some process there post anything, also to processes of its own host? A host that submits a
  // second time in one round is ignored.
  void submit(size_t host, bool any, std::vector<Post> posts);
  void comes_no_more(size_t host);
  // All have submitted: what each host gets, in the order of hosts, and the next round begins. Empty: not
  // yet.
  std::vector<Delivery> hand_out();
  // Which hosts of a delivery wait for it.
  bool waits(size_t host) const { return hosts_[host].waited; }

 private:
  struct Host {
    std::string name;
    bool handed_in = false, gone = false, any = false, waited = false;
    std::vector<Post> posts;
  };
  std::vector<Host> hosts_;
};

}  // namespace ckpt::cluster
