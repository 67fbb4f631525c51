// The member that was asked: it finds the others, leads them through the checkpoint, and commits it.
//
// Files: coordinator.cc has its stages; coordinator_stream.cc what goes to a command instead of a directory;
// rounds.cc the rounds of plug-ins ahead of them; accepting.cc how servers get to accept what waits;
// coordinator_members.cc how it asks members and waits for them; coordinator_connections.cc their
// connections, and what they say; coordinator_shared.cc the ledger; hosts.cc the steps over several hosts;
// coordinator_commit.cc the end.
//
// Owner:     job. Callers: the agent of that member; one Coordinator is one attempt.
// A member that fails, dies or says nothing in time ends the attempt for all: the destructor tells the
// others.
#pragma once

#include "base/memory/arena.h"
#include "base/raii_fd.h"
#include "image/format/encryption/image_key.h"
#include "job/capture/channel.h"
#include "job/capture/coordinator/descriptions.h"
#include "job/capture/coordinator/manifest_writer.h"
#include "job/capture/members/members.h"
#include "job/capture/members/stopped_members.h"
#include "job/capture/take.h"
#include "job/directory/directory_lock.h"
#include "job/format/job_name.h"
#include "job/session/session.h"
#include "libckpt_rt/capture/process/process_state.h"
#include "libckpt_rt/checkpoint/image/image_command.h"
#include "libckpt_rt/stop/tracing/service.h"

namespace ckpt::job {

class Coordinator final : public Session {
 public:
  // directory: of the job's checkpoints, open and locked; name: of it, valid as long as this is.
  Coordinator(int directory, DirectoryLock& lock, const char* name, const TakeOptions& options,
              TakeReport& report)
      : directory_(directory),
        directory_lock_(lock),
        directory_name_(name),
        options_(options),
        report_(report) {
    leads = true;
    over_hosts = options.over_hosts();
  }
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // What a failure is when the stream's command has ended, or could not be started.
  Error explain(const Error& error);

  // connecting.h. kAndCreation: where a member listens nowhere, also that of processes.
  enum class HoldsConnects { kNo, kAlone, kAndCreation };
  struct Attempt {
    uint32_t number;  // from 1
    bool may_repeat;  // another may follow
    HoldsConnects holds_connects;
  };
  // Makes the directory and asks all members: what the caller has listed.
  Result<void> begin(const Attempt& attempt, std::span<const Listed> members);

  Result<bool> exchange(std::span<const std::byte> posts) override;
  Result<void> prepared() override;
  Result<void> standing() override;
  Result<void> drained(std::span<const Bookmark> connections) override;
  Result<void> sampled(std::span<const OpenFileKey> files, const Standing& facts,
                       std::span<const ChildNotice> unreported) override;
  Result<void> written(const Written& facts) override;
  Result<void> still_on() override;
  Result<void> hear_members();
  void in_writing_child() override;

 private:
  // How long a member may take to answer the signal: where others have the processors, seconds.
  static constexpr int64_t kPatienceNs = 30'000'000'000;
  // Members' sockets get numbers above this, where the limit on descriptors allows: a child that writes our
  // image closes all of those.
  static constexpr long kFirstSocket = 200;

  struct Member {
    Listed listed;
    enum class State : uint32_t {
      kStarting,   // the library is not ready in it yet
      kAsked,      // the signal is sent
      kConnected,  // its connection is there, and it has not said who it is
      kWithUs,     // it has the request
      kEnded,      // gone, or not waited for yet: nothing to be asked
      kLeftOut,
      kUnclaimed,  // the library is not in it, and plug-ins may yet take it over
      kTakenOver,  // a plug-in saves it
    } state;
    Preloaded preloaded;
    bool stranger;      // of another job
    char saved_by[64];  // kTakenOver
    uint32_t looks;     // in a row that did not find the library
    int signal;         // by which it takes requests
    bool seized;        // it was stopped when it was asked, or while it was
    int stop_signal;    // of a stopped one, when all stood
    int socket;
    bool of_other_user;
    bool was_lost;  // once or more, before the stop
    Step reached;
    int64_t asked_ns;  // last time
    int64_t connected_ns;
    int64_t threads_looked_ns;
    int64_t since_ns;  // when it was found
    Standing facts;
    std::span<const ChildNotice> unreported;
    std::span<const OpenFileKey> files;
    std::span<const Bookmark> bookmarks;
    bool can_share;
    std::span<const SharedOffer> offers;
    std::span<const std::byte> posts;  // of this round
    Written written;
  };

