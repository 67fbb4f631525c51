#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "base/memory/bytes.h"
#include "restart/descriptors/builder.h"

// POSIX message queues. They belong to the system and outlive the program, with what has come since: their
// messages go back to those of the checkpoint, once, before a process runs. A queue that is gone is made
// again.

namespace ckpt {
namespace {

std::string queue_name(const ParsedOpenFile& file) {
  return std::string(file.path.substr(file.path.starts_with('/') ? 1 : 0));
}

bool is_removed(const ParsedOpenFile& file) {
  return (file.record.flags & kOpenFileDeleted) != 0 || file.path.ends_with(" (deleted)");
}

// The system call knows a queue by its name without the slash.
ScopedFd open_queue(const std::string& name, int flags, mode_t mode = 0, mq_attr* attributes = nullptr) {
  return ScopedFd(static_cast<int>(syscall(SYS_mq_open, name.c_str(), flags | O_CLOEXEC, mode, attributes)));
}

// Attributes that images of older builds do not have are 0.
mq_attr attributes_of(const ParsedOpenFile& file) {
  mq_attr attributes{};
  attributes.mq_maxmsg = static_cast<long>(file.record.value >> 32);
  attributes.mq_msgsize = static_cast<long>(file.record.value & 0xffffffff);
  return attributes;
}

// A process that has it open too, and is not of the job: that is gone, or not there yet. 0: none that can be
// seen.
int other_user(int queue) {
  struct stat wanted, st;
  if (fstat(queue, &wanted) != 0) return 0;
  auto close = [](DIR* d) { closedir(d); };
  using Directory = std::unique_ptr<DIR, decltype(close)>;
  const Directory all(opendir("/proc"), close);
  while (const dirent* process = all != nullptr ? readdir(all.get()) : nullptr) {
    const int pid = atoi(process->d_name);
    if (pid <= 0 || pid == getpid()) continue;
    const std::string place = fmt::format("/proc/{}/fd", pid);
    const Directory fds(opendir(place.c_str()), close);
    while (const dirent* fd = fds != nullptr ? readdir(fds.get()) : nullptr) {
      if (stat((place + "/" + fd->d_name).c_str(), &st) == 0 && st.st_dev == wanted.st_dev &&
          st.st_ino == wanted.st_ino)
        return pid;
    }
  }
  return 0;
}

}  // namespace

// Before anything is touched.
Result<void> DescriptorBuilder::check_message_queue(const ParsedOpenFile& file) const {
  if (is_removed(file)) return {};
  ScopedFd queue = open_queue(queue_name(file), O_RDONLY | O_NONBLOCK);
  if (!queue.valid()) queue = open_queue(queue_name(file), O_WRONLY | O_NONBLOCK);
  mq_attr now{};
  if (!queue.valid() || syscall(SYS_mq_getsetattr, queue.get(), nullptr, &now) != 0) return {};
  const mq_attr then = attributes_of(file);
  if (file.record.value == 0 || (now.mq_maxmsg == then.mq_maxmsg && now.mq_msgsize == then.mq_msgsize))
    return {};
  return make_error(
      ExitCode::kFileChanged, 0,
      "the message queue {} has room for {} messages of {} bytes, and had for {} of {}: if nobody needs "
      "it, remove it (rm /dev/mqueue/{}), and it is made again",
      file.path, now.mq_maxmsg, now.mq_msgsize, then.mq_maxmsg, then.mq_msgsize, queue_name(file));
}

Result<ScopedFd> DescriptorBuilder::make_message_queue(const ParsedOpenFile& file) const {
  const bool removed = is_removed(file);
  const std::string name =
      removed ? fmt::format("ckpt-{}-{}", getpid(), file.record.inode) : queue_name(file);
  // Nobody's: an earlier restart may have been killed before it took the name away.
  if (removed) syscall(SYS_mq_unlink, name.c_str());
  const uint32_t mode = file.record.mode & 07777;
  mq_attr attributes = attributes_of(file);
  ScopedFd queue = open_queue(name, O_RDWR | O_NONBLOCK | O_CREAT | O_EXCL, 0600,
                              file.record.value != 0 ? &attributes : nullptr);
  if (!queue.valid()) {
    return make_error(ExitCode::kUnavailable, errno,
                      "the message queue {} cannot be made again ({}): see ulimit -q and /proc/sys/fs/mqueue",
                      file.path, errno_name(errno));
  }
  if (removed) syscall(SYS_mq_unlink, name.c_str());
  // If we may not give the queue away, it stays ours.
  const ProcessRecord& p = meta_.process.record;
  (void)!fchown(queue.get(), p.uid[1], p.gid[1]);
  fchmod(queue.get(), mode);
  return queue;
}

Result<void> DescriptorBuilder::put_back_messages(const ParsedOpenFile& file, int queue) const {
  const auto failed = [&](const char* what) {
    return make_error(ExitCode::kSystem, errno, "the message queue {}: {} ({})", file.path, what,
                      errno_name(errno));
  };
  mq_attr now{};
  if (syscall(SYS_mq_getsetattr, queue, nullptr, &now) != 0) return failed("cannot be looked at");
  if (const int pid = other_user(queue); pid != 0)
    say("the message queue {} is open in process {} too: its messages go back to the checkpoint", file.path,
        pid);
  std::vector<char> one(static_cast<size_t>(now.mq_msgsize) + 1);
  for (long i = 0; i <= now.mq_maxmsg; ++i) {
    if (syscall(SYS_mq_timedreceive, queue, one.data(), one.size(), nullptr, nullptr) >= 0) continue;
    if (errno != EAGAIN) return failed("messages that came since cannot be taken out");
    break;
  }
  for (const auto& c : meta_.contents) {
    if (c.record.open_file == 0 || c.record.object != file.record.object) continue;
    ByteReader reader(c.bytes);
    while (reader.ok() && reader.left() >= sizeof(QueueMessage)) {
      const auto message = reader.get<QueueMessage>();
      const auto bytes = reader.take((size_t{message.length} + 7) & ~size_t{7});
      if (!reader.ok()) break;
      if (syscall(SYS_mq_timedsend, queue, bytes.data(), size_t{message.length}, message.priority, nullptr) !=
          0)
        return failed("a message that waited in it cannot be put back");
    }
  }
  return {};
}

Result<ScopedFd> DescriptorBuilder::open_message_queue(const ParsedOpenFile& file) {
  auto known = queues_.find(file.record.object);
  if (known == queues_.end()) {
    ScopedFd queue;
    if (!is_removed(file)) queue = open_queue(queue_name(file), O_RDWR | O_NONBLOCK);
    if (!queue.valid() && (is_removed(file) || errno == ENOENT)) {
      auto made = make_message_queue(file);
      if (!made.ok()) return made;
      queue = std::move(*made);
    }
    if (!queue.valid()) {
      return make_error(
          ExitCode::kPermission, errno,
          "the message queue {} may not be used by this user ({}): restart as one who may, or remove it "
          "(rm /dev/mqueue/{}), and it is made again",
          file.path, errno_name(errno), queue_name(file));
    }
    struct stat st;
    const uint32_t user = meta_.process.record.uid[1];
    if (fstat(queue.get(), &st) == 0 && st.st_uid != user && user != 0 && geteuid() != 0) {
      say("the message queue {} belongs to user {}, not to the program's: it stays as it is", file.path,
          st.st_uid);
    } else {
      CKPT_TRY(put_back_messages(file, queue.get()));
    }
    auto parked = options_.working->park(std::move(queue), "a message queue");
    if (!parked.ok()) return parked.error();
    known = queues_.emplace(file.record.object, *parked).first;
  }
  const int flags = static_cast<int>(file.record.open_flags) & (O_ACCMODE | O_NONBLOCK);
  auto again = open_again(file, known->second, flags | O_CLOEXEC);
  if (again.ok()) return again;
  // The program opened the queue with the call that made it, before the queue's own mode counted.
  const uint32_t mode = file.record.mode & 07777;
  if (fchmod(known->second, mode | 0600) == 0) again = open_again(file, known->second, flags | O_CLOEXEC);
  fchmod(known->second, mode);
  return again;
}

}  // namespace ckpt
