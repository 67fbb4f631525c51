#include "timewarp/mpi/transport.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>

namespace ckpt::timewarp {

std::unique_ptr<Transport> Transport::open(const std::string& name, std::string* why) {
  const bool known = name == "openmpi" || name == "mpich";
  const std::string file = known ? "libckpt_timewarp_" + name + ".so" : name;
  std::unique_ptr<Transport> t(new Transport);
  // Global: Open MPI loads parts of itself that look for its symbols.
  t->library_ = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (t->library_ == nullptr && known) {
    // Beside the program that was built with it.
    t->library_ = dlopen((std::string(CKPT_TIMEWARP_PLUGINS "/") + file).c_str(), RTLD_NOW | RTLD_GLOBAL);
  }
  if (t->library_ == nullptr) {
    *why = "no transport " + name + ": " + dlerror() + ": build with this MPI installed, or name another";
    return nullptr;
  }
  using Of = const ckpt_tw_transport*();
  auto* of = reinterpret_cast<Of*>(dlsym(t->library_, "ckpt_tw_transport_of"));
  const ckpt_tw_transport* api = of != nullptr ? of() : nullptr;
  if (api == nullptr || api->version != CKPT_TW_TRANSPORT_VERSION) {
    *why = name + " is no transport of this version: build it again";
    return nullptr;
  }
  if (api->open(&t->rank_, &t->size_) != 0) {
    *why = name + " cannot be started with threads: use the mpirun that belongs to it";
    return nullptr;
  }
  t->api_ = api;
  const auto n = static_cast<size_t>(t->size_);
  t->posting_.resize(n);
  t->buffer_.resize(kPosted + (1 << 17));
  t->sent_.resize(n);
  t->received_.resize(n);
  t->counted_.resize(n);
  t->counts_.resize(n * n);
  t->reports_.resize(n);
  return t;
}

Transport::~Transport() {
  if (api_ != nullptr) api_->close();
  // The library stays loaded: an MPI cannot be started twice.
}

void Transport::post(int to, const Wire& wire, const void* message) {
  if (noting()) noted_ = std::min(noted_, Key{wire.time, wire.order, wire.sender});
  std::vector<std::byte>& posting = posting_[static_cast<size_t>(to)];
  const size_t at = posting.size();
  posting.resize(at + sizeof(wire) + wire.bytes);
  std::memcpy(posting.data() + at, &wire, sizeof(wire));
  if (wire.bytes != 0) std::memcpy(posting.data() + at + sizeof(wire), message, wire.bytes);
  ++sent_[static_cast<size_t>(to)];
  if (posting.size() >= kPosted) {
    broken_ |= api_->post(to, posting.data(), posting.size()) != 0;
    posting.clear();
  }
}

void Transport::flush() {
  for (size_t to = 0; to < posting_.size(); ++to) {
    if (posting_[to].empty()) continue;
    broken_ |= api_->post(static_cast<int>(to), posting_[to].data(), posting_[to].size()) != 0;
    posting_[to].clear();
  }
}

void Transport::begin() {
  flush();
  noted_ = Key::never();
  counted_ = sent_;
  broken_ |= api_->gather(counted_.data(), counted_.size() * sizeof(uint64_t), counts_.data()) != 0;
  gathering_ = true;
  state_ = State::kCounting;
}

bool Transport::gathered() {
  if (gathering_) {
    const int done = api_->gather_done();
    broken_ |= done < 0;
    gathering_ = done == 0;
  }
  return !gathering_;
}

bool Transport::all_arrived() const {
  const auto n = static_cast<size_t>(size_);
  for (size_t from = 0; from < n; ++from) {
    if (received_[from] < counts_[from * n + static_cast<size_t>(rank_)]) return false;
  }
  return true;
}

void Transport::report(const Key& key, const std::string& failure) {
  mine_.key = key;
  std::snprintf(mine_.failure, kWords, "%s", failure.c_str());
  // Messages that settling has sent belong to the next round's count, and leave now.
  flush();
  broken_ |= api_->gather(&mine_, sizeof(mine_), reports_.data()) != 0;
  gathering_ = true;
  state_ = State::kReporting;
}

bool Transport::result(Key* gvt) {
  Key min = Key::never();
  for (const Report& r : reports_) {
    min = std::min(min, r.key);
    if (failure_.empty() && r.failure[0] != '\0') failure_ = r.failure;
  }
  state_ = State::kIdle;
  *gvt = min;
  return failure_.empty();
}

void Transport::finish(ckpt_tw_result& result) {
  std::vector<ckpt_tw_result> all(static_cast<size_t>(size_));
  ckpt_tw_result mine = result;
  if (api_->gather(&mine, sizeof(mine), all.data()) != 0) return;
  gathering_ = true;
  while (!gathered()) {
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (i == static_cast<size_t>(rank_)) continue;
    const ckpt_tw_result& r = all[i];
    result.seconds = std::max(result.seconds, r.seconds);
    result.gvt_rounds = std::max(result.gvt_rounds, r.gvt_rounds);
    uint64_t ckpt_tw_result::*const kSummed[] = {
        &ckpt_tw_result::committed,        &ckpt_tw_result::executed,        &ckpt_tw_result::rolled_back,
        &ckpt_tw_result::rollbacks,        &ckpt_tw_result::stragglers,      &ckpt_tw_result::cancelled,
        &ckpt_tw_result::repeated,         &ckpt_tw_result::saves,           &ckpt_tw_result::save_bytes,
        &ckpt_tw_result::restores,         &ckpt_tw_result::stalls,          &ckpt_tw_result::cancelbacks,
        &ckpt_tw_result::copies_committed, &ckpt_tw_result::copies_aborted,  &ckpt_tw_result::copies_finished,
        &ckpt_tw_result::copies_forced,    &ckpt_tw_result::remote_messages, &ckpt_tw_result::peak_bytes,
        &ckpt_tw_result::state_digest,     &ckpt_tw_result::events_digest};
    for (auto member : kSummed) result.*member += r.*member;
  }
}

}  // namespace ckpt::timewarp
