#include "cli/hosts/head/moving_in_place.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/clock.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// A step may take as long as a restart of a large part.
constexpr int64_t kPartNs = 600'000'000'000, kStandNs = 20'000'000'000, kReconnectNs = 150'000'000'000;
constexpr int64_t kWordToOldNs = 5'000'000'000;  // less than a host waits for the head's decision

// Not one of GoingBack's: what an agent says late of the one is not for the other.
uint64_t next_number() {
  static constinit uint64_t attempts = uint64_t{1} << 32;
  return ++attempts;
}

Result<void> all_say_yes(const Crew& crew, const std::vector<Json>& said, const char* what) {
  for (size_t i = 0; i < said.size(); ++i) {
    if (said[i].is_null() || said[i].value("yes", false)) continue;
    return failure(ExitCode::kTimeout, const_cast<Crew&>(crew).hosts()[i].where, what, "try again");
  }
  return {};
}

}  // namespace

MovingInPlace::MovingInPlace(Crew& crew, Crew& there, std::vector<int> parts, const HostsRun& run,
                             HostsManifest manifest, std::string path)
    : crew_(crew),
      there_(there),
      parts_(std::move(parts)),
      run_(run),
      manifest_(std::move(manifest)),
      path_(std::move(path)),
      number_(next_number()),
      cookie_(strtoull(cluster::hex_of(cluster::make_secret()).substr(0, 16).c_str(), nullptr, 16)) {
  swap_hosts();
}

MovingInPlace::~MovingInPlace() {
  if (has_moved_) return;
  if (!decided_) tell_others({{"say", "back_stop"}});
  swap_hosts();
}

void MovingInPlace::swap_hosts() {
  for (size_t i = 0; i < parts_.size(); ++i)
    std::swap(crew_.hosts()[static_cast<size_t>(parts_[i])], there_.hosts()[i]);
}

bool MovingInPlace::goes(size_t part) const {
  return std::find(parts_.begin(), parts_.end(), static_cast<int>(part)) != parts_.end();
}

// Parts that are on one host have one space of names.
std::string MovingInPlace::cookie_of(size_t part) const { return fmt::format("{:016x}", cookie_ + part); }

void MovingInPlace::tell_others(const Json& what) {
  for (size_t i = 0; i < crew_.hosts().size(); ++i) {
    if (!goes(i)) crew_.tell(static_cast<int>(i), what);
  }
}

void MovingInPlace::tell_new(const Json& what) {
  for (const int part : parts_) crew_.tell(part, what);
}

std::vector<AwaitedWord> MovingInPlace::words(const AwaitedWord& of_others, const AwaitedWord& of_new) const {
  std::vector<AwaitedWord> all(crew_.hosts().size(), of_others);
  for (const int part : parts_) all[static_cast<size_t>(part)] = of_new;
  return all;
}

Result<std::vector<Json>> MovingInPlace::hear(const std::vector<AwaitedWord>& awaited, int64_t patience_ns,
                                              const std::function<Result<void>()>& meanwhile) {
  return HearEach{crew_, patience_ns,
                  [&]() -> Result<void> {
                    if (now_ns() >= next_word_ns_) {
                      next_word_ns_ = now_ns() + kWordToOldNs;
                      there_.tell_all({{"say", "wait"}, {"id", id_}});
                    }
                    return meanwhile ? meanwhile() : Result<void>();
                  }}
      .hear(awaited);
}

Result<void> MovingInPlace::run(uint64_t id, const std::function<Result<void>()>& meanwhile,
                                const std::function<void()>& decided) {
  id_ = id;
  CKPT_TRY(get_ready(meanwhile));
  CKPT_TRY(all_stand());
  decided_ = true;
  swap_hosts();
  decided();
  swap_hosts();
  CKPT_TRY(end_old());
  for (size_t i = 0; i < crew_.hosts().size(); ++i) {
    if (goes(i)) continue;
    crew_.tell(static_cast<int>(i),
               {{"say", "reconnect"}, {"id", id_}, {"cookie", cookie_of(i)}, {"table", starts_->table()}});
  }
  if (auto all = hear(words(step("reconnected"), {}), kReconnectNs, {}); !all.ok()) return all.error();
  has_moved_ = true;
  return {};
}

