#include "cli/hosts/head/moving.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "cli/hosts/agent/this_host.h"
#include "cli/hosts/head/hear_each.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/hosts/placing.h"
#include "cli/hosts/restart/part_look.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

using DoMeanwhile = std::function<Result<void>()>;

constexpr int64_t kWordOfHostNs = 20'000'000'000;
constexpr int kLookMs = 5;  // all stand meanwhile

std::string joined(const Crew& crew) {
  std::vector<std::string> names;
  for (const CrewHost& h : const_cast<Crew&>(crew).hosts()) {
    if (std::find(names.begin(), names.end(), h.where) == names.end()) names.push_back(h.where);
  }
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

// A command that the launch command runs on a host. Keeps what it says on standard error.
class HostCommand {
 public:
  HostCommand(const std::vector<std::string>& words, int in, int out) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return;
    words_.reset(ends[0]);
    const ScopedFd theirs(ends[1]);
    fcntl(words_.get(), F_SETFL, O_NONBLOCK);
    pid_ = fork();
    if (pid_ != 0) return;
    setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    become(words, "");
  }
  ~HostCommand() {
    if (pid_ <= 0) return;
    kill(-pid_, SIGKILL);
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  HostCommand(const HostCommand&) = delete;
  HostCommand& operator=(const HostCommand&) = delete;

  bool ended() {
    char bytes[4096];
    for (ssize_t n; words_.valid() && (n = read(words_.get(), bytes, sizeof(bytes))) > 0;)
      said_.append(bytes, static_cast<size_t>(n));
    int status = 0;
    if (pid_ > 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
      pid_ = 0;
      status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      return ended();  // what it has said last
    }
    return pid_ <= 0;
  }
  int status() const { return status_; }
  // Its last line, without the name of the command that said it.
  std::string last_words() const {
    size_t end = said_.find_last_not_of("\n");
    if (end == std::string::npos) return fmt::format("ended with {}", status_);
    const size_t begin = said_.rfind('\n', end);
    std::string line = said_.substr(begin == std::string::npos ? 0 : begin + 1,
                                    end - (begin == std::string::npos ? -1 : begin));
    for (const char* name : {"ckpt-restart: ", "ckpt: "}) {
      if (line.starts_with(name)) line.erase(0, strlen(name));
    }
    return line;
  }

 private:
  ScopedFd words_;
  pid_t pid_ = -1;
  int status_ = 127;
  std::string said_;
};

}  // namespace

MoveWish move_wish_in(const Json& question) {
  const Json move = question.value("move", Json::object());
  if (!move.is_object()) return {};
  return {move.value("from", ""), move.value("to", ""), move.value("rank", -1)};
}

Moving::Moving(Crew& crew, const HostsRun& run, std::vector<int> parts, std::string to)
    : crew_(crew),
      launch_(run.launch),
      parts_(std::move(parts)),
      from_(crew.hosts()[static_cast<size_t>(parts_[0])].where),
      to_(std::move(to)),
      there_(
          [&] {
            std::vector<std::string> names;
            for (const int p : parts_) names.push_back(crew.hosts()[static_cast<size_t>(p)].name);
            return names;
          }(),
          std::vector<std::string>(parts_.size(), to_), run.launch, run.silence_ms, run.recover) {}

// A rank does not go alone: the launcher's daemon of its host is its parent, and ranks of a host share
// memory.
Result<std::string> Moving::host_of_rank(Crew& crew, int rank) {
  crew.tell_all({{"say", "rank"}, {"rank", rank}});
  auto all = HearEach{crew, kWordOfHostNs}.hear(std::vector<AwaitedWord>(crew.hosts().size(), {"rank"}));
  if (!all.ok()) return all.error();
  std::string found;
  for (size_t i = 0; i < all->size(); ++i) {
    const std::string& where = crew.hosts()[i].where;
    if (!(*all)[i].value("yes", false) || where == found) continue;
    if (!found.empty())
      return failure(ExitCode::kUsage, "--rank",
                     fmt::format("{} is on {} and on {}: of several programs of MPI", rank, found, where),
                     "name the host with --from");
    found = where;
  }
  if (!found.empty()) return found;
  return failure(ExitCode::kUsage, "--rank", fmt::format("no process of the job is rank {}", rank),
                 "name a host with --from");
}

Result<std::unique_ptr<Moving>> Moving::prepare(Crew& crew, const HostsRun& run, const MoveWish& wish,
                                                int asked_on) {
  auto to = split_hosts(wish.to, false);
  if (!to.ok() || to->size() != 1)
    return failure(ExitCode::kUsage, "--to", fmt::format("\"{}\" is no name of one host", wish.to),
                   "give for example --to h4");
  if (!run.keeper.empty())
    return failure(ExitCode::kUnsupported, "migrate", "images of this job are in the memory of keepers",
                   "take a checkpoint, end the job, and bring it back with ckpt-restart --hosts");
  std::vector<int> parts;
  std::string from = wish.from;
  if (wish.rank >= 0) {
    auto host = host_of_rank(crew, wish.rank);
    if (!host.ok()) return host.error();
    from = std::move(*host);
  }
  for (size_t i = 0; i < crew.hosts().size(); ++i) {
    const CrewHost& h = crew.hosts()[i];
    if (from.empty() ? static_cast<int>(i) == asked_on : h.where == from)
      parts.push_back(static_cast<int>(i));
  }
  if (parts.empty() && from.empty())
    return failure(ExitCode::kUsage, "--from", "is needed where the head of the job is asked",
                   fmt::format("name one of {}", joined(crew)));
  if (parts.empty())
    return failure(ExitCode::kUsage, "--from", fmt::format("\"{}\" has no processes of this job", from),
                   fmt::format("name one of {}", joined(crew)));
  if (crew.hosts()[static_cast<size_t>(parts[0])].where == wish.to)
    return failure(ExitCode::kUsage, "--to", fmt::format("the processes are on {} already", wish.to),
                   "name another host");
  std::unique_ptr<Moving> moving(new Moving(crew, run, std::move(parts), wish.to));
  CKPT_TRY(moving->there_.assemble());
  CKPT_TRY(moving->there_.check_alike(crew.hosts()[0]));
  return moving;
}

