#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/fanotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/machine/capabilities.h"
#include "image/format/records/fanotify_records.h"
#include "restart/descriptors/builder.h"

// fanotify(7). A group is made with its flags. Its marks come last, when no more files are opened for the new
// process. To set a mark tells nobody anything.

namespace ckpt {
namespace {

constexpr uint64_t kAdmin = uint64_t{1} << CAP_SYS_ADMIN;
constexpr const char* kTakesRights = "that takes CAP_SYS_ADMIN; restart it as root";
constexpr uint32_t kReportMounts = 0x4000;  // FAN_REPORT_MNT, Linux 6.15
constexpr uint32_t kMarkNamespace = 0x110;  // FAN_MARK_MNTNS, Linux 6.15

// The flags that a group may have which is made without rights.
bool is_for_all(uint32_t flags) {
  constexpr uint32_t kOfDescriptor = FAN_CLOEXEC | FAN_NONBLOCK;
  constexpr uint32_t kForAll =
      FAN_REPORT_FID | FAN_REPORT_DIR_FID | FAN_REPORT_NAME | FAN_REPORT_TARGET_FID | kReportMounts;
  return (flags & ~(kForAll | kOfDescriptor)) == 0 && (flags & kForAll) != 0;
}

// For as long as it lives the calling thread has no CAP_SYS_ADMIN.
class ScopedNoAdmin {
 public:
  explicit ScopedNoAdmin(bool wanted) : before_(own_capabilities()) {
    changed_ = wanted && (before_.effective & kAdmin) != 0;
    if (!changed_) return;
    Capabilities without = before_;
    without.effective &= ~kAdmin;
    set_own_capabilities(without);
  }
  ScopedNoAdmin(const ScopedNoAdmin&) = delete;
  ScopedNoAdmin& operator=(const ScopedNoAdmin&) = delete;
  ~ScopedNoAdmin() {
    if (changed_) set_own_capabilities(before_);
  }

