#include "cli/back/descriptors/channel_plan.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>

#include "cli/back/descriptors/image_socket.h"
#include "cli/back/descriptors/waiting_messages.h"
#include "cli/text/failure.h"
#include "cli/text/text_out.h"
#include "image/format/records/terminal_records.h"
#include "restart/descriptors/builder.h"

namespace ckpt::cli {

namespace {

using Op = DescriptorDifference::Op;

constexpr const char* kRemedy = "nothing was changed; restart the job with ckpt-restart";

bool is_pipe(const ParsedOpenFile& f) {
  return kind_of(f) == OpenFileKind::kPipe || kind_of(f) == OpenFileKind::kFifo;
}
bool is_socket(const ParsedOpenFile& f) {
  return kind_of(f) == OpenFileKind::kSocketPair || kind_of(f) == OpenFileKind::kSocket ||
         kind_of(f) == OpenFileKind::kConnection;
}

SocketDetail socket_detail(const ParsedOpenFile& f) {
  SocketDetail detail{};
  for_each_detail<SocketDetail>(f, OpenFileDetail::kSocket, [&](const SocketDetail& d, Blob) { detail = d; });
  return detail;
}
SocketLinkDetail socket_link(const ParsedOpenFile& f) {
  SocketLinkDetail link{};
  for_each_detail<SocketLinkDetail>(f, OpenFileDetail::kSocketLink,
                                    [&](const SocketLinkDetail& l, Blob) { link = l; });
  return link;
}

MasterDetail master_detail(const ParsedOpenFile& f) {
  MasterDetail detail{};
  for_each_detail<MasterDetail>(f, kMasterDetail, [&](const MasterDetail& d, Blob) { detail = d; });
  return detail;
}

class ChannelPlan {
 public:
  ChannelPlan(const Manifest& manifest, std::vector<PlannedMember>& members)
      : manifest_(manifest), members_(members) {}

  Result<void> run() {
    CKPT_TRY(check_relations());
    gather();
    CKPT_TRY(check_sharing());
    CKPT_TRY(terminals());
    counters();
    for (const auto& [object, users] : users_) {
      const ParsedOpenFile& f = *users.front().file;
      if (is_pipe(f)) CKPT_TRY(refill(users));
      if (is_socket(f)) CKPT_TRY(connection(object, users));
    }
    return {};
  }

 private:
  // An open file of a member, then and now.
  struct User {
    size_t member;
    const ParsedOpenFile *file, *now;
    int fd_now, fd;
  };

  PlannedMember& of(const User& u) const { return members_[u.member]; }

  Error refuse(const User& u, std::string_view what) const {
    const PlannedMember& m = of(u);
    return failure(ExitCode::kUnsupported,
                   fmt::format("{} ({}): {}", m.listed->pid, printable(m.listed->name),
                               printable(describe(*u.file, u.fd))),
                   what, kRemedy);
  }
  Error refuse(const PlannedMember& m, std::string_view what) const {
    return failure(ExitCode::kUnsupported, fmt::format("{} ({})", m.listed->pid, printable(m.listed->name)),
                   what, kRemedy);
  }

  Op& add(const User& u, BackDescriptor kind, uint32_t part, int64_t a = 0, int64_t b = 0) {
    auto& ops = of(u).difference->ops;
    ops.push_back({{static_cast<uint32_t>(kind), u.fd, a, b, 0, 0, part, 0}, {}});
    return ops.back();
  }

