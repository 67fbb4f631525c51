// How the messages of plug-ins (libckpt_rt/checkpoint/preparation.h) go through the coordinator: it waits
// until all members have posted, then hands out to each member the messages for it. Over several hosts the
// head does the same with the coordinators.
#include <errno.h>

#include <algorithm>

#include "job/capture/coordinator/coordinator.h"
#include "libckpt_rt/checkpoint/preparation.h"
#include "libckpt_rt/core/process/this_process.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt::job {

namespace {

Error no_memory() { return make_error(ExitCode::kInternal, ENOMEM, "no memory for messages of plug-ins"); }

// What one process gets.
class Mail {
 public:
  Mail(Arena& arena, int pid, const char* own_host) : bytes_(arena), pid_(pid), own_host_(own_host) {}
  bool begin(RoundEnd end) { return bytes_.append(reinterpret_cast<const std::byte*>(&end), sizeof(end)); }
  bool add_from(int sender, std::span<const std::byte> posts) {
    Post head;
    std::span<const std::byte> bytes;
    while (take_post(posts, head, bytes)) {
      if (head.subject[0] == '\0') continue;
      const bool here = head.host[0] == '\0' || strcmp(head.host, own_host_) == 0;
      if (!here || sender == pid_ || (head.pid != 0 && head.pid != pid_)) continue;
      std::memset(head.host, 0, sizeof(head.host));
      std::memcpy(head.host, own_host_, strnlen(own_host_, sizeof(head.host) - 1));
      head.pid = sender;
      if (!add(head, bytes)) return false;
    }
    return true;
  }
  // From other hosts: each with the pid that it is for.
  bool add_from_hosts(std::span<const std::byte> posts) {
    int32_t pid;
    Post head;
    std::span<const std::byte> bytes;
    while (posts.size() > sizeof(pid)) {
      std::memcpy(&pid, posts.data(), sizeof(pid));
      posts = posts.subspan(sizeof(pid));
      if (!take_post(posts, head, bytes)) break;
      if ((pid == 0 || pid == pid_) && !add(head, bytes)) return false;
    }
    return true;
  }
  std::span<const std::byte> bytes() const { return bytes_.span(); }

 private:
  bool add(const Post& head, std::span<const std::byte> bytes) {
    return bytes_.append(reinterpret_cast<const std::byte*>(&head), sizeof(head)) &&
           bytes_.append(bytes.data(), bytes.size());
  }

  ArenaVector<std::byte> bytes_;
  const int pid_;
  const char* const own_host_;
};

}  // namespace

// True: there is a message among them.
bool Coordinator::take_claims(std::span<const std::byte> posts) {
  Post head;
  std::span<const std::byte> bytes;
  bool any = false;
  while (take_post(posts, head, bytes)) {
    any = any || head.subject[0] != '\0';
    for (Member& m : members_) {
      if (head.subject[0] != '\0' || m.state != Member::State::kUnclaimed || m.listed.look.pid != head.pid)
        continue;
      m.state = Member::State::kTakenOver;
      char who[kMostClaimBytes + 1] = {};
      std::memcpy(who, bytes.data(), std::min<size_t>(head.length, kMostClaimBytes));
      for (char& c : who) {
        if (c != '\0' && (c < ' ' || c > '~' || c == '"' || c == '\\')) c = '?';
      }
      *fmt::format_to_n(m.saved_by, sizeof(m.saved_by) - 1, "saved by {}", static_cast<const char*>(who))
           .out = '\0';
    }
  }
  return any;
}

// Members that no plug-in has taken over are asked again: then they are refused.
void Coordinator::end_rounds() {
  rounds_over_ = true;
  for (Member& m : members_) {
    if (m.state == Member::State::kUnclaimed) m.state = Member::State::kStarting;
  }
}

Result<bool> Coordinator::exchange(std::span<const std::byte> posts) {
  CKPT_TRY(await(Step::kPosted, 0));
  bool any = take_claims(posts);
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].reached == Step::kPosted && take_claims(members_[i].posts)) any = true;
  }
  std::span<const std::byte> from_hosts;
  if (over_hosts) {
    post_to_hosts(this_process.pid, posts);
    for (const Member& m : members_) {
      if (m.reached == Step::kPosted) post_to_hosts(m.listed.look.pid, m.posts);
    }
    auto handed_out = hear_posts_of_hosts(any);
    if (!handed_out.ok()) return handed_out.error();
    from_hosts = *handed_out;
  }
  const char* host = options_.part.host;
  const auto fill = [&](Mail& mail) {
    bool good = mail.begin({any ? 1u : 0u}) && mail.add_from(this_process.pid, posts);
    for (const Member& m : members_) {
      if (m.reached == Step::kPosted) good = good && mail.add_from(m.listed.look.pid, m.posts);
    }
    return good && mail.add_from_hosts(from_hosts);
  };
  Mail own(arena_, this_process.pid, host);
  if (!fill(own)) return no_memory();
  ++round_;
  for (Member& m : members_) {
    if (m.state != Member::State::kWithUs || m.reached != Step::kPosted) continue;
    Mail mail(arena_, m.listed.look.pid, host);
    if (!fill(mail)) return no_memory();
    if (mail.bytes().size() > sizeof(RoundEnd) + kMostMailBytes) return no_room_for_mail();
    if (!send_message(m.socket, Step::kHandedOut, mail.bytes().data(), mail.bytes().size()))
      CKPT_TRY(lost(m));
  }
  for (Member& m : members_) {
    if (m.reached == Step::kPosted) m.reached = Step::kNone;
  }
  if (!any) end_rounds();
  if (!preparation::deliver(own.bytes().subspan(sizeof(RoundEnd)))) return no_room_for_mail();
  return any;
}

}  // namespace ckpt::job
