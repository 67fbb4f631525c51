#include "restart/job/shared_things.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/memory/bytes.h"
#include "image/format/records/terminal_records.h"
#include "restart/descriptors/builder.h"
#include "restart/descriptors/saved_mappings.h"
#include "restart/plan/shared_objects.h"
#include "restart/plan/system_v.h"

namespace ckpt {
namespace {

struct FileOfMember {
  size_t member;
  uint32_t open_file;
  auto operator<=>(const FileOfMember&) const = default;
};

bool is_socket(const ParsedOpenFile& f) {
  return kind_of(f) == OpenFileKind::kSocketPair || kind_of(f) == OpenFileKind::kSocket ||
         kind_of(f) == OpenFileKind::kConnection;
}

// Of which each open file must be made from the same thing.
bool has_object(const ParsedOpenFile& f) {
  switch (kind_of(f)) {
    case OpenFileKind::kPipe:
    case OpenFileKind::kFifo:
    case OpenFileKind::kMemfd:
    case OpenFileKind::kMessageQueue:
      return true;
    case OpenFileKind::kRegular:
    case OpenFileKind::kDirectory:
      return (f.record.flags & kOpenFileDeleted) != 0;
    default:
      return false;
  }
}

// Made one after the other: directories above it, which had been removed as well, are there for so long.
bool is_removed_directory(const ParsedOpenFile& f) {
  return kind_of(f) == OpenFileKind::kDirectory && (f.record.flags & kOpenFileDeleted) != 0;
}

// Is looked at once for all members: one that is gone is put back, one that has grown is cut.
bool may_be_put_back(const ParsedOpenFile& f) {
  return kind_of(f) == OpenFileKind::kRegular || kind_of(f) == OpenFileKind::kFifo ||
         kind_of(f) == OpenFileKind::kDirectory;
}

// One description of the whole job, in the words of that of one process.
class Gatherer {
 public:
  explicit Gatherer(const JobPlan& job) : job_(job) {}

  void gather() {
    find_own_terminals();
    find_lone_pipes();
    find_lone_sockets();
    number_descriptions();
    gather_files();
    gather_memory();
    gather_contents();
    all_.process = job_.root().image->meta().process;
  }

  const ImageMeta& all() const { return all_; }
  const std::vector<std::vector<FileOfMember>>& users() const { return users_; }  // by all().open_files
  bool wanted(size_t file) const { return wanted_[file]; }
  std::map<uint64_t, int>& lone_pipes() { return lone_pipes_; }

 private:
  const ImageMeta& meta(size_t member) const { return job_.plans[member]->image->meta(); }
  size_t members() const { return job_.plans.size(); }
  bool has_image(size_t member) const { return job_.plans[member] != nullptr; }

  // The other end is neither in the job nor gone.
  void find_lone_pipes() {
    struct Pipe {
      uint32_t ends = 0;
      bool end_gone = false;
      int stream = -1;
    };
    std::map<uint64_t, Pipe> pipes;
    for (size_t m = 0; m < members(); ++m) {
      if (!has_image(m)) continue;
      for (const ParsedOpenFile& f : meta(m).open_files) {
        if (kind_of(f) != OpenFileKind::kPipe) continue;
        Pipe& pipe = pipes[f.record.object];
        const uint32_t mode = f.record.open_flags & O_ACCMODE;
        pipe.ends |= mode == O_RDONLY ? 1u : mode == O_WRONLY ? 2u : 3u;
        pipe.end_gone |= f.record.value == kPipeEndGone;
        for (const DescriptorRecord& d : meta(m).descriptors) {
          if (d.open_file == f.record.id && d.fd <= 2)
            pipe.stream = std::max(pipe.stream, d.fd == 2 ? 1 : d.fd);
        }
      }
    }
    for (const auto& [object, pipe] : pipes) {
      if (pipe.ends != 3 && !pipe.end_gone) lone_pipes_[object] = pipe.stream;
    }
  }