  // Groups and the terminal's foreground.
  Result<void> check_relations() {
    std::set<int> groups;
    for (const auto& m : members_) groups.insert({m.listed->pgid, m.process.pgid});
    std::set<uint64_t> terminals;
    for (auto& m : members_) {
      const ManifestMember& was = *m.listed;
      if (was.sid != 0 && m.process.sid != was.sid)
        return refuse(m, "has begun a session of its own since the checkpoint");
      if (m.process.terminal != was.terminal)
        return refuse(m, "has got or given up a controlling terminal since the checkpoint");
      if (was.pgid != 0 && m.process.pgid != was.pgid) {
        // A group of its own it can always make. Others must be there, or be made by then.
        const bool own = was.pgid == was.pid;
        const bool there =
            own || std::any_of(members_.begin(), members_.end(), [&](const PlannedMember& o) {
              return o.process.pgid == was.pgid || (o.listed->pid == was.pgid && o.listed->pgid == was.pgid);
            });
        if (!there) return refuse(m, "was in a process group that is gone");
        m.difference->ops.push_back(
            {{static_cast<uint32_t>(BackDescriptor::kGroup), -1, was.pgid, 0, 0, 0, own ? 0u : 1u, 0}, {}});
      }
      if (was.terminal != 0 && was.foreground_group != m.process.foreground_group &&
          groups.count(was.foreground_group) != 0 && terminals.insert(was.terminal).second) {
        m.difference->ops.push_back(
            {{static_cast<uint32_t>(BackDescriptor::kForeground), -1, was.foreground_group, 0, 0, 0, 2, 0},
             {}});
      }
    }
    return {};
  }

  void gather() {
    for (size_t m = 0; m < members_.size(); ++m) {
      for (const auto& f : members_[m].then->open_files) {
        const auto still_open = members_[m].difference->still_open.find(f.record.id);
        if (still_open == members_[m].difference->still_open.end()) continue;
        const User user{m, &f, still_open->second.now, still_open->second.fd_now, still_open->second.fd};
        still_open_.push_back(user);
        by_id_[{members_[m].listed->pid, f.record.id}] = user;
        if (is_socket(f) || (is_pipe(f) && members_[m].shared->files.count(f.record.id) != 0))
          users_[f.record.object].push_back(user);
      }
    }
  }

  // Processes that shared an open file at the checkpoint must share it now, and no others may.
  Result<void> check_sharing() {
    std::map<std::pair<int, uint32_t>, size_t> group;
    for (size_t g = 0; g < manifest_.descriptions.size(); ++g) {
      for (const ManifestUser& u : manifest_.descriptions[g]) group[{u.pid, u.open_file}] = g;
    }
    // Of one file: an open file of each group.
    std::map<std::tuple<uint32_t, uint64_t, uint64_t>, std::vector<std::pair<const User*, long>>> first;
    for (const User& u : still_open_) {
      const int pid = of(u).listed->pid;
      const auto found = group.find({pid, u.file->record.id});
      const long own = found == group.end() ? -1 : static_cast<long>(found->second);
      auto& others = first[{u.file->record.kind, u.file->record.device, u.file->record.inode}];
      bool known = false;
      for (const auto& [other, of_group] : others) {
        const bool one = own >= 0 && own == of_group;
        known = known || one;
        if (other->member == u.member) continue;  // compared as that of a process alone
        const long r = syscall(SYS_kcmp, of(*other).listed->pid, pid, KCMP_FILE, other->fd_now, u.fd_now);
        if (r < 0)
          return make_error(ExitCode::kPermission, errno,
                            "{} ({}) may not be looked at ({}); ask as root; nothing was changed", pid,
                            of(u).listed->name, errno_name(errno));
        if ((r == 0) == one) continue;
        return refuse(u, fmt::format("{} open together with process {} ({})",
                                     one ? "is no more" : "was not at the checkpoint and is now",
                                     of(*other).listed->pid, of(*other).listed->name));
      }
      if (!known) others.emplace_back(&u, own);
    }
    return {};
  }

  // A pseudo-terminal of the job's own. At a checkpoint nothing is in it but a line that was begun, so what
  // is in it now is dropped.
  Result<void> terminals() {
    for (const PlannedMember& m : members_) {
      for (const auto& f : m.then->open_files) {
        if (kind_of(f) == kTerminalMaster && m.difference->still_open.count(f.record.id) == 0)
          return refuse(m, "has closed a pseudo-terminal of the job's own since");
      }
    }
    for (const User& u : still_open_) {
      if (kind_of(*u.file) != kTerminalMaster) continue;
      const MasterDetail was = master_detail(*u.file), is = master_detail(*u.now);
      constexpr uint32_t kFixed = kMasterLeft | kMasterStopped;
      if ((was.flags & kFixed) != (is.flags & kFixed))
        return refuse(u, "is a pseudo-terminal of which the other end was closed, opened or stopped since");
      const auto bytes = std::as_bytes(std::span(&was, 1));
      auto& data = add(u, BackDescriptor::kFlush, 0).data;
      data.assign(bytes.begin(), bytes.end());
      const Blob line = begun_line(*u.file);
      data.insert(data.end(), line.begin(), line.end());
    }
    return {};
  }

