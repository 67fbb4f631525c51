// ckpt gather: brings the parts of a checkpoint over several hosts together in one directory.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "base/protocol/keeper_protocol.h"
#include "cli/gather/commands.h"
#include "cli/gather/part_stream.h"
#include "cli/hosts/agent/this_host.h"
#include "cli/hosts/job/hosts_manifest.h"
#include "cli/hosts/job/hosts_run.h"
#include "cli/starting/run_command.h"
#include "cli/text/failure.h"
#include "cli/text/human.h"
#include "cli/text/json_lines.h"
#include "cli/text/text_out.h"
#include "job/format/job_name.h"

namespace ckpt::cli {

namespace {

struct GatherOptions {
  std::string checkpoint, to, hosts, launch = kDefaultLaunch;
  bool json = false;
};

std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// Images in it are started as programs: it is the user's alone.
Result<std::string> own_directory_at(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return failure(ExitCode::kCannotCreate, path, fmt::format("cannot be created: {}", strerror(errno)),
                   "name a directory in one that is there");
  struct stat st;
  if (stat(path.c_str(), &st) != 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid() ||
      (st.st_mode & 022) != 0)
    return failure(ExitCode::kPermission, path, "is no directory of yours alone",
                   "chmod go-w it, or name another");
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), free);
  if (real == nullptr) return failure(ExitCode::kSystem, path, strerror(errno), "name another");
  return std::string(real.get());
}

// The words on that host, with their standard output here. The path of the part goes over standard input: no
// shell there takes it apart.
Result<void> fetch(const std::vector<std::string>& words, const HostsManifest::Part& part,
                   const std::string& to, uint64_t* bytes) {
  int ends[2], questions[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return failure(ExitCode::kSystem, part.host, "no pipe", "raise ulimit -n");
  ScopedFd in(ends[0]), out(ends[1]);
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, questions) != 0)
    return failure(ExitCode::kSystem, part.host, "no socket", "raise ulimit -n");
  ScopedFd question(questions[0]), asked(questions[1]);
  const pid_t child = fork();
  if (child == 0) {
    dup2(questions[1], STDIN_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    become(words);
  }
  out.reset();
  asked.reset();
  if (child < 0) return failure(ExitCode::kSystem, part.host, "no process for it", "raise ulimit -u");
  (void)!write_line(question.get(), {{"part", part.directory}});  // who is gone sends nothing
  question.reset();
  auto received = receive_part(in.get(), to, part.directory.substr(part.directory.rfind('/') + 1),
                               part.checksum, part.host, bytes);
  in.reset();  // it ends if it has more to say
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return received;
}

