// ckpt keeper-exchange: makes the checks of this host's part with the keepers of the other hosts, or computes
// what was lost.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <memory>

#include "base/checks/named_points.h"
#include "cli/keeper/exchange_process.h"
#include "cli/keeper/part_files.h"
#include "cli/keeper/part_words.h"
#include "cli/text/failure.h"
#include "cluster/keeper/exchange.h"
#include "cluster/keeper/low_priority.h"
#include "image/format/keeper_client.h"
#include "image/read/manifest.h"
#include "job/directory/job_directory.h"

namespace ckpt::cli {

namespace {

constexpr uint64_t kChecksHead = 4096;  // bytes, of a file of checks: what it is, as JSON
constexpr int kPatienceMs = 60'000;
constexpr int kOthersMs = 3'600'000;  // another host may have less time for it

std::string hex_sum(uint64_t sum) { return fmt::format("{:016x}", sum); }

Error damaged(const std::string& what) {
  return failure(ExitCode::kImageDamaged, what, "is not what this checkpoint has there",
                 "use an older checkpoint");
}

Error cannot(const std::string& what) {
  const int error = errno;
  Error e = failure(ExitCode::kIo, what, fmt::format("cannot be written ({})", errno_name(error)),
                    error == ENOSPC ? "start the keeper with more --memory" : "see ckpt keeper status");
  e.sys_errno = error;
  return e;
}

// As where there is no room: another host may have a place for it.
Error is_another(const std::string& part) {
  Error e = failure(ExitCode::kUnavailable, part, "is here already, and is another job's",
                    "take another host, or end that job's keeper");
  e.sys_errno = EEXIST;
  return e;
}

// False: errno says why.
bool write_head(const ScopedFd& file, const std::string& text) {
  const ssize_t n = write(file.get(), text.data(), text.size());
  if (n >= 0 && n != static_cast<ssize_t>(text.size())) errno = ENOSPC;
  return n == static_cast<ssize_t>(text.size());
}

// What is used again for the next checkpoint: connections to the other hosts' processes.
struct Connections {
  std::string name;   // the head's, of the exchange that made them; empty: there are none
  std::string hosts;  // whose
  std::unique_ptr<keeper::Mesh> mesh = std::make_unique<keeper::Mesh>();
};

class Work {
 public:
  Work(Json plan, Connections& connections) : plan_(std::move(plan)), connections_(connections) {}

  Result<Json> run() {
    self_ = plan_.at("self");
    wanted_.self = self_;
    wanted_.addresses = plan_.at("addresses").get<std::vector<std::string>>();
    wanted_.number = plan_.value("id", uint64_t{0});
    wanted_.hosts = static_cast<unsigned>(wanted_.addresses.size());
    if (self_ >= wanted_.hosts ||
        !cluster::read_secret(plan_.at("secret").get<std::string>(), wanted_.secret))
      return failure(ExitCode::kUsage, "keeper-exchange", "is started by an agent",
                     "use ckpt run --redundancy");
    auto scheme = keeper::scheme_for_hosts(plan_.at("scheme").get<std::string>(), wanted_.hosts);
    if (!scheme.ok()) return scheme.error();
    wanted_.scheme = *scheme;
    wanted_.holders = plan_.value("checks_on", std::vector<unsigned>());
    if (!keeper::are_holders(wanted_.holders, *scheme, wanted_.hosts)) return damaged("the list of hosts");
    if (plan_.contains("lost")) wanted_.lost = plan_["lost"].get<std::vector<bool>>();
    lost_ = !wanted_.lost.empty() && wanted_.lost.at(self_);
    auto part = find_part_in_keeper(plan_.at("part").get<std::string>());
    if (!part.ok()) return part.error();
    part_ = std::move(*part);
    CKPT_TRY(lost_ ? make_part() : open_part());
    CKPT_TRY(exchange());
    return finish();
  }

  // A part that was begun goes; a complete part stays.
  void tidy() {
    if (begun_.valid()) job::remove_job_directory(part_.directory.get(), temporary_of(part_.name).c_str());
  }

