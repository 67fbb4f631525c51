// Makes the sockets of one process, or of all processes of a job: each once, connected as it was, with what
// waited in it.
//
// Owner:     restart. One builder for one restore.
// Callers:   restart/descriptors (one member), and the planter of a job (all members): one thread, in this
//            order:
//              add       for every member
//              connect   every socket is there, with its name and its other end
//              put_off   of a job: names what can be sent only when its processes exist
//              fill      when other open files are there too: messages, ends of streams, options
//              fill_rest when the processes exist, if anything was put off
//              keep      of a job: the sockets stay open when the builder goes
//              finish    closes the builder's own descriptors
//            find gives the descriptor of a member's open file between connect and keep or finish; the caller
//            makes its own of it (dup3, SCM_RIGHTS, fork).
// Never:     leaves a descriptor below WorkingFds::first() but at its own number; sends a byte to anybody
//            outside of the job, but for datagrams to a multicast group (group_delivery.h).
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "image/read/image_meta.h"
#include "restart/files/working_fds.h"

namespace ckpt {

// A name of a socket, as getsockname gives it.
struct SocketName {
  sockaddr_storage address = {};
  socklen_t length = 0;  // 0: none
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  sa_family_t family() const { return address.ss_family; }
  uint16_t port() const { return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port); }
  bool operator==(const SocketName& o) const;
  std::string text() const;  // "port 80", "/run/x", "@x"
};

// The names of a socket, as its record has them: false if it has no such detail, or half a name.
bool read_socket_names(const ParsedOpenFile& file, SocketDetail& detail, SocketName& own, SocketName& peer);

struct ChannelMessage {
  SocketMessageDetail detail = {};
  std::vector<Blob> parts;  // usually one
  SocketName sender;
  std::vector<uint32_t> files;  // OpenFileRecord::id
};

// A socket to be made.
struct ChannelSocket {
  int member = 0;
  const ImageMeta* meta = nullptr;
  const ParsedOpenFile* file = nullptr;
  std::vector<const ParsedOpenFile*> also;  // the same socket in images of other members
  uint64_t object = 0;
  SocketDetail detail = {};
  SocketLinkDetail link = {};
  SocketName name, peer_name;
  std::vector<ChannelMessage> messages;
  int messages_of = 0;  // the member whose image has them, and whose numbers of open files they have
  ChannelSocket* peer = nullptr;      // of this job
  ChannelSocket* listener = nullptr;  // waits there to be accepted
  int fd = -1;                        // parked, or at its number in the end
  int far_end = -1;          // parked: instead of a peer that is gone or outside, until fill() is done
  bool unlink_name = false;  // its path had no file any more
  SocketFileDetail socket_file = {};
  std::string directory, now_at;  // as SocketFileDetail has them
  bool moved = false;             // its file is at now_at
  bool said_sender = false;
  bool is_put_off = false;               // what waits in it is sent by fill_rest()
  ucred made_by = {};                    // SO_PEERCRED as it was; pid 0: not known
  ucred listens_as = {};                 // of a listening socket: as it is now
  int listens_with = -1;                 // the same: the length of its queue
  bool has_waiting = false;              // the same: a connection of the job waits there
  std::string far_ends, far_ends_there;  // of a connection to another host of the job: both ends as they were
  bool is(int domain, int type) const { return detail.domain == domain && detail.type == type; }
  bool is_tcp() const {
    constexpr int kMultipathTcp = 262;  // IPPROTO_MPTCP: a listener takes connections of plain TCP as well
    return detail.domain != AF_UNIX && detail.type == SOCK_STREAM &&
           (detail.protocol == IPPROTO_TCP || detail.protocol == kMultipathTcp);
  }
  bool has(SocketLinkFlag flag) const { return (link.flags & flag) != 0; }
};

// The descriptor that leads to a member's open file; -1: there is none.
using FindOpenFile = std::function<Result<int>(int member, uint32_t open_file)>;