// Standard input says which part, and then has it as a stream. The part goes to the path that it had on the
// host it comes from.
Result<void> take_part() {
  Json task;
  if (isatty(STDIN_FILENO) != 0 || !read_line(STDIN_FILENO, task, 10'000))
    return failure(ExitCode::kUsage, "take-part", "is started by ckpt migrate", "use that");
  const std::string part = task.value("part", ""), directory = parent_of(part);
  if (part.size() < 2 || part[0] != '/')
    return failure(ExitCode::kUsage, "take-part", "got no path of a part", "report it");
  for (size_t at = directory.find('/', 1); at != std::string::npos; at = directory.find('/', at + 1))
    mkdir(directory.substr(0, at).c_str(), 0700);
  auto own = own_directory_at(directory);
  if (!own.ok()) return own.error();
  uint64_t bytes = 0;
  return receive_part(STDIN_FILENO, *own, part.substr(directory.size() + 1), task.value("checksum", ""),
                      task.value("host", ""), &bytes);
}

Result<void> gather(const GatherOptions& o) {
  std::string path;
  auto manifest = read_hosts_checkpoint(o.checkpoint, &path);
  if (!manifest.ok()) return manifest.error();
  std::vector<std::string> where;
  for (const auto& p : manifest->parts) where.push_back(p.host);
  if (!o.hosts.empty()) {
    auto named = split_hosts(o.hosts, true);
    if (!named.ok()) return named.error();
    if (named->size() != where.size())
      return failure(ExitCode::kUsage, "--hosts",
                     fmt::format("names {} hosts, the checkpoint has {} parts", named->size(), where.size()),
                     "name the host of each part, in the order of the job's hosts");
    where = std::move(*named);
  }
  for (const auto& p : manifest->parts) {
    if (keeper_part(p.directory) != 0)
      return failure(ExitCode::kUnsupported, p.host, "its part is in the memory of a keeper",
                     "ckpt-restart --hosts brings the job back from there");
  }
  auto to = own_directory_at(o.to.empty() ? parent_of(path) : o.to);
  if (!to.ok()) return to.error();
  uint64_t bytes = 0, fetched = 0;
  for (size_t i = 0; i < manifest->parts.size(); ++i) {
    auto& part = manifest->parts[i];
    const std::string name = part.directory.substr(part.directory.rfind('/') + 1);
    auto directory = own_directory_at(*to + "/" + part.host);
    if (!directory.ok()) return directory.error();
    const std::string there = *directory + "/" + name;
    if (checksum_of_file(there + "/" + job::kManifestName) != part.checksum) {
      // In a directory that hosts share it can be read here.
      const bool here = checksum_of_file(part.directory + "/" + job::kManifestName) == part.checksum;
      std::vector<std::string> words;
      if (!here) words = launch_words(o.launch, where[i]);
      words.push_back(own_directory() + "/ckpt");
      words.push_back("send-part");
      CKPT_TRY(fetch(words, part, *directory, &bytes));
      ++fetched;
    }
    part.directory = there;
  }
  const std::string file = fmt::format("{}/{}.{:06}{}", *to, manifest->name, manifest->id, kHostsSuffix);
  if (auto other = read_hosts_manifest(file); other.ok() && other->job != manifest->job)
    return failure(ExitCode::kCannotCreate, file, "is a checkpoint of another job", "name another directory");
  CKPT_TRY(write_hosts_manifest(*to, *manifest));
  if (o.json) {
    print_json(
        {{"checkpoint", file}, {"parts", manifest->parts.size()}, {"fetched", fetched}, {"bytes", bytes}});
  } else {
    fmt::print("{}: {}, {} of them brought here ({})\n", printable(file),
               plural(manifest->parts.size(), "part", "parts"), fetched, human_bytes(bytes));
  }
  return {};
}

}  // namespace

void add_gather(CLI::App& app, ExitCode& exit) {
  CLI::App* command = app.add_subcommand(
      "gather", "bring the parts of a checkpoint over several hosts together in one directory");
  auto o = std::make_shared<GatherOptions>();
  command->add_option("CHECKPOINT", o->checkpoint, "the job's directory of images, or a .hosts file in it")
      ->required();
  command->add_option("TO", o->to, "where they go: TO/HOST/PART (default: beside the .hosts file)");
  command->add_option(
      "--hosts", o->hosts,
      "h1,h2,h3: where each part is now, in the order of the job's hosts (default: by their names)");
  command->add_option(
      "--launch", o->launch,
      "how a command is started there; {host} is the host (default: ssh -o BatchMode=yes {host})");
  command->add_flag("--json", o->json, "print what was brought as JSON");
  command->footer(
      "Exit codes: 0 all are here, 64 wrong arguments, 65 a part is damaged or another, 66 no such "
      "checkpoint or part,\n"
      "69 a host is not there, or its stream ended, 73 no directory, 74 read or write error, 77 not yours "
      "alone, 78 in a\n"
      "keeper's memory.");
  command->callback([o, &exit] {
    signal(SIGPIPE, SIG_IGN);
    auto done = gather(*o);
    exit = done.ok() ? ExitCode::kOk : report(done.error());
  });

  // Started by ckpt migrate on the host to which a part goes: not for users.
  CLI::App* take = app.add_subcommand("take-part", "of ckpt migrate, on the new host")->group("");
  take->callback([&exit] {
    auto taken = take_part();
    exit = taken.ok() ? ExitCode::kOk : report(taken.error());
  });
  // Started by both on the host that has a part: not for users.
  CLI::App* send = app.add_subcommand("send-part", "of ckpt gather, on each host")->group("");
  send->callback([o, &exit] {
    signal(SIGPIPE, SIG_IGN);
    Json task;
    const bool asked = isatty(STDIN_FILENO) == 0 && read_line(STDIN_FILENO, task, 10'000);
    auto sent =
        asked ? send_part(task.value("part", ""), STDOUT_FILENO)
              : Result<void>(failure(ExitCode::kUsage, "send-part", "is started by ckpt gather", "use that"));
    Json last{{"end", true}};
    if (!sent.ok()) {
      last = {{"code", static_cast<int>(sent.error().code)}, {"error", std::string(sent.error().message())}};
      exit = sent.error().code;
    }
    const std::string text = last.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    if (write(STDOUT_FILENO, text.data(), text.size()) < 0) exit = ExitCode::kIo;
  });
}

}  // namespace ckpt::cli