// Until all connections are there, beside the old ones, and all processes of the part on the new host.
Result<void> MovingInPlace::get_ready(const std::function<Result<void>()>& meanwhile) {
  auto starts = PartStarts::prepare(crew_, path_, manifest_, run_, parts_);
  if (!starts.ok()) return starts.error();
  starts_ = std::move(*starts);
  for (size_t i = 0; i < manifest_.parts.size(); ++i) {
    const auto& part = manifest_.parts[i];
    if (goes(i)) continue;
    crew_.tell(static_cast<int>(i), {{"say", "back"},
                                     {"plan",
                                      {{"id", number_},
                                       {"host", part.host},
                                       {"part", part.directory},
                                       {"checksum", part.checksum},
                                       {"connections", Json::array()},
                                       {"cookie", cookie_of(i)},
                                       {"lost", starts_->plan(i, starts_->connections_of(parts_))}}}});
  }
  // First those that stay: what cannot be done is found before anything is started.
  if (auto all = hear(words(step("prepared"), {}), kPartNs, meanwhile); !all.ok()) {
    takes_restart_ = all.error().code == ExitCode::kUnsupported;
    return all.error();
  }
  for (const int part : parts_) crew_.tell(part, starts_->of(static_cast<size_t>(part)));
  tell_others({{"say", "back_go"}, {"step", "prepared"}});
  if (auto all = hear(words(step("listening"), {"listening"}), kPartNs, meanwhile); !all.ok())
    return all.error();
  tell_others({{"say", "back_go"}, {"step", "listening"}});
  tell_new({{"say", "connect"}});
  auto all = hear(words(step("ready"), {"ready"}), kPartNs, meanwhile);
  return all.ok() ? Result<void>() : all.error();
}

Result<void> MovingInPlace::all_stand() {
  const Json question{{"say", "stands"}, {"id", id_}};
  tell_others(question);
  there_.tell_all(question);
  const AwaitedWord word{"stands", "", id_};
  auto others = HearEach{crew_, kStandNs}.hear(words(word, {}));
  if (!others.ok()) return others.error();
  CKPT_TRY(all_say_yes(crew_, *others, "its processes do not stand any more"));
  auto old = HearEach{there_, kStandNs}.hear(std::vector<AwaitedWord>(parts_.size(), word));
  if (!old.ok()) return old.error();
  return all_say_yes(there_, *old, "its processes do not stand any more");
}

Result<void> MovingInPlace::end_old() {
  there_.tell_all({{"say", "end_here"}, {"id", id_}});
  const AwaitedWord word{"gone", "", id_, true};
  auto gone = HearEach{there_, kStandNs}.hear(std::vector<AwaitedWord>(parts_.size(), word));
  if (!gone.ok()) return gone.error();
  CKPT_TRY(all_say_yes(there_, *gone, "its processes could not be ended"));
  old_has_ended_ = true;
  return {};
}

Result<void> MovingInPlace::end_all() {
  crew_.tell_all({{"say", "back_end"}, {"id", number_}});
  const AwaitedWord word{"gone", "", number_, true}, nothing{"", "", 0, true};
  // Processes on the new host have never run: where its agent is gone, nobody lets them.
  auto awaited = words(word, word);
  for (const int part : parts_) {
    if (!crew_.hosts()[static_cast<size_t>(part)].link.valid()) awaited[static_cast<size_t>(part)] = nothing;
  }
  auto gone = HearEach{crew_, kStandNs}.hear(awaited);
  return gone.ok() ? all_say_yes(crew_, *gone, "its processes could not be ended") : gone.error();
}

Result<void> MovingInPlace::release() {
  tell_new({{"say", "go"}});
  auto runs = HearEach{crew_, kPartNs}.hear(words({"", "", 0, true}, {"started"}));
  return runs.ok() ? Result<void>() : runs.error();
}

}  // namespace ckpt::cli
