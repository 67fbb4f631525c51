#include "tests/cluster/explore/world.h"

#include <algorithm>

namespace ckpt::cluster {

namespace {

uint8_t bit(uint64_t id) { return static_cast<uint8_t>(1u << id); }

}  // namespace

World::World(const Limits& limits, Mutation mutation)
    : limits_(limits), mutation_(mutation), head_(limits.hosts), faults_left_(limits.faults) {}

void World::send_to_host(int h, Message m) {
  Host& host = hosts_[static_cast<size_t>(h)];
  if (!host.broken && !host.cut) host.to_host.push_back(m);
}

void World::send_to_head(int h, Message m) {
  Host& host = hosts_[static_cast<size_t>(h)];
  if (!host.broken && !host.cut) host.to_head.push_back(m);
}

void World::do_head(const HeadMachine::Actions& actions) {
  for (const HeadAction& a : actions) {
    switch (a.kind) {
      case HeadAction::Kind::kTell:
        send_to_host(a.host, {static_cast<uint8_t>(a.id), static_cast<uint8_t>(a.order)});
        break;
      case HeadAction::Kind::kSetTimer:
        head_timer_ = mutation_ != Mutation::kHeadWaitsOn;
        break;
      case HeadAction::Kind::kStopTimer:
        head_timer_ = false;
        break;
      default:
        break;  // kRecord: an event of its own
    }
  }
}

void World::release(int h) {
  Local& local = hosts_[static_cast<size_t>(h)].local;
  if (!local.stand) return;
  local.stand = false;
  for (int i = 0; i < limits_.hosts; ++i) {
    const Host& other = hosts_[static_cast<size_t>(i)];
    if (other.local.id != local.id || other.local.reached < Step::kSampled) spoiled_ |= bit(local.id);
  }
}

// The processes were told the end of it, or see that nobody tells them any more.
void World::end_local(int h) {
  Host& host = hosts_[static_cast<size_t>(h)];
  release(h);
  if (host.local.commits) {
    host.parts &= static_cast<uint8_t>(~(bit(host.local.id) - 1));  // the older ones
  } else if (!host.local.keeps) {
    host.parts &= static_cast<uint8_t>(~bit(host.local.id));
  }
  host.local.phase = Local::Phase::kEnding;
}

void World::do_agent(int h, const AgentMachine::Actions& actions) {
  Host& host = hosts_[static_cast<size_t>(h)];
  for (const AgentAction& a : actions) {
    switch (a.kind) {
      case AgentAction::Kind::kBegin:
        host.local = {};
        host.local.phase = Local::Phase::kWorking;
        host.local.id = a.id;
        break;
      case AgentAction::Kind::kContinue:
        if (host.local.phase != Local::Phase::kWaiting) break;
        if (host.local.reached == Step::kDurable) {
          host.local.commits = true;
          end_local(h);
          break;
        }
        if (host.local.reached == Step::kSampled) release(h);
        host.local.phase = Local::Phase::kWorking;
        break;
      case AgentAction::Kind::kGiveUp:
      case AgentAction::Kind::kKeepPart:
        if (host.local.phase == Local::Phase::kIdle || host.local.phase == Local::Phase::kEnding) break;
        host.local.keeps = a.kind == AgentAction::Kind::kKeepPart && mutation_ != Mutation::kDoubtRemoves;
        end_local(h);
        break;
      case AgentAction::Kind::kReached: {
        send_to_head(h, {static_cast<uint8_t>(a.id), static_cast<uint8_t>(a.step)});
        const bool alone = (mutation_ == Mutation::kNoDrain && a.step == Step::kDrained) ||
                           (mutation_ == Mutation::kGoAlone && a.step == Step::kSampled);
        if (alone) {
          AgentMachine::Actions more;
          host.agent.ordered(a.id, order_to(next_step(a.step)), more);
          do_agent(h, more);
          return;
        }
        break;
      }
      case AgentAction::Kind::kFailed:
        send_to_head(h, {static_cast<uint8_t>(a.id), kFailedWord});
        break;
      case AgentAction::Kind::kSetTimer:
        host.timer = mutation_ != Mutation::kHostWaitsOn && mutation_ != Mutation::kDeafToLoss;
        break;
      case AgentAction::Kind::kStopTimer:
        host.timer = false;
        break;
    }
  }
}

void World::hear_at_head(int h, Message m) {
  HeadMachine::Actions out;
  if (m.word == kFailedWord) {
    head_.failed(h, m.id, out);
  } else {
    head_.reached(h, m.id, static_cast<Step>(m.word), out);
    if (mutation_ == Mutation::kCommitEarly && static_cast<Step>(m.word) == Step::kDurable) {
      for (int other = 0; other < limits_.hosts; ++other) head_.reached(other, m.id, Step::kDurable, out);
    }
  }
  do_head(out);
}

// The processes come to their next step.
void World::step(int h) {
  Host& host = hosts_[static_cast<size_t>(h)];
  Local& local = host.local;
  const Step to = next_step(local.reached);
  bool all_stand = true, all_drained = true;
  for (int i = 0; i < limits_.hosts; ++i) {
    const Host& other = hosts_[static_cast<size_t>(i)];
    all_stand = all_stand && other.local.id == local.id && other.local.stand;
    all_drained = all_drained && other.local.id == local.id && other.local.reached >= Step::kDrained;
  }
  if (to == Step::kStanding) local.stand = true;
  if (to == Step::kDrained && !all_stand) spoiled_ |= bit(local.id);
  if (to == Step::kSampled && (!all_stand || !all_drained)) spoiled_ |= bit(local.id);
  if (to == Step::kDurable) host.parts |= bit(local.id);
  local.reached = to;
  local.phase = Local::Phase::kWaiting;
  AgentMachine::Actions out;
  host.agent.came_to(to, out);
  do_agent(h, out);
}

std::vector<World::Event> World::events() const {
  using K = Event::Kind;
  std::vector<Event> all;
  const auto add = [&](K kind, int h = -1) { all.push_back({kind, static_cast<int8_t>(h), false}); };
  if (head_lives_) {
    if (head_.phase() == HeadMachine::Phase::kIdle && next_id_ <= static_cast<uint64_t>(limits_.checkpoints))
      add(K::kRequest);
    if (head_.phase() == HeadMachine::Phase::kRecording) {
      add(K::kRecord);
      if (faults_left_ > 0) add(K::kRecordFails);
    }
    if (faults_left_ > 0) add(K::kCrashHead);
  }
  for (int h = 0; h < limits_.hosts; ++h) {
    const Host& host = hosts_[static_cast<size_t>(h)];
    const bool agent = host.lives && host.agent_lives;
    if (!host.cut) {
      if (agent && !host.to_host.empty()) add(K::kToHost, h);
      if (head_lives_ && !host.to_head.empty()) add(K::kToHead, h);
      if (host.broken && agent && !host.agent_knows && mutation_ != Mutation::kDeafToLoss)
        add(K::kHostHears, h);
      if (host.broken && head_lives_ && !host.head_knows) add(K::kHeadHears, h);
    }
    if (!host.lives) continue;
    if (host.local.phase == Local::Phase::kWorking) {
      add(K::kStep, h);
      if (faults_left_ > 0) add(K::kLocalFails, h);
    }
    if (host.local.phase == Local::Phase::kEnding) add(K::kEnd, h);
    if (!host.agent_lives && host.local.phase == Local::Phase::kWaiting) add(K::kAgentGone, h);
    if (faults_left_ == 0) continue;
    if (!host.broken && !host.cut) {
      add(K::kBreak, h);
      add(K::kCut, h);
    }
    add(K::kCrashHost, h);
    if (host.agent_lives) add(K::kCrashAgent, h);
  }
  bool goes_on = false;
  for (const Event& e : all) goes_on = goes_on || is_progress(e);
  if (goes_on && faults_left_ == 0) return all;
  const auto add_timer = [&](K kind, int h) { all.push_back({kind, static_cast<int8_t>(h), goes_on}); };
  if (head_lives_ && head_timer_) add_timer(K::kHeadTimer, -1);
  for (int h = 0; h < limits_.hosts; ++h) {
    const Host& host = hosts_[static_cast<size_t>(h)];
    if (host.lives && host.agent_lives && host.timer) add_timer(K::kHostTimer, h);
  }
  return all;
}

bool World::is_progress(const Event& event) const {
  switch (event.kind) {
    case Event::Kind::kRequest:
    case Event::Kind::kRecordFails:
    case Event::Kind::kLocalFails:
    case Event::Kind::kBreak:
    case Event::Kind::kCut:
    case Event::Kind::kCrashHost:
    case Event::Kind::kCrashAgent:
    case Event::Kind::kCrashHead:
      return false;
    default:
      return true;
  }
}

bool World::is_quiet() const {
  for (const Event& e : events()) {
    if (is_progress(e)) return false;
  }
  return true;
}

void World::apply(const Event& event) {
  HeadMachine::Actions head;
  AgentMachine::Actions agent;
  const int h = int{event.host};
  if (event.too_early) --faults_left_;
  Host* host = h >= 0 ? &hosts_[static_cast<size_t>(h)] : nullptr;
  switch (event.kind) {
    case Event::Kind::kRequest:
      head_.request(next_id_++, head);
      do_head(head);
      break;
    case Event::Kind::kToHost: {
      const Message m = host->to_host.front();
      host->to_host.pop_front();
      host->agent.ordered(m.id, static_cast<Order>(m.word), agent);
      do_agent(h, agent);
      break;
    }
    case Event::Kind::kToHead: {
      const Message m = host->to_head.front();
      host->to_head.pop_front();
      hear_at_head(h, m);
      break;
    }
    case Event::Kind::kHostHears:  // the rest of what was under way is lost
      host->to_host.clear();
      host->agent_knows = true;
      host->agent.lost_head(agent);
      do_agent(h, agent);
      break;
    case Event::Kind::kHeadHears: {
      host->to_head.clear();
      host->head_knows = true;
      const bool recording = head_.phase() == HeadMachine::Phase::kRecording || records_ != 0;
      head_.lost(h, head);
      do_head(head);
      if (mutation_ == Mutation::kAbortRecorded && recording) {
        for (int other = 0; other < limits_.hosts; ++other)
          send_to_host(other, {static_cast<uint8_t>(head_.id()), static_cast<uint8_t>(Order::kAbort)});
      }
      break;
    }
    case Event::Kind::kHeadTimer:
      head_timer_ = false;
      head_.timed_out(head);
      do_head(head);
      break;
    case Event::Kind::kHostTimer:
      host->timer = false;
      host->agent.timed_out(agent);
      do_agent(h, agent);
      break;
    case Event::Kind::kStep:
      step(h);
      break;
    case Event::Kind::kEnd:
      host->local.phase = Local::Phase::kIdle;
      if (host->agent_lives) {
        host->agent.ended(agent);
        do_agent(h, agent);
      }
      break;
    case Event::Kind::kAgentGone:
      host->local.keeps = host->local.reached == Step::kDurable && mutation_ != Mutation::kDoubtRemoves;
      end_local(h);
      break;
    case Event::Kind::kRecord:
      records_ |= bit(head_.id());
      records_ &= static_cast<uint8_t>(~(bit(head_.id()) - 1));
      head_.recorded(true, head);
      do_head(head);
      break;
    case Event::Kind::kRecordFails:
      --faults_left_;
      head_.recorded(false, head);
      do_head(head);
      break;
    case Event::Kind::kLocalFails:
      --faults_left_;
      end_local(h);
      break;
    case Event::Kind::kBreak:
      --faults_left_;
      host->broken = true;
      break;
    case Event::Kind::kCut:
      --faults_left_;
      host->cut = true;
      host->to_host.clear();
      host->to_head.clear();
      break;
    case Event::Kind::kCrashHost:
      --faults_left_;
      release(h);
      host->lives = false;
      host->local.phase = Local::Phase::kIdle;
      host->timer = false;
      host->broken = true;  // the others' kernels notice sooner or later
      break;
    case Event::Kind::kCrashAgent:
      --faults_left_;
      host->agent_lives = false;
      host->timer = false;
      host->broken = true;
      break;
    case Event::Kind::kCrashHead:
      --faults_left_;
      head_lives_ = false;
      head_timer_ = false;
      for (Host& one : hosts_) one.broken = true;
      break;
  }
}

std::string World::wrong() const {
  for (uint64_t id = 1; id < next_id_; ++id) {
    if ((records_ & bit(id)) == 0) continue;
    if ((spoiled_ & bit(id)) != 0)
      return "checkpoint " + std::to_string(id) + " counts, and its parts are not of one instant";
    for (size_t h = 0; h < static_cast<size_t>(limits_.hosts); ++h) {
      if ((hosts_[h].parts & bit(id)) == 0)
        return "checkpoint " + std::to_string(id) + " counts, and host " + std::to_string(h) +
               " has no part of it";
    }
  }
  return {};
}

std::string World::stuck() const {
  if (head_lives_ && head_.phase() != HeadMachine::Phase::kIdle) return "the head waits for ever";
  for (size_t h = 0; h < static_cast<size_t>(limits_.hosts); ++h) {
    const Host& host = hosts_[h];
    if (!host.lives) continue;
    if (host.local.stand) return "the processes of host " + std::to_string(h) + " stand for ever";
    if (host.local.phase != Local::Phase::kIdle)
      return "the processes of host " + std::to_string(h) + " wait for ever";
    if (host.agent_lives && host.agent.phase() != AgentMachine::Phase::kIdle)
      return "the agent of host " + std::to_string(h) + " waits for ever";
  }
  return {};
}

std::string World::encoded() const {
  std::string s;
  std::string* to = &s;
  const auto put = [&](auto value) { to->push_back(static_cast<char>(value)); };
  std::vector<std::string> each(static_cast<size_t>(limits_.hosts));
  put(head_.phase());
  put(head_.awaited());
  put(head_.id());
  put(head_lives_ << 1 | head_timer_);
  put(next_id_);
  put(faults_left_);
  put(records_);
  put(spoiled_);
  for (int h = 0; h < limits_.hosts; ++h) {
    const Host& one = hosts_[static_cast<size_t>(h)];
    to = &each[static_cast<size_t>(h)];
    put(head_.is_there(h) << 4 | static_cast<int>(head_.reached_by(h)));
    put(one.agent.phase());
    put(one.agent.reached());
    put(one.agent.id() << 4 | one.agent.next());
    put(one.agent_lives | one.lives << 1 | one.timer << 2 | one.broken << 3 | one.cut << 4 |
        one.agent_knows << 5 | one.head_knows << 6);
    put(static_cast<int>(one.local.phase) << 4 | static_cast<int>(one.local.reached));
    put(one.local.id << 3 | one.local.stand << 2 | one.local.keeps << 1 | one.local.commits);
    put(one.parts);
    for (const auto* queue : {&one.to_host, &one.to_head}) {
      put(queue->count);
      for (uint8_t i = 0; i < queue->count; ++i) {
        put(queue->messages[i].id);
        put(queue->messages[i].word);
      }
    }
  }
  std::sort(each.begin(), each.end());
  for (const std::string& host : each) s += host;
  return s;
}

std::string World::text(const Event& event) {
  constexpr const char* kNames[] = {
      "a request",       "an order arrives", "a report arrives",  "hears the break",   "head hears a break",
      "head's time-out", "time-out",         "comes to its step", "has ended it",      "sees its agent gone",
      "recorded",        "record fails",     "processes fail",    "connection breaks", "is cut off",
      "crashes",         "agent crashes",    "head crashes"};
  std::string s = kNames[static_cast<size_t>(event.kind)];
  return event.host < 0 ? s : "host " + std::to_string(event.host) + ": " + s;
}

}  // namespace ckpt::cluster