  void number_descriptions() {
    std::map<int, size_t> by_pid;
    for (size_t m = 0; m < members(); ++m) by_pid[job_.manifest.members[m].pid] = m;
    for (const auto& users : job_.manifest.descriptions) {
      if (users.size() < 2) continue;
      std::vector<FileOfMember> group;
      for (const ManifestUser& u : users) group.push_back({by_pid.at(u.pid), u.open_file});
      for (const FileOfMember& u : group) group_of_[u] = shared_.size();
      shared_.push_back(std::move(group));
    }
  }

  // The terminals of which a member has the master.
  void find_own_terminals() {
    for (size_t m = 0; m < members(); ++m) {
      if (!has_image(m)) continue;
      for (const ParsedOpenFile& f : meta(m).open_files) {
        if (is_terminal_master(f)) own_terminals_.insert(*terminal_number(f));
      }
    }
  }

  // N of /dev/pts/N, if that is one of them. /dev/tty is the process's own terminal.
  std::optional<uint32_t> own_terminal(size_t m, const ParsedOpenFile& f) const {
    auto number = terminal_number(f);
    if (kind_of(f) == OpenFileKind::kTerminal && f.record.rdev == makedev(5, 0))
      number = number_of_terminal(job_.manifest.members[m].terminal);
    return number && own_terminals_.count(*number) != 0 ? number : std::nullopt;
  }

  bool is_restarters(size_t m, const ParsedOpenFile& f) const {
    return (kind_of(f) == OpenFileKind::kTerminal && !own_terminal(m, f)) ||
           kind_of(f) == OpenFileKind::kStandard;
  }

  // Which objects do several processes reach, or a process and a message that waits in a socket?
  std::set<uint64_t> shared_objects(const std::set<FileOfMember>& in_flight) const {
    std::map<uint64_t, size_t> first;
    std::set<uint64_t> shared;
    auto sees = [&](uint64_t object, size_t m) {
      if (object == 0) return;
      const auto [it, fresh] = first.emplace(object, m);
      if (!fresh && it->second != m) shared.insert(object);
    };
    for (size_t m = 0; m < members(); ++m) {
      if (!has_image(m)) continue;
      for (const ParsedOpenFile& f : meta(m).open_files) {
        if (!has_object(f)) continue;
        sees(f.record.object, m);
      }
      for (const ParsedMapping& p : meta(m).mappings) sees(p.record.object, m);
    }
    // The end of a pipe that waits is made here, so the other end is as well.
    for (const FileOfMember& file : in_flight) {
      const ParsedOpenFile* f = meta(file.member).open_file(file.open_file);
      if (f != nullptr && has_object(*f) && f->record.object != 0) shared.insert(f->record.object);
    }
    return shared;
  }

  // Sent through a socket and not received yet: made here, where the sockets are filled.
  std::set<FileOfMember> files_in_flight() const {
    std::set<FileOfMember> files;
    for (size_t m = 0; m < members(); ++m) {
      if (!has_image(m)) continue;
      for (const ParsedOpenFile& f : meta(m).open_files) {
        for_each_detail<SocketMessageDetail>(f, OpenFileDetail::kSocketMessage,
                                             [&](const SocketMessageDetail& d, Blob rest) {
                                               ByteReader reader(rest);
                                               reader.take((size_t{d.address_len} + 3) & ~size_t{3});
                                               for (uint32_t i = 0; i < d.file_count && reader.ok(); ++i)
                                                 files.insert({m, reader.get<uint32_t>()});
                                             });
      }
    }
    return files;
  }

