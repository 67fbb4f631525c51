// Records of the META section for file descriptors. See process_records.h for the rules.
//
// An OpenFileRecord is an open file description (offset, flags); several DescriptorRecords may
// share one (dup, dup2). Contents that exist nowhere else (deleted files, memfds, pipes) are in
// FileContentRecords that name the open file.
//
// Owner: image/format. Callers: libckpt_rt/capture/descriptors writes them, image/read checks them,
// restart/descriptors and cli/ use them.
#pragma once

#include <cstdint>

namespace ckpt {

enum class OpenFileKind : uint32_t {
  kRegular = 0,
  kDirectory = 1,
  kDevice = 2,    // /dev/null and its like: opened again by path
  kTerminal = 3,  // a tty: comes back as the restarting terminal
  kPipe = 4,      // both ends in this process or its job, or the other end gone; of a job also one end alone
  kStandard = 5,  // descriptor 0, 1, 2 that leads outside (pipe, socket): the restarter's own
  kMemfd = 6,
  kEventFd = 7,
  kOther = 8,        // cannot be saved: comes back as a descriptor that gives errors, a note says so
  kFifo = 9,         // a pipe with a name
  kEpoll = 10,       // details: EpollWatchDetail, one for each watch
  kTimerFd = 11,     // details: one TimerDetail
  kSignalFd = 12,    // value: signal mask
  kInotify = 13,     // details: InotifyWatchDetail, one for each watch
  kSocketPair = 14,  // AF_UNIX, both ends in this process, or the other end gone: SocketDetail
  kSocket = 15,      // without a connection: listening, bound or neither, or for datagrams: SocketDetail
  kConnection = 16,  // TCP, in any state between connect and close: SocketDetail, SocketLinkDetail
  // Newer kinds; 43 is in terminal_records.h, 44 in fanotify_records.h.
  kPidFd = 40,         // value: the process as the program sees it, 0 or less: gone
  kMessageQueue = 41,  // POSIX: value: most messages << 32 | bytes of the longest; contents: QueueMessage
};

enum OpenFileFlag : uint32_t {
  kOpenFileDeleted = 1u << 0,  // has no name any more: contents saved
  kOpenFilePipeReadEnd = 1u << 1,
  kOpenFilePipeWriteEnd = 1u << 2,
  kOpenFileSemaphore = 1u << 3,   // eventfd with EFD_SEMAPHORE
  kOpenFileEventsLost = 1u << 4,  // inotify: events were queued and are not in the image
  kOpenFileOwner = 1u << 5,       // value is its user, and its group << 32: contents saved, or removed
  kOpenFileContents = 1u << 6,    // has a name: contents saved, in case that it is gone
  kOpenFileOneName = 1u << 7,     // had no other name than its path; names beside images do not count
  // kOpenFileContents, and no part of them is in a mapping: also if it is changed in place
  kOpenFileWhole = 1u << 8,
  kOpenFileUnwritten = 1u << 9,  // a FIFO's reader: has had no writer since it was opened, or has one still
  kOpenFileWorkingDirectory = 1u << 10,  // the process works in it; no descriptor leads to it
};

// OpenFileRecord::value of a pipe: nobody, in the job or outside, has the other end any more.
inline constexpr uint64_t kPipeEndGone = 1;

struct OpenFileRecord {
  uint32_t id;          // from 1, unique in the image
  uint32_t kind;        // OpenFileKind
  uint32_t flags;       // OpenFileFlag
  uint32_t open_flags;  // O_*, as F_GETFL gives them
  uint64_t offset;      // bytes
  uint64_t size;        // bytes at the stop
  uint64_t device, inode, rdev;
  int64_t mtime_ns;      // of the file at the stop
  uint32_t mode;         // st_mode
  uint32_t seals;        // memfd: F_GET_SEALS
  int32_t owner;         // F_GETOWN_EX: pid, 0 none
  uint32_t owner_type;   // F_OWNER_TID, F_OWNER_PID, F_OWNER_PGRP
  int32_t owner_signal;  // F_GETSIG
  uint32_t pipe_size;    // F_GETPIPE_SZ
  uint64_t object;       // object_number(device, inode): the same for both ends of a pipe, and for a
                         // memfd the same as MappingRecord::object
  uint64_t value;        // eventfd: counter; signalfd: mask; memfd: huge page size in bytes or 0;
                         // socket pair: object of the other end, 0 when that is gone; pipe: kPipeEndGone
  uint32_t path_len;
  uint32_t details_len;
  // then: path (of a memfd: its name; of kOther: what /proc/PID/fd says), details
};

struct DescriptorRecord {
  int32_t fd;
  uint32_t open_file;  // OpenFileRecord::id
  uint32_t fd_flags;   // FD_CLOEXEC
  uint32_t reserved;
};

// FileContentRecord::offset of a pipe's bytes. With neither of them (images of older builds) they are one
// packet each where a writing end in the image has O_DIRECT.
enum PipeContent : uint64_t {
  kPipePacket = 1ull << 63,  // one packet, written with O_DIRECT; its number below
  kPipeStream = 1ull << 62,  // bytes without bounds; their place below
};

// The contents of a message queue: one for each message, in the order in which they are received.
struct QueueMessage {
  uint32_t priority, length;  // bytes
  // then: the message, padded to 8
};

struct FileContentRecord {
  uint32_t open_file;  // OpenFileRecord::id, or 0 for a mapping's object
  uint32_t reserved;
  uint64_t object;  // of the open file, or MappingRecord::object when open_file is 0
  uint64_t offset;  // bytes in the file; of a socket: number of the message; of a pipe: PipeContent
  uint64_t length;  // bytes that follow
  // then: contents
};

// Details of an OpenFileRecord: each a DetailHeader and `length` bytes, a multiple of 8.
enum class OpenFileDetail : uint32_t {
  kLock = 1,
  kEpollWatch = 2,
  kTimer = 3,
  kInotifyWatch = 4,
  kSocket = 5,
  kTerminal = 6,
  kSocketOption = 7,
  kSocketLink = 16,     // one a socket, of images since there are connections
  kSocketMessage = 17,  // one for each message that waits to be received
  kLongSocketOption = 18,
  kMovedWatch = 20,
  kSocketFile = 21,       // of a socket that is bound to a path whose file is there
  kSocketPeer = 22,       // of a Unix socket, where the kernel tells it
  kAttribute = 23,        // of a file without a name: one for each extended attribute
  kAbandonedClient = 24,  // of a listening TCP socket: one for each connection whose client is gone
  kLinkTarget = 25,       // of a symbolic link without a name
};

struct DetailHeader {
  uint32_t type;    // OpenFileDetail
  uint32_t length;  // bytes that follow
};

enum class FileLockKind : uint32_t {
  kFlock = 0,         // flock(2), of the open file
  kPosix = 1,         // fcntl(F_SETLK), of the process
  kOpenFileLock = 2,  // fcntl(F_OFD_SETLK), of the open file
  kLease = 3,         // fcntl(F_SETLEASE), of the open file
};

struct LockDetail {
  uint32_t kind;    // FileLockKind
  uint32_t write;   // 1 exclusive, 0 shared
  uint64_t start;   // bytes
  uint64_t length;  // bytes, 0 to the end of the file
};

struct EpollWatchDetail {
  int32_t fd;
  uint32_t events;  // EPOLL*
  uint64_t data;
};

// A watch on an open file that was registered under a number that another has now.
struct MovedWatchDetail {
  EpollWatchDetail watch;
  int32_t now;  // a descriptor of the open file that is watched
  uint32_t reserved;
};

struct TimerDetail {
  int32_t clock;
  uint32_t flags;        // of timerfd_settime
  uint64_t ticks;        // expirations not yet read
  int64_t remaining_ns;  // 0 disarmed
  int64_t interval_ns;
  int64_t clock_ns;  // the clock at the stop
};

struct AttributeDetail {
  uint32_t name_len, value_len;  // bytes
  // then: name, value, padded to 8 together
};

struct LinkTargetDetail {
  uint32_t length, reserved;
  // then: where it leads, padded to 8
};

struct InotifyWatchDetail {
  int32_t watch;
  uint32_t mask;  // IN_*
  uint32_t path_len;
  uint32_t reserved;
  // then: path, padded to 8
};

struct SocketDetail {
  int32_t domain, type, protocol;
  int32_t backlog;  // of listen(2), -1 not listening
  int32_t reuse_address, reuse_port, ipv6_only, keep_alive;
  int32_t send_buffer, receive_buffer;  // as getsockopt gives them
  int32_t pass_credentials;
  uint32_t shut_down;    // bit 0: reading, bit 1: writing
  uint32_t address_len;  // bound address, 0 none
  uint32_t peer_len;     // address that datagrams go to, 0 none
  // then: address, peer (struct sockaddr), padded to 8 together
};

// Of setsockopt(2), in the order in which they are set; those that are 0 in a new socket only if they are
// not.
struct SocketOptionDetail {
  int32_t level, name;
  uint32_t length;
  uint32_t reserved;
  uint8_t value[16];
};

enum SocketLinkFlag : uint32_t {
  kLinkPeerGone = 1u << 0,        // the other end is closed
  kLinkOutside = 1u << 1,         // the other end is not in this process
  kLinkUnaccepted = 1u << 2,      // the other end waits in the backlog of `listener`, at `position`
  kLinkFileGone = 1u << 3,        // the path it is bound to leads to no file
  kLinkConnected = 1u << 5,       // of TCP: this end called connect
  kLinkAccepted = 1u << 6,        // of TCP: this end was accepted; neither: not known
  kLinkError = 1u << 4,           // an error waits to be read: the other end has reset the connection
  kLinkNeverConnected = 1u << 7,  // of TCP: connect(2) has failed since it returned (O_NONBLOCK)
  kLinkWindowFirst = 1u << 8,     // of TCP: TCP_WINDOW_CLAMP was set before it was connected
};

// The other end of a socket, and what else its neighbours need to know.
struct SocketLinkDetail {
  uint32_t state;        // of TCP: TCP_ESTABLISHED and so on
  uint32_t flags;        // SocketLinkFlag
  uint64_t peer;         // object of the other end, 0 none
  uint64_t listener;     // object, 0 none
  uint32_t position;     // in the backlog, from 0
  int32_t peek_offset;   // SO_PEEK_OFF, -1 none
  uint32_t buffer_lock;  // SO_BUF_LOCK
  uint32_t error;        // with kLinkError, of TCP and UDP: which (errno); 0, of older images: ECONNRESET
};

enum SocketMessageFlag : uint32_t {
  kMessageUrgent = 1u << 0,       // of TCP: its one byte was sent with MSG_OOB
  kMessageCredentials = 1u << 1,  // pid, uid, gid were sent with it
  kMessageTaken = 1u << 2,        // of an urgent byte: the program has had it, only its mark is there
};

// SO_PEERCRED: who made the pair, connected to this end, or listened where it connected; of a listening
// socket who listens. The pid as the program sees it.
struct SocketPeerDetail {
  int32_t pid;
  uint32_t uid, gid;
  uint32_t reserved;
};

// Who may connect is what the rights of the file say; some programs look at them too.
struct SocketFileDetail {
  uint32_t mode, uid, gid;  // st_mode and so on
  // Bytes of what follows. The directory that a relative name is of, if that is not the process's; and where
  // the file is now, absolute, if its name does not lead there any more. 0: none.
  uint16_t directory_len, now_len;
  // then: both, padded to 8 together
};

// A connection that waits to be accepted, and whose client is gone without having sent a byte. Addresses of
// IPv6, or of IPv4 in it; ports in network order.
struct AbandonedClientDetail {
  uint8_t client[16], server[16];
  uint16_t client_port, server_port;
  uint32_t scope;  // of IPv6 of a link: its interface
  uint32_t reset;  // 1: the client has reset it: neither end is known, nor anything above
  uint32_t reserved;
};

// A message that waits to be received. Its bytes are the FileContentRecords of the open file with this number
// as offset; of a stream, the next bytes.
struct SocketMessageDetail {
  uint32_t number, flags;  // from 0; SocketMessageFlag
  uint64_t length;         // bytes
  uint32_t address_len;    // of the sender, 0 none
  uint32_t file_count;     // descriptors sent with it
  int32_t pid;
  uint32_t uid, gid;
  uint32_t reserved;
  // then: address (struct sockaddr), padded to 4; file_count OpenFileRecord::id; padded to 8
};

// As SocketOptionDetail, of any length.
struct LongSocketOptionDetail {
  int32_t level, name;
  uint32_t length;
  uint32_t reserved;
  // then: value, padded to 8
};

// Of a terminal whose foreground job the program was: termios(3), and the size of its window. Settings of the
// line (speed, parity) are the new terminal's own.
struct TerminalDetail {
  uint32_t input, output, local;  // c_iflag, c_oflag, c_lflag
  uint8_t discipline;             // c_line
  uint8_t characters[19];         // c_cc
  uint16_t rows, columns;
  uint32_t reserved;
};

}  // namespace ckpt