// Such an open file waits in a socket: can it be made only when the processes of the job exist?
using IsAboutProcess = std::function<bool(int member, uint32_t open_file)>;

class OwnListener;

class ChannelBuilder {
 public:
  using Say = std::function<void(std::string_view)>;
  // say_at_once: what is waited for, before it is waited for.
  ChannelBuilder(WorkingFds* working, Say say, Say say_at_once)
      : working_(working), say_(std::move(say)), say_at_once_(std::move(say_at_once)) {}
  ChannelBuilder(const ChannelBuilder&) = delete;
  ~ChannelBuilder() { finish(); }

  // meta must outlive the builder. others: objects that are somebody else's to make.
  void add(int member, const ImageMeta& meta, const std::map<uint64_t, int>& others = {});
  // A socket of the program that listens at these names already, as end_text() gives them: other hosts may
  // arrive in it. Before connect().
  void use_listener(const std::vector<std::string>& at, ScopedFd fd) {
    listens_at_.insert(at.begin(), at.end());
    lent_.insert(fd.get());
    listeners_.push_back(std::move(fd));
  }
  // Does a connection to another host of the job, of all that were added, begin at this port?
  bool connects_from(uint16_t port) const;
  // All that listen at this port have SO_REUSEPORT for the moment, as the kernel wants it for a connection
  // that begins there. Before connect().
  void share_port(uint16_t port) { shared_ports_.insert(port); }
  // Who has connected to a socket of use_listener(), and is not one of those hosts: a caller of the
  // program's, of whom nothing was received.
  struct Stranger {
    ScopedFd listener, connection;
  };
  std::vector<Stranger> take_strangers() { return std::move(strangers_); }
  // Of all that were added: other hosts of the job connect to it.
  template <typename Visit>
  void for_each_awaited(Visit visit) const {
    for (const auto& s : sockets_) {
      if (is_far(*s) && listens(*s)) visit(s->name);
    }
  }
  // Errors: kUnavailable, kPermission: a name is taken, with the remedy; kSystem.
  Result<void> connect();
  // Of a queue all messages are put off, so that they stay in order. If there is any such queue, so is what
  // ends a stream, and what the program has set, of all sockets: another socket may be the sender. False:
  // none.
  bool put_off(const IsAboutProcess& is_about_process);
  Result<void> fill(const FindOpenFile& find_open_file);
  Result<void> fill_rest(const FindOpenFile& find_open_file);
  // In a child of the caller, between fill and fill_rest: an end that the caller closes is gone then.
  void close_far_ends();
  int find(int member, uint32_t open_file) const;  // -1: not a socket that was made
  // Every open file that is a socket of ours: visit(member, open_file, fd, first of its object).
  template <typename Visit>
  void for_each(Visit visit) const {
    std::map<const ChannelSocket*, bool> seen;
    for (const auto& [file, s] : by_file_) {
      if (s->fd >= 0) visit(file.first, file.second, s->fd, !std::exchange(seen[s], true));
    }
  }
  // Gives the senders of datagrams that wait their new addresses.
  static void translate_senders(ChannelSocket& s);
  void hand_over_sockets();  // the sockets stay open where they are parked: the caller's now
  void finish();