  // Standard streams that are sockets to the outside: the restarter's own.
  void find_lone_sockets() {
    std::set<uint64_t> here;
    for (size_t m = 0; m < members(); ++m) {
      if (!has_image(m)) continue;
      for (const ParsedOpenFile& f : meta(m).open_files) here.insert(f.record.object);
    }
    for (size_t m = 0; m < members(); ++m) {
      if (!has_image(m)) continue;
      for (const DescriptorRecord& d : meta(m).descriptors) {
        const ParsedOpenFile* f = meta(m).open_file(d.open_file);
        if (d.fd > 2 || f == nullptr || !is_socket(*f)) continue;
        for_each_detail<SocketLinkDetail>(
            *f, OpenFileDetail::kSocketLink, [&](const SocketLinkDetail& l, Blob) {
              if ((l.flags & kLinkOutside) != 0 && here.count(l.peer) == 0 && here.count(l.listener) == 0)
                lone_pipes_[f->record.object] = std::max(lone_pipes_[f->record.object], d.fd == 2 ? 1 : d.fd);
            });
      }
    }
  }

  void gather_files() {
    const std::set<FileOfMember> in_flight = files_in_flight();
    objects_ = shared_objects(in_flight);
    std::set<size_t> done;  // of shared_
    for (size_t m = 0; m < members(); ++m) {
      if (!has_image(m)) continue;
      for (const ParsedOpenFile& f : meta(m).open_files) {
        const FileOfMember self{m, f.record.id};
        const auto group = group_of_.find(self);
        if (is_socket(f)) continue;  // the channel builder's
        const bool of_object = has_object(f) && objects_.count(f.record.object) != 0;
        // A file about a process (a pidfd, /proc/PID) is made when all processes are there: by each that had
        // it, and for the messages in which it waits (LateMessages).
        const bool about_process = is_about_process(f);
        const bool shared = group != group_of_.end() && !about_process;
        if (shared && !done.insert(group->second).second) continue;
        // Each process takes the files of ckpt-restart itself on its own.
        const bool terminal = own_terminal(m, f).has_value();
        const bool wanted = !is_restarters(m, f) && lone_pipes_.count(f.record.object) == 0 &&
                            (shared || of_object || terminal || is_removed_directory(f) ||
                             (in_flight.count(self) != 0 && !about_process));
        if (!wanted && !may_be_put_back(f)) continue;
        add_file(m, f, shared ? shared_[group->second] : std::vector<FileOfMember>{self}, wanted);
      }
    }
  }

  bool has_descriptor(const FileOfMember& user) const {
    const auto& all = meta(user.member).descriptors;
    return std::any_of(all.begin(), all.end(),
                       [&](const DescriptorRecord& d) { return d.open_file == user.open_file; });
  }

  // Of an epoll: 0: the member has no descriptor of it; else how many watches are on files that it has, and
  // one more.
  size_t count_reachable(const FileOfMember& user) const {
    const ParsedOpenFile* file = meta(user.member).open_file(user.open_file);
    if (file == nullptr || !has_descriptor(user)) return 0;
    std::set<int> numbers;
    for (const DescriptorRecord& d : meta(user.member).descriptors) numbers.insert(d.fd);
    size_t count = 1;
    for_each_detail<EpollWatchDetail>(*file, OpenFileDetail::kEpollWatch,
                                      [&](const EpollWatchDetail& w, Blob) { count += numbers.count(w.fd); });
    for_each_detail<MovedWatchDetail>(*file, OpenFileDetail::kMovedWatch,
                                      [&](const MovedWatchDetail&, Blob) { ++count; });
    return count;
  }

  // The member that makes it: one with a descriptor, for it may wait in a socket of others; an epoll the one
  // that has most of what it watches.
  std::vector<FileOfMember>::iterator maker_of(const ParsedOpenFile& f,
                                               std::vector<FileOfMember>& users) const {
    if (kind_of(f) != OpenFileKind::kEpoll) {
      const auto first = std::find_if(users.begin(), users.end(),
                                      [this](const FileOfMember& user) { return has_descriptor(user); });
      return first == users.end() ? users.begin() : first;
    }
    std::vector<size_t> counts;
    for (const FileOfMember& user : users) counts.push_back(count_reachable(user));
    return users.begin() + (std::max_element(counts.begin(), counts.end()) - counts.begin());
  }

