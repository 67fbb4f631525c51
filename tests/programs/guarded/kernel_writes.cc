// The kernel writes: results of system calls.
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <netdb.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <vector>

#include "tests/programs/guarded/guarded.h"

namespace guarded {

using namespace victim;

namespace {

constexpr uint64_t kFieldPages = 8192;

bool all(const std::byte* p, uint64_t n, unsigned char value) {
  for (uint64_t i = 0; i < n; ++i) {
    if (p[i] != std::byte{value}) return false;
  }
  return true;
}

uint64_t size_of(Random& random) { return 1 + random.below(random.below(8) == 0 ? 200'000 : 6'000); }

}  // namespace

std::string reads(uint64_t iterations) {
  Field field(kFieldPages, 1);
  Random& random = field.random();
  // Files are read whole, whatever comes.
  const int file = memfd_create("zeros", MFD_CLOEXEC);
  require_call(file >= 0 && ftruncate(file, 256 << 10) == 0, "memfd_create");
  int pipe_ends[2];
  require_call(pipe2(pipe_ends, O_CLOEXEC) == 0, "pipe2");
  std::vector<std::byte> sent(4096);
  for (uint64_t n = 0; n < iterations; ++n) {
    const uint64_t size = size_of(random);
    std::byte* p = field.place(size + 1);
    const std::byte behind = p[size];
    switch (n % 5) {
      case 0:
        require_call(
            lseek(file, 0, SEEK_SET) == 0 && syscall(SYS_read, file, p, size) == static_cast<long>(size),
            "raw read");
        require(all(p, size, 0), "reads: not zeros");
        break;
      case 1:
        require_call(pread(file, p, size, 0) == static_cast<ssize_t>(size), "pread");
        require(all(p, size, 0), "reads: not zeros");
        break;
      case 2: {
        iovec pieces[3] = {{p, size / 3}, {p + size / 3, size / 3}, {p + size / 3 * 2, size - size / 3 * 2}};
        require_call(preadv(file, pieces, 3, 0) == static_cast<ssize_t>(size), "preadv");
        require(all(p, size, 0), "reads: not zeros");
        break;
      }
      case 3: {
        const uint64_t few = size < sent.size() ? size : sent.size();
        for (uint64_t i = 0; i < few; ++i) sent[i] = static_cast<std::byte>(mix(n + i));
        require_call(write(pipe_ends[1], sent.data(), few) == static_cast<ssize_t>(few), "write");
        const iovec pieces[2] = {{p, few / 2}, {p + few / 2, few - few / 2}};
        const bool vector = n % 2 == 0;
        require_call((vector ? readv(pipe_ends[0], pieces, 2) : read(pipe_ends[0], p, few)) ==
                         static_cast<ssize_t>(few),
                     "read of a pipe");
        require(std::memcmp(p, sent.data(), few) == 0, "reads: a pipe gave other bytes");
        break;
      }
      default: {
        const uint64_t few = size < 256 ? size : 256;
        require_call(getrandom(p, few, 0) == static_cast<ssize_t>(few), "getrandom");
      }
    }
    if (n % 5 < 3) require(p[size] == behind, "reads: a byte behind the buffer");
  }
  close(file);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  return fmt::format("{} reads", iterations);
}

std::string facts(uint64_t iterations) {
  Field field(kFieldPages, 2), as_it_was(kFieldPages / 8, 7);
  // A filter that is long enough to be read across the end of a segment.
  std::vector<sock_filter> filter(64, sock_filter BPF_STMT(BPF_RET | BPF_K, 1));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  const int filtered = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  require_call(
      filtered >= 0 && setsockopt(filtered, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0,
      "setsockopt");
  for (uint64_t n = 0; n < iterations; ++n) {
    switch (n % 17) {
      case 0: {
        auto* s = field.place_for<struct stat>();
        require_call(syscall(SYS_newfstatat, AT_FDCWD, "/", s, 0) == 0 && S_ISDIR(s->st_mode), "stat");
        break;
      }
      case 1:
        require_call(statx(AT_FDCWD, "/", 0, STATX_ALL, field.place_for<struct statx>()) == 0, "statx");
        break;
      case 2:
        require_call(statfs("/", field.place_for<struct statfs>()) == 0, "statfs");
        break;
      case 3:
        require_call(uname(field.place_for<utsname>()) == 0, "uname");
        break;
      case 4:
        require_call(syscall(SYS_clock_gettime, CLOCK_REALTIME, field.place_for<timespec>()) == 0,
                     "clock_gettime");
        break;
      case 5:
        require_call(getrusage(RUSAGE_SELF, field.place_for<rusage>()) == 0, "getrusage");
        break;
      case 6:
        require_call(getrlimit(RLIMIT_STACK, field.place_for<rlimit>()) == 0, "getrlimit");
        break;
      case 7:
        require_call(sysinfo(field.place_for<struct sysinfo>()) == 0, "sysinfo");
        break;
      case 8:
        require_call(getcwd(field.place_for<char>(4096), 4096) != nullptr, "getcwd");
        break;
      case 9:
        require_call(readlink("/proc/self/exe", field.place_for<char>(4096), 4096) > 0, "readlink");
        break;
      case 10: {
        auto* ends = field.place_for<int>(2);
        require_call(pipe2(ends, O_CLOEXEC) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0, "pipe2");
        break;
      }
      case 11:
        require_call(sched_getaffinity(0, 128, field.place_for<cpu_set_t>()) == 0, "sched_getaffinity");
        break;
      case 12: {
        auto *ruid = field.place_for<uid_t>(), *euid = field.place_for<uid_t>(),
             *suid = field.place_for<uid_t>();
        require_call(getresuid(ruid, euid, suid) == 0 && *ruid == getuid(), "getresuid");
        break;
      }
      // Calls that refuse what they find, and write there what they would have liked.
      case 13: {
        auto* header = as_it_was.place_for<__user_cap_header_struct>();
        const uint32_t unknown = header->version;
        errno = 0;
        require_call(syscall(SYS_capset, header, nullptr) == -1 && errno == EINVAL, "capset");
        require(header->version == _LINUX_CAPABILITY_VERSION_3, "facts: capabilities of version {:x}",
                header->version);
        header->version = unknown;
        break;
      }
      case 14: {
        auto* size = as_it_was.place_for<uint32_t>();
        const uint32_t unknown = *size;
        errno = 0;
        require_call(syscall(SYS_sched_setattr, 0, size, 0) == -1 && errno == E2BIG, "sched_setattr");
        require(*size != unknown, "facts: sched_setattr told no size");
        *size = unknown;
        break;
      }
      case 15: {
        // Its length is in instructions.
        constexpr uint64_t kSegment = 64 << 10;
        auto* end = reinterpret_cast<std::byte*>(
            (reinterpret_cast<uint64_t>(field.place(2 * kSegment)) + kSegment) & ~(kSegment - 1));
        socklen_t instructions = static_cast<socklen_t>(filter.size());
        require_call(getsockopt(filtered, SOL_SOCKET, SO_GET_FILTER, end - 64, &instructions) == 0 &&
                         instructions == filter.size(),
                     "getsockopt of a filter");
        break;
      }
      default: {
        const int directory = open("/usr", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        require_call(directory >= 0 && syscall(SYS_getdents64, directory, field.place(8192), 8192) > 0,
                     "getdents64");
        close(directory);
      }
    }
  }
  close(filtered);
  return fmt::format("{} facts", iterations);
}

std::string messages(uint64_t iterations) {
  Field field(kFieldPages, 3);
  Random& random = field.random();
  int pair[2];
  require_call(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
  std::vector<std::byte> sent(6001);
  for (uint64_t n = 0; n < iterations; ++n) {
    const uint64_t size = 1 + random.below(6000);
    for (uint64_t i = 0; i < size; ++i) sent[i] = static_cast<std::byte>(mix(n * 7 + i));
    std::byte* p = field.place(size);
    if (n % 2 == 0) {
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
      iovec piece{sent.data(), size};
      msghdr out{};
      out.msg_iov = &piece;
      out.msg_iovlen = 1;
      out.msg_control = control;
      out.msg_controllen = sizeof(control);
      cmsghdr* c = CMSG_FIRSTHDR(&out);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(c), &pair[0], sizeof(int));
      require_call(sendmsg(pair[0], &out, 0) == static_cast<ssize_t>(size), "sendmsg");
      auto* in = field.place_for<msghdr>();
      auto* pieces = field.place_for<iovec>(2);
      *in = {};
      pieces[0] = {p, size / 2};
      pieces[1] = {p + size / 2, size - size / 2};
      in->msg_iov = pieces;
      in->msg_iovlen = 2;
      in->msg_control = field.place(256);
      in->msg_controllen = 256;
      require_call(recvmsg(pair[1], in, MSG_CMSG_CLOEXEC) == static_cast<ssize_t>(size), "recvmsg");
      cmsghdr* got = CMSG_FIRSTHDR(in);
      require(got != nullptr && got->cmsg_type == SCM_RIGHTS, "messages: no descriptor came");
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(got), sizeof(fd));
      require_call(close(fd) == 0, "close");
    } else {
      require_call(send(pair[0], sent.data(), size, 0) == static_cast<ssize_t>(size), "send");
      auto* length = field.place_for<socklen_t>();
      *length = 128;
      require_call(recvfrom(pair[1], p, size, 0, reinterpret_cast<sockaddr*>(field.place(128)), length) ==
                       static_cast<ssize_t>(size),
                   "recvfrom");
    }
    require(std::memcmp(p, sent.data(), size) == 0, "messages: other bytes came");
  }
  close(pair[0]);
  close(pair[1]);
  return fmt::format("{} messages", iterations);
}

std::string waits(uint64_t iterations) {
  Field field(kFieldPages, 4);
  const int event = eventfd(0, EFD_CLOEXEC), set = epoll_create1(EPOLL_CLOEXEC);
  epoll_event what{EPOLLIN, {}};
  what.data.u64 = 0x1122334455667788;
  require_call(event >= 0 && set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, event, &what) == 0, "epoll");
  for (uint64_t n = 0; n < iterations; ++n) {
    const bool ready = n % 2 == 0;
    uint64_t value = 1;
    if (ready) require_call(write(event, &value, 8) == 8, "write to an eventfd");
    switch (n % 6 / 2) {
      case 0: {
        auto* fds = field.place_for<pollfd>(3);
        for (int i = 0; i < 3; ++i) fds[i] = {i == 1 ? event : -1, POLLIN, static_cast<short>(-1)};
        require_call(poll(fds, 3, ready ? -1 : 1) == (ready ? 1 : 0), "poll");
        require(fds[1].revents == (ready ? POLLIN : 0) && fds[0].revents == 0,
                "waits: poll said something else");
        break;
      }
      case 1: {
        auto* events = field.place_for<epoll_event>(8);
        require_call(epoll_wait(set, events, 8, ready ? -1 : 1) == (ready ? 1 : 0), "epoll_wait");
        require(!ready || events[0].data.u64 == what.data.u64, "waits: epoll_wait said something else");
        break;
      }
      default: {
        auto* in = field.place_for<fd_set>();
        FD_ZERO(in);
        FD_SET(event, in);
        auto* time = field.place_for<timeval>();
        *time = {0, 1000};
        require_call(select(event + 1, in, nullptr, nullptr, ready ? nullptr : time) == (ready ? 1 : 0),
                     "select");
        auto* left = field.place_for<timespec>();
        const timespec nap{0, 1000};
        require_call(nanosleep(&nap, left) == 0, "nanosleep");
      }
    }
    auto* got = field.place_for<uint64_t>();
    if (ready) require_call(read(event, got, 8) == 8 && *got == 1, "read of an eventfd");
    // A futex of which the kernel writes the word.
    auto *from = field.place_for<uint32_t>(), *to = field.place_for<uint32_t>();
    *from = 0;
    const uint32_t before = *to;
    const long add_one = FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0);
    require_call(syscall(SYS_futex, from, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 1, 1L, to, add_one) >= 0,
                 "futex");
    require(*to == before + 1, "waits: the futex is {}", *to);
  }
  close(event);
  close(set);
  return fmt::format("{} waits", iterations);
}