  // An eventfd has one counter.
  void counters() {
    for (const auto& users : manifest_.descriptions) {
      std::set<int> pids;
      for (const ManifestUser& u : users) pids.insert(u.pid);
      for (const ManifestUser& u : users) {
        const auto found = by_id_.find({u.pid, u.open_file});
        if (found == by_id_.end() || pids.size() < 2) continue;
        const User& user = found->second;
        if (kind_of(*user.file) == OpenFileKind::kEventFd &&
            user.file->record.value != user.now->record.value)
          add(user, BackDescriptor::kEvent, 0, static_cast<int64_t>(user.file->record.value));
        break;
      }
    }
  }

  // Every member that could read it has saved what it held.
  Result<void> refill(const std::vector<User>& users) {
    const User* reader = nullptr;
    bool writable = false, end_gone = false;
    for (const User& u : users) {
      const uint32_t mode = u.file->record.open_flags & O_ACCMODE;
      if (mode != O_WRONLY && reader == nullptr) reader = &u;
      writable = writable || mode != O_RDONLY;
      end_gone = end_gone || u.file->record.value == kPipeEndGone;
    }
    // The other end is outside of the job: what was sent stays sent.
    if (reader == nullptr || (!writable && !end_gone)) return {};
    // The bytes in the pipe now are not always known: a process that has only one end has not looked.
    add(*reader, BackDescriptor::kRefill, 0, 0, reader->file->record.pipe_size);
    for (const User& u : users) {
      bool any = false;
      for (const auto& c : of(u).then->contents) {
        if (c.record.open_file != u.file->record.id) continue;
        const bool packet = (c.record.offset & kPipePacket) != 0 ||
                            ((c.record.offset & kPipeStream) == 0 && written_in_packets(users));
        add(*reader, BackDescriptor::kRefill, 0, packet ? kRefillMore | kRefillPacket : kRefillMore)
            .data.assign(c.bytes.begin(), c.bytes.end());
        any = true;
      }
      if (any) break;
    }
    return {};
  }

  // For images of older versions, which do not say of each write whether it was a packet.
  static bool written_in_packets(const std::vector<User>& users) {
    return std::any_of(users.begin(), users.end(), [](const User& u) {
      return (u.file->record.open_flags & O_ACCMODE) != O_RDONLY &&
             (u.file->record.open_flags & O_DIRECT) != 0;
    });
  }