 private:
  // channel_builder.cc
  void link();
  ChannelSocket* listening_at(const SocketName& at) const;
  Result<void> make(ChannelSocket& s);
  Result<void> park(ChannelSocket& s, ScopedFd fd);
  Result<void> park_far_end(ChannelSocket& s, ScopedFd fd);
  // unix_names.cc, but for bind_name(). bind_file: with the rights and the owner that its file had.
  static bool bind_file(const ChannelSocket& s, int fd, const SocketName& name, const std::string& path);
  Result<void> bind_name(ChannelSocket& s, int fd, const SocketName& name, bool& unlink_after);
  Result<void> bind_path(ChannelSocket& s, int fd, const SocketName& name, bool& unlink_after);
  void leave_nameless(ChannelSocket& s, int fd, const std::string& name, bool& unlink_after);
  const ChannelSocket* bound_to(const SocketName& at, const ChannelSocket& like) const;
  std::string directory_of_name(const SocketName& at, const ChannelSocket& like) const;
  // As connect(2). like: a socket of the process that connects.
  bool connect_name(const ChannelSocket& like, int fd, const SocketName& at) const;
  void move_file(ChannelSocket& s);
  bool borrow_name(const SocketName& at, const ChannelSocket& like);
  void give_back_names();
  void leave_over(const SocketName& name, const ChannelSocket& like);  // its file is removed in the end
  void leave_name(ChannelSocket& s);
  // channel_builder.cc again
  bool bind_port(const ChannelSocket& s, int fd, const SocketName& name);
  Result<void> fill_queues(bool put_off, const FindOpenFile& find_open_file);
  Result<void> end_and_settle();
  void settle(ChannelSocket& s);
  Error cannot_make(const ChannelSocket& s) const;
  Error cannot_take(const ChannelSocket& s, const std::string& name, int error) const;
  std::string describe(const ChannelSocket& s) const;

  // unix.cc
  Result<void> connect_unix();
  bool was_accepted(const ChannelSocket& one, const ChannelSocket& other) const;
  Result<void> connect_pair(ChannelSocket& s);
  Result<void> connect_by_name(ChannelSocket& client, ChannelSocket* server, const SocketName& at);
  Result<ScopedFd> connect_to(ChannelSocket& client, const SocketName& at, bool make_client,
                              const ucred& connects);
  Result<std::pair<ScopedFd, ScopedFd>> make_pair(const ChannelSocket& s);
  void say_maker(const ChannelSocket& s, const ucred& who, int error) const;
  Result<void> connect_without_peer(ChannelSocket& s);
  // As call_as(): as the process that had made `s`. by: the process that has called in the end.
  bool made_as(const ChannelSocket& s, const ucred& who, const std::function<long()>& call,
               pid_t* by = nullptr);
  bool connect_at_once(const ChannelSocket& s, int fd, const ChannelSocket& like, const SocketName& at,
                       const ucred& who, int room_in, pid_t* by = nullptr);
  struct Listener {
    int fd, backlog;
    ucred* listens_as;
  };
  Result<Listener> listener_at(const ChannelSocket& like, const SocketName& at);
  void listen_for(const ChannelSocket& client, const Listener& listener);
  static ucred process_of(const ChannelSocket& s);
  int room_while_making(const ChannelSocket& listener) const;
  Result<void> connect_datagrams();

  // tcp.cc
  Result<void> connect_tcp();
  void connect_and_close(const std::vector<ChannelSocket*>& listening);
  bool connect_and_reset(const ChannelSocket& s);
  Result<void> shorten_queues(const std::vector<ChannelSocket*>& listening);
  struct Ends {
    ScopedFd server, client;
  };
  bool accepts_at(const ChannelSocket& s) const;
  Result<Ends> establish(const ChannelSocket& like, const ChannelSocket& client_like,
                         const SocketName& server, const SocketName& client, const SocketName& client_sees);
  Result<ScopedFd> connect_from(const ChannelSocket& like, int domain, const SocketName& from,
                                const SocketName& to, bool wait, timeval within = {},
                                OwnListener* own = nullptr);
  Result<void> connect_tcp_pair(ChannelSocket& s);
  Result<void> connect_tcp_without_peer(ChannelSocket& s);

  // How an end of a connection gets the address that it had: first as the kernel chose the port for a program
  // that did not bind, then as a program binds. Ports of the first kind may be shared with connections that
  // have just ended.
  enum class PortOrigin { kChosen, kBound };
  // As kChosen: may the kernel give this port, and no other? After it the socket has none but this.
  static bool kernel_chooses(int fd, uint16_t port);
  bool bind_end(int fd, const ChannelSocket& like, const SocketName& from, PortOrigin origin);
  // After connect(2). False: the ports that the kernel chooses from have just become others, and so it has
  // another one.
  static bool has_port(int fd, const SocketName& from, PortOrigin origin);