std::string library(uint64_t iterations) {
  Field field(kFieldPages, 5);
  for (uint64_t n = 0; n < iterations; ++n) {
    FILE* f = tmpfile();
    require_call(f != nullptr, "tmpfile");
    setvbuf(f, field.place_for<char>(16384), _IOFBF, 16384);
    for (unsigned i = 0; i < 3000; ++i) require_call(fprintf(f, "%lu %u\n", n, i) > 0, "fprintf");
    rewind(f);
    for (unsigned i = 0; i < 3000; ++i) {
      unsigned long a = 0;
      unsigned b = 0;
      require(fscanf(f, "%lu %u", &a, &b) == 2 && a == n && b == i, "library: line {} of {} is {} {}", i, n,
              a, b);
    }
    fclose(f);
    DIR* directory = opendir("/usr");
    require_call(directory != nullptr, "opendir");
    unsigned entries = 0;
    while (readdir(directory) != nullptr) ++entries;
    require(entries >= 3, "library: {} entries", entries);
    closedir(directory);
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    require(getaddrinfo("localhost", "80", &hints, &found) == 0 && found != nullptr, "library: getaddrinfo");
    freeaddrinfo(found);
    time_t now = time(nullptr);
    require_call(localtime_r(&now, field.place_for<tm>()) != nullptr, "localtime_r");
  }
  return fmt::format("{} rounds", iterations);
}

std::string children(uint64_t iterations) {
  Field field(kFieldPages, 6);
  for (uint64_t n = 0; n < iterations; ++n) {
    const pid_t child = fork();
    require_call(child >= 0, "fork");
    if (child == 0) {
      // Its memory is its own: it writes where the parent may not yet.
      std::memset(field.place(50'000), 1, 50'000);
      _exit(static_cast<int>(n % 100));
    }
    if (n % 2 == 0) {
      auto* status = field.place_for<int>();
      require_call(wait4(child, status, 0, field.place_for<rusage>()) == child, "wait4");
      require(WIFEXITED(*status) && WEXITSTATUS(*status) == static_cast<int>(n % 100),
              "children: status {:x}", *status);
    } else {
      auto* info = field.place_for<siginfo_t>();
      require_call(waitid(P_PID, static_cast<id_t>(child), info, WEXITED) == 0, "waitid");
      require(info->si_status == static_cast<int>(n % 100), "children: status {}", info->si_status);
    }
  }
  return fmt::format("{} children", iterations);
}

}  // namespace guarded