  // Bytes that wait in one end were sent by the other.
  Result<void> connection(uint64_t object, const std::vector<User>& users) {
    const User& u = users.front();
    const SocketDetail was = socket_detail(*u.file), is = socket_detail(*u.now);
    const SocketLinkDetail link = socket_link(*u.file), link_now = socket_link(*u.now);
    // It listens; a connection that waits there is looked at below, at its other end.
    bool abandoned = false;
    for (const ParsedOpenFile* f : {u.file, u.now}) {
      for_each_detail<AbandonedClientDetail>(*f, OpenFileDetail::kAbandonedClient,
                                             [&](const AbandonedClientDetail&, Blob) { abandoned = true; });
    }
    if (abandoned) return refuse(u, "has, or had, a connection to be accepted whose client is gone");
    if (was.backlog >= 0) return {};
    if ((link.flags & kLinkUnaccepted) != 0 || (link_now.flags & kLinkUnaccepted) != 0)
      return refuse(u, "was not accepted yet by the other end");
    if (holds_datagrams(*u.file) || holds_datagrams(*u.now))
      return refuse(u, "may hold a part of a datagram (UDP_CORK), which nobody can look at");
    uint64_t peer = link.peer;
    if (peer == 0 && kind_of(*u.file) == OpenFileKind::kSocketPair) peer = u.file->record.value;
    const auto other = peer == 0 ? users_.end() : users_.find(peer);
    auto before = waiting_messages(*of(u).then, *u.file);
    const auto now = waiting_messages(*of(u).now, *u.now);
    const bool mutual = other != users_.end() && (socket_link(*other->second.front().file).peer == object ||
                                                  other->second.front().file->record.value == object);
    if (!mutual && was.type == SOCK_DGRAM) return datagrams(u, before, now);
    const bool gone = (link.flags & kLinkPeerGone) != 0;
    if (!mutual && !gone) return {};  // to the outside: what was sent is sent
    const bool tcp = was.domain != AF_UNIX && was.type == SOCK_STREAM;
    constexpr uint32_t kFixed = kLinkPeerGone | kLinkError;
    if (was.shut_down != is.shut_down || (link.flags & kFixed) != (link_now.flags & kFixed) ||
        (tcp && link.state != link_now.state))
      return refuse(u, "was shut down, closed or reset since");
    const bool ended =
        !mutual || (socket_detail(*other->second.front().file).shut_down & 2) != 0;  // sends no more
    if (ended) {
      if (before != now)
        return refuse(u, "what waited in it was received since, and the other end sends no more");
      return stays(u, before);
    }
    const User& sender = other->second.front();
    const bool has_files =
        std::any_of(before.begin(), before.end(), [](const WaitingMessage& m) { return !m.files.empty(); });
    // Nobody has received it since, and nothing has come behind it: it stays where it is.
    if (has_files && before == now && may_be_left(before, OpenFileKind::kPidFd)) return {};
    for (const WaitingMessage& m : before) {
      if (m.detail.file_count != 0 || (m.detail.flags & kMessageUrgent) != 0)
        return refuse(u, "held descriptors or urgent bytes, which cannot be sent again yet");
      if ((m.detail.flags & kMessageCredentials) != 0 && m.detail.pid != of(sender).listed->pid)
        return refuse(u, "held a message of another process, which cannot be sent again yet");
    }
    // As with pipes, the bytes that wait now are not always known.
    add(u, BackDescriptor::kDrain, 0, tcp ? 1 : 0);
    for (WaitingMessage& m : before) {
      if (was.type == SOCK_STREAM && m.bytes.empty()) continue;
      add(sender, BackDescriptor::kSend, 2).data = std::move(m.bytes);
    }
    return {};
  }

  // Any process that knows its name may have sent here. No process can send again what another has sent.
  // Datagrams that have come since are dropped: a sender in the job will send them again.
  Result<void> datagrams(const User& u, const std::vector<WaitingMessage>& before,
                         const std::vector<WaitingMessage>& now) {
    if (!before.empty() && before != now)
      return refuse(u, "datagrams that waited in it were received, or others have come since");
    if (before.empty()) add(u, BackDescriptor::kDrain, 0, 0);
    return stays(u, before);
  }

  Result<void> stays(const User& u, const std::vector<WaitingMessage>& messages) {
    if (may_be_left(messages, OpenFileKind::kPidFd, OpenFileKind::kRegular, OpenFileKind::kDirectory,
                    OpenFileKind::kDevice, OpenFileKind::kMemfd))
      return {};
    return refuse(u, "holds a descriptor of a pipe, a socket or the like, whose other end may go back");
  }

  static bool holds_datagrams(const ParsedOpenFile& f) {
    const SocketDetail detail = socket_detail(f);
    if (detail.domain == AF_UNIX || detail.type != SOCK_DGRAM) return false;
    return is_corked(f);
  }

  const Manifest& manifest_;
  std::vector<PlannedMember>& members_;
  std::vector<User> still_open_;
  std::map<std::pair<int, uint32_t>, User> by_id_;  // by pid and open file
  std::map<uint64_t, std::vector<User>> users_;     // shared pipes, and sockets, by object
};

}  // namespace

Result<void> plan_channels(const Manifest& manifest, std::vector<PlannedMember>& members) {
  return ChannelPlan(manifest, members).run();
}

}  // namespace ckpt::cli