 private:
  // By its manifest; empty: there is none.
  std::string job_of(const std::string& part) const {
    auto manifest = read_manifest(fmt::format("/proc/self/fd/{}/{}", part_.directory.get(), part));
    return manifest.ok() ? manifest->job : "";
  }
  const Json& record() const { return plan_.at("record"); }
  bool rebuilding() const { return !wanted_.lost.empty(); }

  Result<void> open_part() {
    const int at = part_.directory.get();
    const ScopedFd inside(openat(at, part_.name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!inside.valid()) return damaged(part_.name);
    if (!rebuilding()) {
      remove_stale_checks(at);
      CKPT_TRY(open_with_words(inside.get()));
      return make_checks();
    }
    const std::vector<keeper::PartFile> files = files_of_record();
    if (has_words(files)) {
      words_.reset(openat(at, words_of_part(part_.name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      if (!words_.valid()) return damaged(words_of_part(part_.name));
    }
    auto stream = keeper::PartStream::open(inside.get());
    if (!stream.ok()) return stream.error();
    CKPT_TRY(stream->set_words(with_words(files), words()));
    stream_ = std::make_unique<keeper::PartStream>(std::move(*stream));
    // Nothing that is stale or mixed goes into a computation.
    auto sum = stream_->checksum();
    if (!sum.ok()) return sum.error();
    if (hex_sum(*sum) != record().at("sum")) return damaged(part_.name);
    checks_.reset(openat(at, checks_of(part_.name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!checks_.valid()) return damaged(checks_of(part_.name));
    auto of_checks = keeper::checksum_of(checks_.get());
    if (!of_checks.ok()) return of_checks.error();
    return hex_sum(*of_checks) == record().at("checks") ? Result<void>() : damaged(checks_of(part_.name));
  }

  Result<void> make_part() {
    // This host has had a part of that name before: an older one of this job, or another job's.
    const std::string job = job_of(part_.name);
    if (!job.empty() && !plan_.value("job", "").starts_with(job)) return is_another(part_.name);
    auto begun = begin_part(part_.directory.get(), part_.name);
    if (!begun.ok()) return begun.error();
    begun_ = std::move(*begun);
    std::vector<keeper::PartFile> files = files_of_record();
    if (has_words(files)) CKPT_TRY(begin_words());
    auto stream = keeper::PartStream::create(begun_.get(), std::move(files), words());
    if (!stream.ok()) return stream.error();
    stream_ = std::make_unique<keeper::PartStream>(std::move(*stream));
    return make_checks();
  }

  std::vector<keeper::PartFile> files_of_record() const {
    std::vector<keeper::PartFile> files;
    for (const auto& f : record().at("files")) {
      files.push_back({f.at(0), f.at(1)});
      if (f.size() < 6) continue;  // older ones have no more
      files.back().mode = f.at(2).get<uint32_t>() & 07777;
      files.back().modified_ns = f.at(3);
      files.back().user = f.at(4);
      files.back().group = f.at(5);
      if (f.size() < 8) continue;
      files.back().words = f.at(6);
      files.back().sum = f.at(7);
    }
    return files;
  }
  static bool has_words(const std::vector<keeper::PartFile>& files) { return !with_words(files).empty(); }
  static std::vector<keeper::PartFile> with_words(std::vector<keeper::PartFile> files) {
    std::erase_if(files, [](const keeper::PartFile& f) { return f.words == 0; });
    return files;
  }
  keeper::PartWords words() const { return {words_.get(), kChecksHead}; }
  // Its name in this keeper.
  std::string ground() const {
    const std::string part = plan_.value("ground", "");
    return part.substr(part.rfind('/') + 1);
  }

  Result<void> begin_words() {
    words_ = open_nameless(part_.directory.get());
    const std::string text = Json{{"part", part_.name}}.dump() + "\n";
    return words_.valid() && write_head(words_, text) ? Result<void>() : cannot(words_of_part(part_.name));
  }

  // Is there room for the checks, beside the differences already written?
  bool has_room_for(const keeper::PartStream& plain, const std::vector<keeper::PartFile>& made) const {
    struct statvfs fs;
    if (!wanted_.holders.empty() || fstatvfs(words_.get(), &fs) != 0) return true;
    uint64_t differences = 0, stream = plain.bytes();
    for (const keeper::PartFile& file : made) {
      differences += file.words;
      stream -= file.bytes - file.words;
    }
    const auto checks = [this](uint64_t bytes) {
      return bytes / wanted_.scheme.data * wanted_.scheme.checks;
    };
    const uint64_t free = fs.f_bavail * fs.f_frsize;
    return free >= checks(stream) || free + differences < checks(plain.bytes());
  }

  // Increments as differences, where these are shorter and the keeper has room for them.
  Result<void> open_with_words(int inside) {
    auto stream = keeper::PartStream::open(inside);
    if (!stream.ok()) return stream.error();
    if (plan_.value("words", true)) {
      std::vector<keeper::PartFile> made;
      if (begin_words().ok()) made = make_part_words(part_, *stream, words(), ground());
      if (!made.empty() && has_room_for(*stream, made)) {
        CKPT_TRY(stream->set_words(made, words()));
      } else {
        words_.reset();
      }
    }
    stream_ = std::make_unique<keeper::PartStream>(std::move(*stream));
    return {};
  }

  Result<void> make_checks() {
    checks_ = open_nameless(part_.directory.get());
    Json head{
        {"scheme", plan_.at("scheme")}, {"hosts", wanted_.hosts}, {"self", self_}, {"part", part_.name}};
    // Else the head is what older binaries write, whose checks may be computed again.
    if (!wanted_.holders.empty()) head["checks_on"] = wanted_.holders;
    std::string text = head.dump() + "\n";
    text.resize(kChecksHead, '\0');
    return checks_.valid() && write_head(checks_, text) ? Result<void>() : cannot(checks_of(part_.name));
  }

  Result<void> exchange() {
    const std::string hosts = fmt::format("{} {}", self_, plan_.at("addresses").dump());
    const bool connected = connections_.hosts == hosts && connections_.mesh->whole();
    // Ready for both: the head says whether all still have the same connections.
    auto anew = std::make_unique<keeper::Mesh>();
    auto port = anew->listen(wanted_.addresses[self_]);
    if (!port.ok()) return port.error();
    Json here{{"say", "port"},
              {"port", *port},
              {"connected", connected ? connections_.name : ""},
              {"bytes", stream_->bytes()},
              {"held", stream_->bytes_of_files()},
              {"files", Json::array()}};
    for (const keeper::PartFile& f : stream_->files())
      here["files"].push_back({f.name, f.bytes, f.mode, f.modified_ns, f.user, f.group, f.words, f.sum});
    Json all;
    points::at("exchange.listens");
    if (!write_line(STDIN_FILENO, here) || !read_line(STDIN_FILENO, all, kOthersMs))
      return failure(ExitCode::kUnavailable, "the exchange of blocks", "the agent is gone",
                     "look at that host");
    points::at("exchange.told");
    wanted_.lengths = all.at("lengths").get<std::vector<uint64_t>>();
    const bool stays = connected && all.value("connected", "") == connections_.name;
    if (!stays) {
      wanted_.ports = all.at("ports").get<std::vector<int>>();
      connections_ = {plan_.value("connect", ""), hosts, std::move(anew)};
    }
    if ((!stays && wanted_.ports.size() != wanted_.hosts) || wanted_.lengths.size() != wanted_.hosts ||
        wanted_.lengths[self_] != stream_->bytes())
      return damaged("the list of hosts");
    exchange_ = std::make_unique<keeper::Exchange>(*connections_.mesh);
    return exchange_->run(wanted_, *stream_, checks_.get(), kChecksHead);
  }

  Result<Json> finish() {
    if (rebuilding() && !lost_) return Json{{"say", "done"}};
    const int at = part_.directory.get();
    points::at("exchange.checks");
    if (lost_) {
      auto sum = stream_->checksum();
      if (!sum.ok()) return sum.error();
      auto of_checks = keeper::checksum_of(checks_.get());
      if (!of_checks.ok()) return of_checks.error();
      if (hex_sum(*sum) != record().at("sum") || hex_sum(*of_checks) != record().at("checks"))
        return damaged("what was computed for " + part_.name);
      CKPT_TRY(write_from_part_words(part_, *stream_));
      CKPT_TRY(stream_->dress());
      const std::string temporary = temporary_of(part_.name);
      if (job_of(part_.name) != "" && job_of(part_.name) != job_of(temporary)) return is_another(part_.name);
      job::remove_job_directory(at, part_.name.c_str());
    }
    unlinkat(at, words_of_part(part_.name).c_str(), 0);
    if (has_words(stream_->files()) && !give_name(words_, at, words_of_part(part_.name)))
      return cannot(words_of_part(part_.name));
    if (!give_name(checks_, at, checks_of(part_.name))) return cannot(checks_of(part_.name));
    points::at("exchange.half");
    if (lost_ && renameat(at, temporary_of(part_.name).c_str(), at, part_.name.c_str()) != 0)
      return cannot(part_.name);
    // If the keeper has ended meanwhile, the part that it held is gone with this process.
    CKPT_TRY(check_keeper_holds(plan_.at("part").get<std::string>(), at));
    points::at("exchange.named");
    return Json{{"say", "done"},
                {"sum", hex_sum(exchange_->sum_of_stream())},
                {"checks", hex_sum(exchange_->sum_of_checks())}};
  }

  const Json plan_;
  unsigned self_ = 0;
  bool lost_ = false;
  PartInKeeper part_;
  ScopedFd checks_, words_;
  ScopedFd begun_;  // the lost part's directory
  std::unique_ptr<keeper::PartStream> stream_;
  keeper::ExchangePlan wanted_;
  Connections& connections_;
  std::unique_ptr<keeper::Exchange> exchange_;
};

}  // namespace

ExitCode run_exchange() {
  signal(SIGPIPE, SIG_IGN);
  // A descriptor for each image of the part.
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  Connections connections;
  int exchanges = 0;
  for (bool first = true;; first = false) {
    Json plan;
    if (isatty(STDIN_FILENO) != 0 || !read_line(STDIN_FILENO, plan, first ? kPatienceMs : -1)) {
      if (!first) return ExitCode::kOk;
      return report(failure(ExitCode::kUsage, "keeper-exchange", "is started by an agent",
                            "use ckpt run --redundancy"));
    }
    // Checks are made while the program computes; for what is lost the job waits. Its threads do as it does.
    const bool of_lost = plan.contains("lost");
    if (first && !of_lost) keeper::take_low_priority();
    // CKPT_TEST_POINT="POINT@hostNUMBER.N=kill": of the host of that number, from 0, in the N-th exchange of
    // this process, from 1 (an attempt that ends ahead of its exchange uses up a number of a checkpoint, not
    // this one); @lostNUMBER.N: if it computes what was lost.
    static std::string self;  // not constinit: clang makes no std::string without code
    static const int pid = getpid();
    self = fmt::format("{}{}.{}", of_lost ? "lost" : "host", plan.value("self", 0), ++exchanges);
    if (const char* point = getenv("CKPT_TEST_POINT")) points::want(point, self.c_str(), &pid);
    points::at("exchange.begun");
    Work work(plan, connections);
    Result<Json> done =
        make_error(ExitCode::kUsage, 0, "keeper-exchange: got a plan that it does not understand");
    try {
      done = work.run();
    } catch (const std::exception& e) {
      done =
          make_error(ExitCode::kUsage, 0, "keeper-exchange: got what it does not understand ({})", e.what());
    }
    if (!done.ok()) {
      work.tidy();
      write_line(STDIN_FILENO, message_of_error(done.error()));
      return done.error().code;
    }
    write_line(STDIN_FILENO, *done);
    if (of_lost) return ExitCode::kOk;
  }
}

}  // namespace ckpt::cli