Result<void> Moving::bring(const std::vector<HostsManifest::Part>& parts, const DoMeanwhile& meanwhile) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const HostsManifest::Part& part = parts[static_cast<size_t>(parts_[i])];
    there_.tell(static_cast<int>(i),
                {{"say", "have"}, {"part", part.directory}, {"checksum", part.checksum}});
  }
  auto have = there_.expect_all("have", kWordOfHostNs);
  if (!have.ok()) return have.error();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const HostsManifest::Part& part = parts[static_cast<size_t>(parts_[i])];
    if (!(*have)[i].value("there", false)) CKPT_TRY(copy(part, meanwhile));
    CKPT_TRY(try_restart(part, meanwhile));
  }
  return {};
}

// Copies by the launch commands of both hosts, through the head's host: the transfer is as safe as these
// commands.
Result<void> Moving::copy(const HostsManifest::Part& part, const DoMeanwhile& meanwhile) {
  int ends[2], questions[2];
  if (pipe2(ends, O_CLOEXEC) != 0 || pipe2(questions, O_CLOEXEC) != 0)
    return failure(ExitCode::kSystem, to_, "no pipe for the part that goes there", "raise ulimit -n");
  ScopedFd in(ends[0]), out(ends[1]), asked(questions[0]), question(questions[1]);
  const ScopedFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return failure(ExitCode::kSystem, "/dev/null", strerror(errno), "look at this host");
  const std::string ckpt = own_directory() + "/ckpt";
  // The receiver's task lies in its pipe before anything that the sender sends.
  const std::string task =
      Json{{"part", part.directory}, {"checksum", part.checksum}, {"host", part.host}}.dump() + "\n";
  if (write(out.get(), task.data(), task.size()) != static_cast<ssize_t>(task.size()) ||
      write(question.get(), task.data(), task.size()) != static_cast<ssize_t>(task.size()))
    return failure(ExitCode::kSystem, to_, "a pipe takes nothing", "report it");
  question.reset();
  std::vector<std::string> send = launch_words(launch_, from()), take = launch_words(launch_, to_);
  send.insert(send.end(), {ckpt, "send-part"});
  take.insert(take.end(), {ckpt, "take-part"});
  HostCommand receiver(take, in.get(), null.get()), sender(send, asked.get(), out.get());
  in.reset();
  out.reset();
  asked.reset();
  while (!receiver.ended()) {
    (void)sender.ended();
    CKPT_TRY(meanwhile());
    (void)!poll(nullptr, 0, kLookMs);
  }
  if (receiver.status() == 0) return {};
  return make_error(static_cast<ExitCode>(receiver.status()), 0, "{}: the part of {} did not get there: {}",
                    to_, from(), receiver.last_words());
}

Result<void> Moving::try_restart(const HostsManifest::Part& part, const DoMeanwhile& meanwhile) {
  const ScopedFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return failure(ExitCode::kSystem, "/dev/null", strerror(errno), "look at this host");
  auto task = task_of_look(part.directory, {});
  if (!task.ok()) return task.error();
  HostCommand check(words_of_look(launch_, to_), task->get(), null.get());
  while (!check.ended()) {
    CKPT_TRY(meanwhile());
    (void)!poll(nullptr, 0, kLookMs);
  }
  if (check.status() == 0) return {};
  return make_error(static_cast<ExitCode>(check.status()), 0,
                    "{}: the processes of {} cannot be restarted there: {}", to_, from(), check.last_words());
}

// Waits until each host has answered `say` with yes.
Result<void> Moving::hear_from_all(const char* say, uint64_t id) {
  const AwaitedWord word{say, "", id, true};
  auto said = HearEach{crew_, kWordOfHostNs}.hear(std::vector<AwaitedWord>(crew_.hosts().size(), word));
  if (!said.ok()) return said.error();
  for (size_t i = 0; i < said->size(); ++i) {
    if (!(*said)[i].value("yes", false))
      return failure(ExitCode::kTimeout, crew_.hosts()[i].where, "its processes do not stand any more",
                     "try again");
  }
  return {};
}

Result<void> Moving::end_all(uint64_t id, const std::function<void()>& decided) {
  // The new host is there as well.
  for (size_t i = 0; i < parts_.size(); ++i) there_.tell(static_cast<int>(i), {{"say", "clock"}});
  if (auto lives = there_.expect_all("clock", kWordOfHostNs); !lives.ok()) return lives.error();
  crew_.tell_all({{"say", "stands"}, {"id", id}});
  CKPT_TRY(hear_from_all("stands", id));
  decided();
  crew_.tell_all({{"say", "end_here"}, {"id", id}});
  return hear_from_all("gone", id);
}

}  // namespace ckpt::cli