  // failed.cc: connections that ended with an error, and those that were never made
  Result<void> fail_to_connect(ChannelSocket& s);
  void end_with_error(ChannelSocket& s);
  void refuse_datagram(const ChannelSocket& s);

  // far.cc: connections to other hosts of the job
  bool is_far(const ChannelSocket& s) const;
  static bool listens(const ChannelSocket& s);
  void translate(ChannelSocket& s) const;
  Result<void> connect_far();
  using Made = std::vector<std::pair<ChannelSocket*, ScopedFd>>;
  Result<void> accept_far(std::vector<ChannelSocket*> awaited, Made& made);
  struct Caller;
  Result<void> hear_callers(std::vector<ChannelSocket*> awaited, Made& made, std::vector<Caller>& callers);
  void store_stranger(Caller& caller);
  Result<void> exchange_queues(Made& made);

  // messages.cc
  Result<void> send_messages(ChannelSocket& to, int from, const FindOpenFile& find_open_file);
  Result<void> send_datagrams(ChannelSocket& to, const FindOpenFile& find_open_file);
  Result<void> send_one(ChannelSocket& to, int from, const SocketName* at, const ChannelMessage& message,
                        const FindOpenFile& find_open_file);
  Result<int> sender_of(ChannelSocket& to, const ChannelMessage& message, ScopedFd& own);

  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    if (say_) say_(fmt::format(format, std::forward<Args>(args)...));
  }

  WorkingFds* working_;
  Say say_, say_at_once_;
  std::vector<std::unique_ptr<ChannelSocket>> sockets_;
  std::map<uint64_t, ChannelSocket*> by_object_;
  std::map<std::pair<int, uint32_t>, ChannelSocket*> by_file_;
  struct Helper {
    int fd;
    ucred listens_as;
  };
  std::vector<std::pair<std::string, std::string>>
      lent_names_;                            // of a helper, and where the file of that name is meanwhile
  std::map<std::string, Helper> helpers_;     // listening sockets of ours, by type and name; parked
  std::vector<std::string> left_over_names_;  // files of helpers, to be removed
  std::set<std::string> listens_at_;          // names at which other hosts of the job arrive
  std::vector<ScopedFd> listeners_;           // in which they arrive; until they have
  std::set<int> lent_;                        // of these, sockets of the program
  std::set<uint16_t> shared_ports_;
  bool has_put_off_ = false;
  std::vector<Stranger> strangers_;
};

// The length of the queue of a listening socket while connections are made. Clients that are not of the job
// come as soon as it listens, and connect(2) waits for room.
inline constexpr int kRoomWhileMaking = 4096;

// options.cc: those that are to be set before bind, and all others.
void set_early_options(int fd, const ChannelSocket& s);
// Before the socket is connected, or listens: what it told the other end then (TCP_MAXSEG,
// TCP_WINDOW_CLAMP).
void set_before_connecting(int fd, const ChannelSocket& s);
struct UnsetOption {
  int level, name, error;
};
// With each message that names its sender the program gets a pidfd (SO_PASSPIDFD).
bool gives_pidfds(const ChannelSocket& s);
// The first that could not be set, if there is one.
std::optional<UnsetOption> set_late_options(int fd, const ChannelSocket& s);
// Of groups of sockets with one port, when all of them are there. False: one of them is not as it was.
bool set_group_filters(std::span<const std::unique_ptr<ChannelSocket>> sockets);
// After all filters: the kernel takes none on a socket that has this lock (SO_LOCK_FILTER), nor an end of it.
void lock_filters(std::span<const std::unique_ptr<ChannelSocket>> sockets);
void set_int(int fd, int level, int name, int value);
// Room for what is sent without waiting for a reader.
void make_room(int fd);
// For so many bytes, and not much more: the kernel takes no room back that the sender was told of.
void make_stream_room(int receiver, uint64_t bytes = UINT64_MAX);

}  // namespace ckpt
