// Hosts, connections, disks and faults around the real machines of cluster/protocol, small enough that all
// states can be visited.
//
// Owner: tests. One thread.
// What is modelled: two queues for each host (delivered in order, each on its own); a connection that breaks,
// by which any rest of what is under way is lost; a host that is cut off without a word; a crash of head,
// agent or host; processes that fail; a record that cannot be written; a time-out while others could still go
// on (they are slow). Of these `faults`, in any order, at any moment. A time-out where nothing else can
// happen is none. The actions of a host's processes are one Local. Hosts are alike: worlds that differ in
// their order only are one.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "cluster/protocol/agent_machine.h"
#include "cluster/protocol/head_machine.h"

namespace ckpt::cluster {

// Errors that the explorer must find. Each changes what is done with the machines' actions.
enum class Mutation {
  kNone,
  kNoDrain,        // a host samples without the word that all have drained
  kGoAlone,        // a host goes on when it has sampled, without the word of the head
  kCommitEarly,    // the head counts one durable part as all
  kHostWaitsOn,    // no time-outs on the hosts
  kHeadWaitsOn,    // no time-outs at the head
  kDoubtRemoves,   // a host that does not know the outcome takes its part away
  kAbortRecorded,  // the head takes back what it has recorded when a host is lost
  kDeafToLoss,     // a host does not notice the end of its connection, nor has time-outs
};

struct Message {
  uint8_t id;
  uint8_t word;  // Order or Step; kFailedWord
};
inline constexpr uint8_t kFailedWord = 99;

// A queue without an allocation: states are copied by the million.
struct Queue {
  std::array<Message, 8> messages;
  uint8_t count = 0;
  bool empty() const { return count == 0; }
  Message front() const { return messages[0]; }
  void clear() { count = 0; }
  void push_back(Message m) { messages.at(count++) = m; }
  void pop_front() {
    for (uint8_t i = 1; i < count; ++i) messages[i - 1u] = messages[i];
    --count;
  }
};

// The processes of one host, with their coordinator.
struct Local {
  enum class Phase : uint8_t { kIdle, kWorking, kWaiting, kEnding } phase = Phase::kIdle;
  Step reached = Step::kNone;
  uint64_t id = 0;
  bool stand = false;
  bool keeps = false, commits = false;  // how it ends
};

struct Host {
  AgentMachine agent;
  bool agent_lives = true, lives = true;
  bool timer = false;
  bool broken = false, cut = false;
  bool agent_knows = false, head_knows = false;  // that it is broken
  Queue to_host, to_head;
  Local local;
  uint8_t parts = 0;  // bit id: durable on its disk
};

struct Limits {
  int hosts = 2, checkpoints = 1, faults = 1;
};

class World {
 public:
  World(const Limits& limits, Mutation mutation);

  // Everything that may happen next. The name is for the way to an error.
  struct Event {
    enum class Kind : uint8_t {
      kRequest,
      kToHost,
      kToHead,
      kHostHears,
      kHeadHears,
      kHeadTimer,
      kHostTimer,
      kStep,
      kEnd,
      kAgentGone,
      kRecord,
      kRecordFails,
      kLocalFails,
      kBreak,
      kCut,
      kCrashHost,
      kCrashAgent,
      kCrashHead,
    } kind;
    int8_t host = -1;
    bool too_early = false;  // a time-out while others could still go on
  };
  std::vector<Event> events() const;
  void apply(const Event& event);

  // What is wrong with this state; empty: nothing.
  std::string wrong() const;
  // Nothing goes on by itself any more.
  bool is_quiet() const;
  std::string stuck() const;  // in a quiet state: who waits

  std::string encoded() const;
  static std::string text(const Event& event);

 private:
  void do_head(const HeadMachine::Actions& actions);
  void do_agent(int h, const AgentMachine::Actions& actions);
  void send_to_host(int h, Message m);
  void send_to_head(int h, Message m);
  void hear_at_head(int h, Message m);
  void step(int h);
  void release(int h);  // its threads go on
  void end_local(int h);
  bool is_progress(const Event& event) const;

  Limits limits_;
  Mutation mutation_;
  HeadMachine head_;
  bool head_lives_ = true, head_timer_ = false;
  uint64_t next_id_ = 1;
  int faults_left_;
  uint8_t records_ = 0;        // bit id
  uint8_t spoiled_ = 0;        // bit id: its parts are not of one instant
  std::array<Host, 3> hosts_;  // the first limits_.hosts of them
};

}  // namespace ckpt::cluster