  void add_file(size_t m, const ParsedOpenFile& f, std::vector<FileOfMember> users, bool wanted) {
    ParsedOpenFile copy = f;
    copy.record.id = static_cast<uint32_t>(all_.open_files.size() + 1);
    if (const auto number = own_terminal(m, f); number && !is_terminal_master(f))
      copy.record.rdev = makedev(kTerminalSlaveMajor, *number);
    const auto maker = maker_of(f, users);
    std::rotate(users.begin(), maker, maker + 1);
    // In this member it may wait in a socket.
    const FileOfMember self{m, f.record.id};
    const FileOfMember& numbered = has_descriptor(self) ? self : users.front();
    for (const DescriptorRecord& d : meta(numbered.member).descriptors) {
      if (d.open_file != numbered.open_file) continue;
      DescriptorRecord number = d;
      number.open_file = copy.record.id;
      all_.descriptors.push_back(number);
      break;
    }
    all_.open_files.push_back(copy);
    users_.push_back(std::move(users));
    wanted_.push_back(wanted);
  }

  // A memory file that one member alone reaches it makes itself: its descriptor has what is mapped nowhere.
  void gather_memory() {
    for (size_t m = 0; m < members(); ++m) {
      if (!has_image(m)) continue;
      for (const ParsedMapping& p : meta(m).mappings) {
        const auto kind = static_cast<MappingKind>(p.record.kind);
        const bool is_file = kind == MappingKind::kMemfd || kind == MappingKind::kFileShared;
        if (!is_file || objects_.count(p.record.object) != 0) all_.mappings.push_back(p);
      }
    }
  }

  // The contents of each object once: those of its owner, else of the first member that has any.
  void gather_contents() {
    std::map<uint64_t, size_t> owner;
    for (const auto& [object, pid] : job_.manifest.owners) {
      for (size_t m = 0; m < members(); ++m) {
        if (job_.manifest.members[m].pid == pid) owner.emplace(object, m);
      }
    }
    for (bool of_descriptor : {false, true}) {
      std::map<uint64_t, size_t> taken = owner;
      for (size_t m = 0; m < members(); ++m) {
        if (!has_image(m)) continue;
        for (const ParsedFileContent& c : meta(m).contents) {
          if (c.record.object == kVdsoContentObject || (c.record.open_file != 0) != of_descriptor) continue;
          if (taken.emplace(c.record.object, m).first->second == m) all_.contents.push_back(c);
        }
      }
    }
  }

