#include "cluster/keeper/keeper_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/sockets/descriptor_message.h"
#include "cluster/keeper/low_priority.h"
#include "cluster/keeper/memory_left.h"

namespace ckpt::keeper {

namespace {

// The same numbers on all of Linux.
constexpr long kFsOpen = 430, kFsConfig = 431, kFsMount = 432;

long set_option(int context, const char* key, const std::string& value) {
  return syscall(kFsConfig, context, FSCONFIG_SET_STRING, key, value.c_str(), 0);
}

// The descriptor of its root, or -errno.
int make_file_system(uint64_t bound_bytes, bool* huge) {
  const ScopedFd context(
      static_cast<int>(syscall(kFsOpen, "tmpfs", 0 /* not FSOPEN_CLOEXEC: closed here */)));
  if (!context.valid()) return -errno;
  if (set_option(context.get(), "size", std::to_string(bound_bytes)) != 0) return -errno;
  if (set_option(context.get(), "mode", "0700") != 0) return -errno;
  // A kernel without them goes on with small ones.
  *huge = set_option(context.get(), "huge", "within_size") == 0;
  // Images in swap would be on a disk. Only the first user namespace may say so.
  syscall(kFsConfig, context.get(), FSCONFIG_SET_FLAG, "noswap", nullptr, 0);
  if (syscall(kFsConfig, context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) != 0) return -errno;
  const auto root = static_cast<int>(syscall(kFsMount, context.get(), FSMOUNT_CLOEXEC,
                                             MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC));
  return root >= 0 ? root : -errno;
}

bool write_text(const char* path, const std::string& text) {
  const ScopedFd file(open(path, O_WRONLY | O_CLOEXEC));
  return file.valid() && write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Maps our own user and group into it, no others.
int enter_user_namespace() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return -errno;
  if (!write_text("/proc/self/setgroups", "deny") ||
      !write_text("/proc/self/uid_map", std::to_string(user) + " " + std::to_string(user) + " 1") ||
      !write_text("/proc/self/gid_map", std::to_string(group) + " " + std::to_string(group) + " 1"))
    return -errno;
  return 0;
}

struct Handed {
  int error;  // 0, or -errno
  bool huge;
};

int receive(int socket, bool* huge) {
  Handed handed{-EPROTO, false};
  int fd = -1;
  if (receive_descriptor(socket, &handed, sizeof(handed), &fd) != static_cast<long>(sizeof(handed)))
    return -EPROTO;
  if (fd < 0) return handed.error != 0 ? handed.error : -EPROTO;
  *huge = handed.huge;
  return fd;
}

// The mount belongs to a user namespace that only the child is in; the keeper stays in its own.
int make_in_user_namespace(uint64_t bound_bytes, bool* huge) {
  std::array<int, 2> pair{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0) return -errno;
  const ScopedFd ours(pair[0]);
  ScopedFd theirs(pair[1]);
  const pid_t child = fork();
  if (child < 0) return -errno;
  if (child == 0) {
    Handed handed{enter_user_namespace(), false};
    int fd = -1;
    if (handed.error == 0) {
      fd = make_file_system(bound_bytes, &handed.huge);
      if (fd < 0) handed.error = fd;
    }
    (void)send_descriptor(theirs.get(), &handed, sizeof(handed), fd);
    _exit(0);
  }
  theirs.reset();
  const int fd = receive(ours.get(), huge);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return fd;
}

}  // namespace

Result<Memory> make_memory(const std::string& name, uint64_t bound_bytes) {
  Memory memory;
  int root = make_file_system(bound_bytes, &memory.huge_pages);
  if (root == -EPERM || root == -EACCES) root = make_in_user_namespace(bound_bytes, &memory.huge_pages);
  if (root < 0) {
    return make_error(
        ExitCode::kUnavailable, root,
        "the keeper's memory cannot be made ({}): it takes Linux 5.2, and root or user namespaces "
        "(sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)",
        errno_name(-root));
  }
  memory.file_system.reset(root);
  const std::string directory = "keeper:" + name;
  if (mkdirat(root, directory.c_str(), 0700) == 0) {
    memory.images.reset(openat(root, directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    fchmod(memory.images.get(), 0700);
  }
  if (!memory.images.valid()) {
    return make_error(ExitCode::kSystem, errno,
                      "the keeper's directory cannot be made ({}): give it more --memory", errno_name(errno));
  }
  return memory;
}

Use use_of(const Memory& memory) {
  struct statfs fs {};
  if (fstatfs(memory.file_system.get(), &fs) != 0) return {};
  const auto block = static_cast<uint64_t>(fs.f_bsize);
  return {fs.f_blocks * block, (fs.f_blocks - fs.f_bfree) * block};
}

uint64_t touch_memory(uint64_t bytes, const bool volatile* stop) {
  constexpr uint64_t kStep = 32 << 20;
  take_low_priority();
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  madvise(at, bytes, MADV_HUGEPAGE);
  madvise(at, bytes, MADV_DONTFORK);
  uint64_t touched = 0;
  while (touched < bytes && !*stop) {
    const MemoryLeft memory = memory_left();
    const uint64_t step = bytes - touched < kStep ? bytes - touched : kStep;
    if (memory.left < memory.all / 8 + step) break;
    for (uint64_t page = 0; page < step; page += 4096) static_cast<volatile char*>(at)[touched + page] = 1;
    touched += step;
  }
  munmap(at, bytes);
  return touched;
}

}  // namespace ckpt::keeper
