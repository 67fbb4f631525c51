// What the head orders.
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/hosts/agent/agent.h"
#include "cli/hosts/agent/call_head.h"
#include "cli/hosts/agent/host_tables.h"
#include "cli/hosts/agent/part_check.h"
#include "cli/hosts/agent/this_host.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/users.h"
#include "cli/hosts/placing.h"
#include "cli/hosts/posts.h"
#include "cli/keeper/host_keeper.h"
#include "cli/starting/preload.h"
#include "cli/text/failure.h"
#include "job/format/job_name.h"

namespace ckpt::cli {

using cluster::Order;
using cluster::SealedLink;
using cluster::Step;

void Agent::obey(const Json& j) {
  const std::string say = j.value("say", "");
  if (say == "clock") {
    tell({{"say", "clock"}, {"ns", now_ns(CLOCK_REALTIME)}});
  } else if (say == "listen") {
    int port = 0;
    auto fd = listen_low(address_, &port);
    if (!fd.ok()) return cannot(fd.error());
    on_socket_ = std::move(*fd);
    tell({{"say", "listening"}, {"port", port}});
  } else if (say == "rank") {
    tell({{"say", "rank"}, {"yes", has_rank(j.value("rank", -1))}});
  } else if (say == "look") {
    tell({{"say", "part"}, {"ports", ports_of_part(j.value("part", ""))}});
  } else if (say == "start") {
    if (auto r = start(j); !r.ok()) cannot(r.error());
  } else if (say == "order") {
    attempt_ = j.value("attempt", 1u);
    full_ = j.value("full", false);
    stays_ = j.value("stays", false);
    leave_out_ = j.value("leave_out", "");
    cluster::AgentMachine::Actions out;
    machine_.ordered(j.value("id", uint64_t{0}), static_cast<Order>(j.value("order", 6)), out);
    act(out);
  } else if (say == "answer") {
    const auto it = askers_.find(j.value("number", 0));
    if (it == askers_.end()) return;
    write_line(it->second.get(), j);
    askers_.erase(it);
  } else if (say == "posts") {
    if (j.value("id", uint64_t{0}) == machine_.id() &&
        machine_.phase() == cluster::AgentMachine::Phase::kWorking)
      local_.tell(kStepContinue, mail_of(j));
  } else if (say == "connect" || say == "go") {
    if (restart_.valid()) (void)!write(restart_.get(), "g", 1);
  } else if (say == "wait") {
    // The head is making checks: it lives, and has not decided yet.
    if (j.value("id", uint64_t{0}) == machine_.id() && machine_.reached() == Step::kDurable &&
        deadline_ns_ != 0)
      deadline_ns_ = now_ns() + kInDoubtNs;
  } else if (say == "stands" || say == "end_here") {
    hear_of_move(say, j.value("id", uint64_t{0}));
  } else if (say == "stay") {
    give_up_parts(j.value("in", images_), job_, j.value("parts", std::vector<std::string>()));
  } else if (say == "save") {
    if (auto r = save_.begin(j["plan"]); !r.ok())
      tell(message_of_save(message_of_error(r.error()), save_.id()));
  } else if (say == "have") {
    tell(has_part(j));
  } else if (say == "exchange") {
    if (auto r = exchange_.begin(j["plan"]); !r.ok())
      tell(message_of_exchange(message_of_error(r.error()), exchange_.id()));
  } else if (say == "exchange_go") {
    exchange_.go(j);
  } else if (say == "exchange_end") {
    exchange_.end();
  } else if (say == "back") {
    if (auto r = begin_back(j); !r.ok()) tell(message_of_back(message_of_error(r.error()), back_.id()));
  } else if (say == "reconnect") {
    if (auto r = reconnect(j); !r.ok()) tell(message_of_back(message_of_error(r.error()), back_.id()));
  } else if (say == "back_go") {
    back_.go({{"step", j.value("step", "")}});
  } else if (say == "back_stop") {
    back_.end();
  } else if (say == "back_end") {
    end_half_way(j.value("id", uint64_t{0}));
  } else if (say == "end") {
    done_ = true;
    ends_at_once_ = j.value("at_once", false);
    if (j.contains("parts")) stay_ = j["parts"].get<std::vector<std::string>>();
  }
}

// This host's processes go back in place, with those of other hosts. With a table: a host has died, and
// another one has its processes.
Result<void> Agent::begin_back(const Json& order) {
  Json plan = order["plan"];
  plan["keeps_callers"] = job_ + ":" + task_.value("host", "");
  plan["first"] = root_ > 0 ? root_ : child_;
  const ReachedPart part = reach_part(plan.value("part", ""));
  const bool there = checksum_of_file(part.path + "/" + job::kManifestName) == plan.value("checksum", "");
  CKPT_TRY(back_.begin(plan));
  if (there && order.contains("table")) {
    Json table = order["table"];
    table["own"] = task_.value("host", "");
    table["job"] = job_;
    auto written = write_host_tables(directory_, std::move(table), images_);
    if (!written.ok()) back_.end();
    return written;
  }
  if (there) return {};
  back_.end();
  return failure(ExitCode::kImageDamaged, plan.value("part", ""),
                 "is missing here, or is not the part that belongs to this checkpoint",
                 "name another checkpoint");
}

// Some of the job are as they were then, and some as they are now: none runs on.
void Agent::end_half_way(uint64_t id) {
  const bool gone = end_descendants_standing(warden_.own_processes());
  back_.end();
  done_ = gone;
  tell({{"say", "gone"}, {"id", id}, {"yes", gone}});
}

// Threads stand behind this checkpoint, which waits for the head's word.
bool Agent::stands_behind(uint64_t id) const {
  return id == machine_.id() && stays_ && machine_.reached() == Step::kDurable &&
         machine_.phase() == cluster::AgentMachine::Phase::kWaiting;
}

// Another host was left, where nothing of the job runs any more. This host's processes take their new
// sockets, and go on when the head says that the checkpoint counts: no time-out lets them go on before, but
// the loss of the head.
Result<void> Agent::reconnect(const Json& order) {
  if (!stands_behind(order.value("id", uint64_t{0})))
    return failure(ExitCode::kTimeout, "agent", "its processes do not stand any more", "try again");
  Json table = order["table"];
  table["own"] = task_.value("host", "");
  table["job"] = job_;
  CKPT_TRY(write_host_tables(directory_, std::move(table), images_));
  deadline_ns_ = 0;
  const uint64_t cookie = std::strtoull(order.value("cookie", "").c_str(), nullptr, 16);
  back_.go({{"step", "ready"}});
  local_.tell(kStepReconnect, std::string(reinterpret_cast<const char*>(&cookie), sizeof(cookie)));
  return {};
}

// The job goes on elsewhere, if all of it stands everywhere: nothing runs on after the instant of the
// checkpoint.
void Agent::hear_of_move(const std::string& say, uint64_t id) {
  const bool stands = stands_behind(id);
  if (stands) deadline_ns_ = now_ns() + kInDoubtNs;
  if (say == "stands") return tell({{"say", "stands"}, {"id", id}, {"yes", stands}});
  const bool gone = stands && end_descendants_standing(warden_.own_processes());
  if (gone) {
    local_.join();
    done_ = true;
  }
  tell({{"say", "gone"}, {"id", id}, {"yes", gone}});
}

Result<void> Agent::start(const Json& j) {
  job_ = j.value("job", "");
  recovers_ = j["table"].contains("silence_ms");
  in_stop_ns_ = j["table"].value("stop_timeout_ns", in_stop_ns_) / 4 * 3;
  const std::string directory = j.value("directory", "");
  const std::string cwd = bytes_in(j.value("cwd", Json("/")));
  if (chdir(cwd.c_str()) != 0 && chdir("/") != 0)
    return failure(ExitCode::kSystem, cwd, "cannot be entered", "make it");
  CKPT_TRY(make_host_directory(directory));
  CKPT_TRY(await_other_job(directory, job_));
  directory_ = directory;  // from here on its tables are this job's
  Json table = j["table"];
  table["own"] = task_.value("host", "");
  table["job"] = job_;
  auto images = images_of_host(directory_, j);
  if (!images.ok()) return images.error();
  images_ = images->name;
  CKPT_TRY(write_host_tables(directory_, table, images_));
  setenv("CKPT_ON", (directory_ + "/" + kOnTable).c_str(), 1);
  auto users = listen_to_users(agent_socket_name(job_, task_.value("host", "")));
  if (!users.ok()) return users.error();
  users_ = std::move(*users);
  // Longer than the head's kernel may be silent here, and well ahead of the head's own patience.
  if (recovers_)
    CKPT_TRY(warden_.begin(job_, task_.value("host", ""),
                           task_.value("silence_ms", SealedLink::kSilenceMs) / 4 * 5));
  return j.contains("part") ? start_restart(j) : start_program(j);
}

Result<void> Agent::start_program(const Json& j) {
  unlink((directory_ + "/.srun-steps").c_str());  // a new job counts its steps from 0
  const std::string here = own_directory(), on = here + "/ckpt-on", self = here + "/ckpt";
  std::vector<std::string> words{self, "run", "--", on, "--serve", std::to_string(on_socket_.get())};
  if (j.contains("program")) {
    words.push_back("--");
    for (const auto& w : j["program"]) words.push_back(bytes_in(w));
  }
  set_environment(j["settings"], images_, job_, task_.value("host", ""));
  set_allocation(j.value("allocation", Json::object()));
  // Where the program starts they are those of whoever started the job; elsewhere the host's own come first.
  const Json of_user = j.value("mpi", Json::object());
  for (const auto& [name, value] : of_user.items())
    setenv(name.c_str(), bytes_in(value).c_str(), j.contains("program") ? 1 : 0);
  set_launchers(on);
  if (!spawn(words, on_socket_.get()))
    return failure(ExitCode::kSystem, self, "no process for it", "see ulimit -u");
  on_socket_.reset();
  tell({{"say", "started"}, {"pid", child_}});
  return {};
}

Result<void> Agent::start_restart(const Json& j) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return failure(ExitCode::kSystem, "agent", "no socket for ckpt-restart", "see ulimit -n");
  restart_.reset(ends[0]);
  const ScopedFd theirs(ends[1]);
  const ReachedPart part = reach_part(j.value("part", ""));
  if (checksum_of_file(part.path + "/" + job::kManifestName) != j.value("checksum", ""))
    return failure(ExitCode::kImageDamaged, j.value("part", ""),
                   "is missing here, or is not the part that belongs to this checkpoint",
                   "copy it here, or share the directory");
  if (!write_line(restart_.get(), j["plan"]))
    return failure(ExitCode::kSystem, "agent", "socket", "report it");
  std::vector<std::string> words{own_directory() + "/ckpt-restart", "--hosts-fd",
                                 std::to_string(theirs.get())};
  for (const Json& word : j.value("words", Json::array())) words.push_back(bytes_in(word));
  words.insert(words.end(), {"--", j.value("part", "")});
  if (!spawn(words, theirs.get()))
    return failure(ExitCode::kSystem, "ckpt-restart", "no process for it", "see ulimit -u");
  return {};
}

bool Agent::spawn(const std::vector<std::string>& words, int inherited_fd) {
  child_ = start_process(words, inherited_fd);
  return child_ > 0;
}

}  // namespace ckpt::cli