  const JobPlan& job_;
  ImageMeta all_{};
  std::vector<std::vector<FileOfMember>> shared_;
  std::map<FileOfMember, size_t> group_of_;  // in shared_
  std::vector<std::vector<FileOfMember>> users_;
  std::vector<bool> wanted_;
  std::set<uint64_t> objects_;  // shared_objects()
  std::set<uint32_t> own_terminals_;
  std::map<uint64_t, int> lone_pipes_;
};

Result<void> make_memory(const ImageMeta& all, WorkingFds& working, ReportChannel& report,
                         SharedThings& things) {
  SharedObjects objects(all);
  void* at = nullptr;
  if (objects.view_bytes() != 0) {
    at = mmap(nullptr, objects.view_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
      return make_error(ExitCode::kSystem, errno, "no address space for {} bytes of shared memory ({})",
                        objects.view_bytes(), errno_name(errno));
    }
  }
  CKPT_TRY(objects.make(reinterpret_cast<uint64_t>(at), working, report));
  things.views = objects.views();
  things.mapped_objects = objects.numbers();
  return {};
}

}  // namespace

Result<SharedThings> make_shared_things(const JobPlan& job, WorkingFds& working, ReportChannel& report) {
  SharedThings things;
  things.files.resize(job.plans.size());
  Gatherer gatherer(job);
  gatherer.gather();
  const ImageMeta& all = gatherer.all();

  DescriptorOptions options;
  options.working = &working;
  options.image_directory = job.root().image_directory;
  options.sequence = job.manifest.sequence;
  options.taken_ns = job.manifest.time_ns;
  options.saved_files = saved_files_of(*job.root().image, job.root().image_directory);
  options.say = [&report](std::string_view line) { report.note(line); };
  options.say_at_once = [&report](std::string_view line) { report.note(line, true); };
  options.watch_later = true;  // by the first that has it
  DescriptorBuilder builder(all, options);
  CKPT_TRY(builder.set_aside_journals());
  CKPT_TRY(builder.put_back_files());
  // Each belongs to the user of a process that had it.
  const SavedMappings kept{options.saved_files, job.root().shared};
  for (const auto& plan : job.plans) {
    if (plan == nullptr) continue;
    put_back_mapped_files(plan->image->meta(), kept, options.say);
  }
  for (const Filled filled : {Filled::kNow, Filled::kByMapping}) {
    for (const auto& plan : job.plans) {
      if (plan != nullptr) CKPT_TRY(make_returning_files(*plan->image, filled, options.say));
    }
  }
  CKPT_TRY(builder.put_back_changes());
  CKPT_TRY(builder.cut_grown_files());
  builder.make_journals();
  // A terminal's other ends are opened by its name.
  std::vector<size_t> order(all.open_files.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_partition(order.begin(), order.end(),
                        [&](size_t i) { return is_terminal_master(all.open_files[i]); });
  for (size_t i : order) {
    if (!gatherer.wanted(i)) continue;
    auto made = builder.make(all.open_files[i]);
    if (!made.ok()) return made.error();
    auto up = working.park(std::move(*made), "an open file of the job");
    if (!up.ok()) return up.error();
    // A session leader whose terminal this was takes it by this descriptor.
    if (const auto number = terminal_number(all.open_files[i]);
        number && !is_terminal_master(all.open_files[i]))
      things.terminals.emplace(*number, *up);
    bool first = true;
    for (const FileOfMember& user : gatherer.users()[i]) {
      things.files[user.member].emplace(user.open_file, InheritedFile{*up, first});
      first = false;
    }
  }
  // Connections between members are real ones again, each made once.
  auto channels = std::make_unique<ChannelBuilder>(&working, options.say, options.say_at_once);
  for (size_t m = 0; m < job.plans.size(); ++m) {
    if (job.plans[m] != nullptr)
      channels->add(static_cast<int>(m), job.plans[m]->image->meta(), gatherer.lone_pipes());
  }
  CKPT_TRY(channels->connect());
  const bool has_late = channels->put_off([&](int member, uint32_t id) {
    const ParsedOpenFile* file = job.plans[static_cast<size_t>(member)]->image->meta().open_file(id);
    return file != nullptr && is_about_process(*file);
  });
  CKPT_TRY(channels->fill([&](int member, uint32_t id) -> Result<int> {
    if (int socket = channels->find(member, id); socket >= 0) return socket;
    const auto& files = things.files[static_cast<size_t>(member)];
    const auto it = files.find(id);
    return it == files.end() ? -1 : it->second.fd;
  }));
  channels->for_each([&](int member, uint32_t id, int fd, bool first) {
    things.files[static_cast<size_t>(member)].emplace(id, InheritedFile{fd, first});
  });
  if (has_late) {
    things.late = std::make_unique<LateMessages>(job, working, options.say, std::move(channels));
  } else {
    channels->hand_over_sockets();
    channels->finish();
  }
  builder.finish();
  CKPT_TRY(make_memory(all, working, report, things));
  std::vector<const ImageMeta*> members;
  for (const auto& plan : job.plans) {
    if (plan != nullptr) members.push_back(&plan->image->meta());
  }
  CKPT_TRY(put_back_system_v(members));
  things.objects = working.objects();
  things.lone_pipes = std::move(gatherer.lone_pipes());
  return things;
}

}  // namespace ckpt