  // What the parent of a child was not told yet, says the parent; nullptr: it does not say.
  const ChildNotice* notice_of(const ProcessLook& child) const;
  // The coordinator does not wait for such a member.
  static bool needs_nothing(const Member& m);
  Result<void> listen();
  Result<void> add(const Listed& listed);
  Result<bool> may_be_asked(const Member& m);
  Result<void> check_tracees();
  Result<void> ask(Member& m);
  Result<void> await(Step step, int64_t deadline_ns);
  enum class Late { kIsLost, kIsNoMatter };  // a member whose message has begun by the deadline
  Result<bool> have_come(Step step, int64_t deadline_ns, Late late);
  Result<void> let_servers_accept();
  Result<void> tell_prepared(Step step);
  bool tell_of_connects(const Member& m, Step step) const;
  Result<void> tell_again_of_connects(Member& m);
  void release_if_late();
  Result<void> look_at_silent(int64_t now);
  Result<void> look_for_stopped(Step step);
  Result<void> seize(Member& m);
  Result<void> note_stopped();
  Result<void> resume_sampling();
  class LostAgain;
  Result<void> look_at_asker();
  Result<void> accept_members();
  void hang_up(Member& m);
  Result<void> greet(Member& m);
  bool is_its_turn(const Member& m, Step step) const;
  bool are_its_own(const Member& m);
  Result<void> take_message(Member& m, int64_t deadline_ns);
  Result<void> lost(Member& m);
  Member* find(const Listed& listed);
  Result<void> list(ArenaVector<Listed>& now);
  Result<bool> add_new(std::span<const Listed> now);
  Result<void> await_short_lived(ArenaVector<Listed>& now);
  Result<void> tell_all(Step step);
  Result<bool> list_shared(ArenaVector<LedgerObject>& objects, LedgerSize& size);
  Result<void> choose_savers();
  bool send_order(Member& m, const LedgerSize& size, std::span<const LedgerObject> objects, int file);
  Result<void> share_memory();
  void abort_all();
  Result<char> ask_hosts(const char* step, int64_t patience_ns);
  Result<void> with_all_hosts(const char* step, int64_t patience_ns);
  bool take_claims(std::span<const std::byte> posts);
  void end_rounds();
  void post_to_hosts(int sender, std::span<const std::byte> posts);
  Result<std::span<const std::byte>> hear_posts_of_hosts(bool& any);
  void tell_bookmarks(std::span<const Bookmark> connections);
  Result<void> agree_with_hosts();
  Result<void> reconnect_all();
  Result<void> commit();
  Result<void> open_stream(const char* program);
  void watch_in_stream(int socket);
  void watch_no_more(int socket) const;
  static bool is_stream_over(void* coordinator);
  Result<void> look_at_image(ManifestEntry& member, const ImageKey* key);
  Result<void> commit_to_directory();
  Result<void> commit_to_stream();
  void prune();
  Result<void> open_to_other_users();
  Result<void> set_modes(long mode);
  void read_members_again();
  Error name(const Member& m, ExitCode code, const char* what);

  const int directory_;
  DirectoryLock& directory_lock_;
  const char* const directory_name_;
  const TakeOptions& options_;
  TakeReport& report_;
  uint32_t attempt_ = 0;
  uint32_t round_ = 0;  // of plug-ins that prepare
  bool rounds_over_ = false;
  HoldsConnects holds_connects_ = HoldsConnects::kNo;
  bool holds_early_ = false;  // creation, ahead of kHold
  uint64_t cookie_ = 0;
  ScopedFd listener_, temporary_, lock_;
  JobName name_;
  ImageCommand command_;     // of CKPT_TO
  ScopedFd stream_turn_;     // the eventfd of the turns to write to the stream
  ScopedFd closed_members_;  // an epoll of members' sockets: readable when a member has closed its own
  Arena arena_;
  StoppedMembers stopped_{arena_};
  tracing::Service tracing_;  // of those that this process traces
  ArenaVector<Member> members_;
  Step told_ = Step::kNone;
  bool began_ = false, done_ = false;
  bool foreign_ = false;  // some member is of another user
  const bool filtered_ = is_filtered();
  int newest_pid_ = 0;  // when all were listed
  int64_t looked_for_stopped_ns_ = 0;
  int64_t realtime_ns_ = 0, monotonic_ns_ = 0, boottime_ns_ = 0;
  Standing own_facts_{};
  ArenaVector<ChildNotice> own_unreported_{arena_};
  Written own_written_{};
  std::span<const OpenFileKey> own_files_;
  Listed self_{};
  ArenaVector<MemberFiles> member_files_;
  ArenaVector<SharedUse> shared_;
  ArenaVector<SharedSaver> savers_{arena_};
};

}  // namespace ckpt::job