 private:
  Capabilities before_;
  bool changed_ = false;
};

// None: the checkpoint could not read what the group is, or an image says what no checkpoint does.
std::optional<FanotifyGroupDetail> group_of(const ParsedOpenFile& file) {
  std::optional<FanotifyGroupDetail> group;
  for_each_detail<FanotifyGroupDetail>(file, kFanotifyGroupDetail,
                                       [&](const FanotifyGroupDetail& d, Blob) { group = d; });
  if (group && (group->flags & (FAN_CLASS_CONTENT | FAN_CLASS_PRE_CONTENT)) != 0) return {};
  return group;
}

uint32_t type_of(const FanotifyMarkDetail& mark) {
  switch (static_cast<MarkedObject>(mark.object)) {
    case MarkedObject::kFile:
      return FAN_MARK_INODE;
    case MarkedObject::kMount:
      return FAN_MARK_MOUNT;
    case MarkedObject::kFileSystem:
      return FAN_MARK_FILESYSTEM;
    case MarkedObject::kMountNamespace:
      return kMarkNamespace;
  }
  return FAN_MARK_INODE;
}

// 0 or errno.
int mark_once(int group, uint32_t flags, uint64_t mask, const std::string& path) {
  return syscall(__NR_fanotify_mark, group, FAN_MARK_ADD | flags, mask, AT_FDCWD, path.c_str()) == 0 ? 0
                                                                                                     : errno;
}

// 0 or errno; ENODEV: nothing is mounted there.
int put_mark(int group, const FanotifyMarkDetail& mark, const std::string& path) {
  const bool is_link = (mark.flags & FAN_MARK_DONT_FOLLOW) != 0;
  struct statx st {};
  if (statx(AT_FDCWD, path.c_str(), is_link ? AT_SYMLINK_NOFOLLOW : 0, STATX_TYPE, &st) != 0) return errno;
  const uint32_t type = type_of(mark);
  if ((type == FAN_MARK_MOUNT || type == FAN_MARK_FILESYSTEM) &&
      (st.stx_attributes_mask & ~st.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0)
    return ENODEV;
  // The kernel adds it to marks of files by itself, and refuses it there from some groups.
  const uint64_t not_here = S_ISDIR(st.stx_mode) ? 0 : uint64_t{FAN_EVENT_ON_CHILD};
  const uint32_t lasting = mark.flags & (FAN_MARK_EVICTABLE | FAN_MARK_DONT_FOLLOW);
  if (const uint64_t mask = mark.mask & ~not_here; mask != 0) {
    if (const int error = mark_once(group, type | lasting, mask, path); error != 0) return error;
  }
  const uint64_t ignored = mark.ignored & ~not_here;
  if (ignored == 0) return 0;
  const uint32_t kind = (mark.flags & FAN_MARK_IGNORE) != 0 ? FAN_MARK_IGNORE : FAN_MARK_IGNORED_MASK;
  return mark_once(group, type | lasting | kind | (mark.flags & FAN_MARK_IGNORED_SURV_MODIFY), ignored, path);
}

}  // namespace

// What is known ahead of everything.
Result<void> DescriptorBuilder::check_fanotify(const ParsedOpenFile& file) const {
  const auto group = group_of(file);
  if (!group || is_for_all(group->flags) || (own_capabilities().effective & kAdmin) != 0) return {};
  return make_error(ExitCode::kPermission, EPERM, "{} cannot be made again: {}",
                    describe(file, first_descriptor(file)), kTakesRights);
}

Result<ScopedFd> DescriptorBuilder::make_fanotify(const ParsedOpenFile& file) {
  const auto group = group_of(file);
  if (!group) return make_placeholder(file);
  const int fd = first_descriptor(file);
  const auto maker = static_cast<GroupMaker>(group->made_by);
  // Of a program that has made one with and one without.
  const bool in_doubt = maker == GroupMaker::kBoth;
  const bool known = maker == GroupMaker::kHadRights || maker == GroupMaker::kHadNone;
  const bool program_has = (meta_.process.record.cap_effective & kAdmin) != 0;
  const bool without = is_for_all(group->flags) && (known ? maker == GroupMaker::kHadNone : !program_has);
  const bool may = (own_capabilities().effective & kAdmin) != 0;
  if (is_for_all(group->flags) && (without ? !known : in_doubt || !may)) {
    say("{}: {}: its events {} which process has caused them", describe(file, fd),
        may || without ? "whether it was made with CAP_SYS_ADMIN is not known"
                       : "it is made without CAP_SYS_ADMIN now",
        without || !may ? "do not say" : "say");
  }
  ScopedFd made;
  int error = 0;
  {
    const ScopedNoAdmin rights(without);
    made.reset(static_cast<int>(syscall(__NR_fanotify_init, group->flags, group->event_flags)));
    error = errno;
  }
  if (!made.valid()) {
    return make_error(error == EPERM ? ExitCode::kPermission : ExitCode::kSystem, error,
                      "{} cannot be made again ({}){}{}", describe(file, fd), errno_name(error),
                      error == EPERM ? ": " : "", error == EPERM ? kTakesRights : "");
  }
  // fdinfo tells the flags that it was made with, whatever they are by now.
  fcntl(made.get(), F_SETFD, FD_CLOEXEC);
  fcntl(made.get(), F_SETFL, static_cast<int>(file.record.open_flags));
  if (!options_.watch_later || fd < 0) add_fanotify_marks(file, made.get());
  return made;
}

void DescriptorBuilder::add_fanotify_marks(const ParsedOpenFile& file, int group) const {
  for_each_detail<FanotifyMarkDetail>(
      file, kFanotifyMarkDetail, [&](const FanotifyMarkDetail& mark, Blob after) {
        const std::string path(reinterpret_cast<const char*>(after.data()),
                               std::min<size_t>(mark.path_len, after.size()));
        const int error = put_mark(group, mark, path);
        if (error == 0) return;
        const char* what = type_of(mark) == FAN_MARK_INODE ? "" : "what is mounted at ";
        say("{}: {}{} cannot be watched ({}): the program is not told of it",
            describe(file, first_descriptor(file)), what, path, errno_name(error));
      });
  if ((file.record.flags & kOpenFileEventsLost) != 0) {
    say("{}: events that waited in it are lost, which the program is not told",
        describe(file, first_descriptor(file)));
  }
}

void DescriptorBuilder::add_file_watches(const ParsedOpenFile& file, int fd) const {
  if (kind_of(file) == OpenFileKind::kInotify)
    add_inotify_watches(file, fd);
  else
    add_fanotify_marks(file, fd);
}

}  // namespace ckpt
