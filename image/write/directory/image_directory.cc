#include "image/write/directory/image_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/files/directory_scan.h"
#include "base/memory/arena.h"
#include "base/sys.h"
#include "image/format/image_probe.h"
#include "image/format/io_error.h"
#include "image/format/keeper_client.h"
#include "image/write/directory/saved_files.h"
#include "image/write/image_file.h"
#include "base/preload_rules.h"

namespace ckpt {

namespace {

bool same_run(const uint8_t a[16], const uint8_t b[16]) { return std::memcmp(a, b, 16) == 0; }

// Entries of one run, by their names.
template <typename Visit>
long scan_run(int dir_fd, const uint8_t run_id[16], Visit visit) {
  uint32_t prefix = run_prefix_of(run_id);
  return scan_directory(dir_fd, [&](std::string_view name) {
    ParsedImageName parsed;
    if (parse_image_name(name, &parsed) && parsed.run_prefix == prefix) visit(name, parsed);
  });
}

Error cannot_list(long r) {
  return make_error(ExitCode::kIo, static_cast<int>(-r), "cannot list the image directory ({}); see CKPT_DIR",
                    errno_name(static_cast<int>(r)));
}

Error no_memory_to_prune() {
  return make_error(ExitCode::kSystem, ENOMEM,
                    "old images are not removed: no memory for their list; raise the limit (ulimit -v)");
}

// Sequence and parent of a complete image of this run.
bool complete_image(int dir_fd, const char* name, const uint8_t run_id[16], const ImageKey* key,
                    ImageBrief* brief) {
  long fd = sys::call(__NR_openat, dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
  if (sys::failed(fd)) return false;
  ScopedFd file(static_cast<int>(fd));
  auto probed = probe_image(file.get(), name, key);
  if (!probed.ok() || !same_run(probed->run_id, run_id)) return false;
  *brief = *probed;
  return true;
}

bool is_whole_parent(int dir_fd, const uint8_t run_id[16], const ImageKey* key, const ParentImage& parent,
                     ImageBrief* brief) {
  return complete_image(dir_fd, parent.name, run_id, key, brief) && brief->sequence == parent.sequence &&
         brief->meta_checksum == parent.state;
}

// Are all images there that this one is an increment to? Sequences fall, so the walk ends.
bool chain_is_whole(int dir_fd, const uint8_t run_id[16], const ImageKey* key, ImageBrief brief) {
  while (brief.parent.sequence != 0) {
    ParentImage parent = brief.parent;
    if (!is_whole_parent(dir_fd, run_id, key, parent, &brief)) return false;
  }
  return true;
}

// True when it was one and is gone: the header, if already written, must be of this run (nullptr: of any).
// Space that was reserved but not written reads as zeros.
bool remove_leftover(int dir_fd, const char* name, const uint8_t* run_id) {
  long fd = sys::call(__NR_openat, dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
  if (sys::failed(fd)) return false;
  ScopedFd file(static_cast<int>(fd));
  struct stat st;
  long r = sys::call(__NR_newfstatat, file.get(), "", &st, static_cast<long>(AT_EMPTY_PATH));
  if (sys::failed(r) || !S_ISREG(st.st_mode) || st.st_uid != static_cast<uint32_t>(sys::call(__NR_geteuid))) {
    return false;
  }
  if (sys::failed(sys::call(__NR_flock, file.get(), static_cast<long>(LOCK_EX | LOCK_NB)))) return false;
  if (!has_name(file.get(), dir_fd, name)) return false;
  struct {
    uint8_t magic[8];
    uint8_t between[16];
    uint8_t run_id[16];
  } start;
  static_assert(offsetof(FileHeader, run_id) == 24);
  int error = 0;
  bool filled = read_exactly(file.get(), &start, sizeof(start), 0, &error);
  bool begun = filled && std::memcmp(start.magic, kHeaderMagic, sizeof(kHeaderMagic)) == 0;
  if (run_id == nullptr) {
    const uint8_t none[sizeof(start.magic)] = {};
    if (!begun && st.st_size != 0 && !(filled && std::memcmp(start.magic, none, sizeof(none)) == 0))
      return false;
  } else if (begun && !same_run(start.run_id, run_id)) {
    return false;
  }
  return !sys::failed(sys::call(__NR_unlinkat, dir_fd, name, 0L));
}

// A complete image of a run, and what it says of its parent.
struct RunImage {
  uint64_t sequence;
  uint64_t state;
  uint64_t parent_sequence;  // 0: full
  uint64_t parent_state;
  bool well_named;  // with its number: as a parent it is found whatever else its name is
  bool whole;       // with all of its parents
  bool stays;
  char name[256];
};

// All of one run, by sequence and name: each file is looked at once, however long the chains are.
class RunImages {
 public:
  Result<void> read(int dir_fd, const uint8_t run_id[16], const ImageKey* key, uint32_t* leftovers);
  size_t size() const { return images_.size(); }
  RunImage& operator[](size_t i) { return images_[i]; }
  // The image's parents stay with it: a restart needs them.
  void keep_parents_of(const RunImage& image);

 private:
  void find_whole();
  template <typename Visit>
  void each_parent_of(const RunImage& image, Visit visit);

  Arena arena_;
  ArenaVector<RunImage> images_;
};

Result<void> RunImages::read(int dir_fd, const uint8_t run_id[16], const ImageKey* key, uint32_t* leftovers) {
  // Other programs' images may come while we look.
  size_t room = 64;
  long r = scan_run(dir_fd, run_id, [&](std::string_view, const ParsedImageName& parsed) {
    room += parsed.temporary ? 0 : 1;
  });
  if (sys::failed(r)) return cannot_list(r);
  if (!arena_.reserve(room * sizeof(RunImage))) return no_memory_to_prune();
  images_ = ArenaVector<RunImage>(arena_);
  if (!images_.reserve(room)) return no_memory_to_prune();
  bool all = true;
  r = scan_run(dir_fd, run_id, [&](std::string_view name, const ParsedImageName& parsed) {
    if (parsed.temporary) {
      if (remove_leftover(dir_fd, name.data(), run_id)) (*leftovers)++;
      return;
    }
    ImageBrief brief;
    RunImage image{};
    if (name.size() >= sizeof(image.name) || !complete_image(dir_fd, name.data(), run_id, key, &brief))
      return;
    image.sequence = brief.sequence;
    image.state = brief.meta_checksum;
    image.parent_sequence = brief.parent.sequence;
    image.parent_state = brief.parent.state;
    image.well_named = parsed.sequence == brief.sequence;
    std::memcpy(image.name, name.data(), name.size() + 1);
    if (images_.size() == room || !images_.push_back(image)) all = false;
  });
  if (sys::failed(r)) return cannot_list(r);
  if (!all)
    return make_error(ExitCode::kIo, EAGAIN,
                      "old images are not removed: new ones come faster than they are listed; try again");
  std::sort(images_.begin(), images_.end(), [](const RunImage& a, const RunImage& b) {
    return a.sequence != b.sequence ? a.sequence < b.sequence : std::strcmp(a.name, b.name) < 0;
  });
  find_whole();
  return {};
}

// There may be copies.
template <typename Visit>
void RunImages::each_parent_of(const RunImage& image, Visit visit) {
  if (image.parent_sequence == 0) return;
  RunImage* parent =
      std::lower_bound(images_.begin(), images_.end(), image.parent_sequence,
                       [](const RunImage& i, uint64_t sequence) { return i.sequence < sequence; });
  for (; parent != images_.end() && parent->sequence == image.parent_sequence; parent++) {
    if (parent->state == image.parent_state) visit(*parent);
  }
}

// A parent has a lower number than its child: it has been looked at before.
void RunImages::find_whole() {
  for (RunImage& image : images_) {
    image.whole = image.parent_sequence == 0;
    each_parent_of(image, [&](const RunImage& parent) {
      image.whole = image.whole || (parent.whole && parent.well_named);
    });
  }
}

void RunImages::keep_parents_of(const RunImage& image) {
  each_parent_of(image, [&](RunImage& parent) { parent.stays = true; });
}

bool is_held(int fd) {
  return sys::call(__NR_flock, fd, static_cast<long>(LOCK_EX | LOCK_NB)) == -EWOULDBLOCK;
}

}  // namespace

Result<void> check_images_stay(int fd, const char* path) {
  return keeper_part(path) == std::strlen(path) ? check_keeper_holds(path, fd) : Result<void>();
}

Result<void> check_image_directory(int fd, const char* path) {
  struct stat st;
  long r = sys::call(__NR_newfstatat, fd, "", &st, static_cast<long>(AT_EMPTY_PATH));
  if (sys::failed(r)) return image_io_error("examine the image directory", path, r);
  uint32_t user = static_cast<uint32_t>(sys::call(__NR_geteuid));
  if (st.st_uid != user) {
    return make_error(
        ExitCode::kPermission, 0,
        "image directory {} belongs to user {}, not to {}; set CKPT_DIR to a directory of your own",
        shown_path(path).text, st.st_uid, user);
  }
  if ((st.st_mode & 022) != 0) {
    return make_error(
        ExitCode::kPermission, 0,
        "image directory {} may be written by others (mode {:o}); 'chmod go-w' it, or set CKPT_DIR "
        "to a directory inside it",
        shown_path(path).text, st.st_mode & 07777);
  }
  r = sys::call(__NR_faccessat2, fd, ".", static_cast<long>(W_OK | X_OK), static_cast<long>(AT_EACCESS));
  if (r == -ENOSYS) r = 0;  // before Linux 5.8: creating the image will tell
  if (sys::failed(r)) return image_io_error("write into the image directory", path, r);
  return {};
}

// The umask may have taken our own rights away, and with them the right to open it. By a descriptor that
// needs none: who may rename what lies there must not have the mode of something else changed.
static void give_own_rights(const char* path) {
  const long made = sys::call(__NR_openat, static_cast<long>(AT_FDCWD), path,
                              long{O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC}, 0L);
  if (sys::failed(made)) return;
  const ScopedFd directory(static_cast<int>(made));
  struct stat st;
  if (sys::failed(sys::call(__NR_fstat, made, &st)) ||
      st.st_uid != static_cast<uint32_t>(sys::call(__NR_geteuid)))
    return;
  char link[40];
  *fmt::format_to_n(link, sizeof(link) - 1, "/proc/thread-self/fd/{}", made).out = '\0';
  sys::call(__NR_chmod, link, 0700L);
}

Result<ScopedFd> open_image_directory(const char* path) {
  const long flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
  if (keeper_part(path) == std::strlen(path)) {
    auto in_keeper = open_keeper_directory(path);
    if (in_keeper.ok()) CKPT_TRY(check_image_directory(in_keeper->get(), path));
    return in_keeper;
  }
  long fd = sys::call(__NR_openat, static_cast<long>(AT_FDCWD), path, flags, 0L);
  if (fd == -ENOENT) {
    long made = sys::call(__NR_mkdirat, static_cast<long>(AT_FDCWD), path, 0700L);
    if (made == -ENOENT) {
      return make_error(
          ExitCode::kCannotCreate, ENOENT,
          "cannot create the image directory {}: the directory above it does not exist; create it "
          "or set CKPT_DIR",
          shown_path(path).text);
    }
    if (sys::failed(made) && made != -EEXIST) {
      Error e = image_io_error("create the image directory", path, made);
      if (e.code == ExitCode::kIo) e.code = ExitCode::kCannotCreate;
      return e;
    }
    if (!sys::failed(made)) give_own_rights(path);
    fd = sys::call(__NR_openat, static_cast<long>(AT_FDCWD), path, flags, 0L);
  }
  if (fd == -ENOTDIR) {
    return make_error(ExitCode::kCannotCreate, ENOTDIR,
                      "image directory {} is not a directory; set CKPT_DIR to one or to a new name",
                      shown_path(path).text);
  }
  if (sys::failed(fd)) {
    Error e = image_io_error("open the image directory", path, fd);
    if (e.code == ExitCode::kIo) e.code = ExitCode::kCannotCreate;
    return e;
  }
  ScopedFd directory(static_cast<int>(fd));
  CKPT_TRY(check_image_directory(directory.get(), path));
  return directory;
}

Result<uint64_t> next_sequence(int dir_fd, const uint8_t run_id[16]) {
  uint64_t highest = 0;
  long r = scan_run(dir_fd, run_id, [&](std::string_view, const ParsedImageName& parsed) {
    if (parsed.sequence > highest) highest = parsed.sequence;
  });
  if (sys::failed(r)) return cannot_list(r);
  if (highest == UINT64_MAX) {
    return make_error(ExitCode::kCannotCreate, 0,
                      "the image directory holds sequence {}: no number is left; move that file away",
                      highest);
  }
  return highest + 1;
}

uint32_t remove_dead_leftovers(int dir_fd) {
  uint32_t removed = 0;
  scan_directory(dir_fd, [&](std::string_view name) {
    ParsedImageName parsed;
    if (!parse_image_name(name, &parsed) || !parsed.temporary) return;
    if (remove_leftover(dir_fd, name.data(), nullptr)) removed++;
  });
  return removed;
}

bool chain_may_grow(const ParentImage& parent, uint32_t most) {
  if (parent.sequence == 0 || parent.chain_length > kMaxChainLength || parent.chain_length >= most)
    return false;
  return parent.chain_bytes - parent.full_bytes <= parent.full_bytes;
}

bool parent_is_whole(int dir_fd, const uint8_t run_id[16], const ParentImage& parent, const ImageKey* key) {
  ImageBrief brief;
  return is_whole_parent(dir_fd, run_id, key, parent, &brief) && chain_is_whole(dir_fd, run_id, key, brief);
}

ScopedFd hold_image(int dir_fd, const char* name) {
  const long fd = sys::call(__NR_openat, dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
  if (sys::failed(fd)) return {};
  ScopedFd file(static_cast<int>(fd));
  // On a file system without locks the image is held against no other program.
  const bool taken = sys::call(__NR_flock, file.get(), static_cast<long>(LOCK_SH | LOCK_NB)) == -EWOULDBLOCK;
  return taken || !has_name(file.get(), dir_fd, name) ? ScopedFd() : std::move(file);
}

Result<Pruned> prune_images(int dir_fd, const uint8_t run_id[16], uint32_t keep, const ImageKey* key) {
  Pruned pruned;
  RunImages images;
  CKPT_TRY(images.read(dir_fd, run_id, key, &pruned.leftovers));
  // An image whose parents are gone cannot be restored: it must not push out an image that can. A copy of an
  // image does not count as another.
  uint64_t border = 0;
  uint32_t newest = 0;
  for (size_t i = images.size(); i-- > 0;) {
    if (!images[i].whole) continue;
    pruned.kept++;
    if (newest == keep || border == images[i].sequence) continue;
    newest++;
    border = images[i].sequence;
  }
  if (keep == 0 || newest == 0) return pruned;

  // An increment needs its parent, and the parent its own.
  bool any = false;
  for (size_t i = images.size(); i-- > 0;) {
    RunImage& image = images[i];
    image.stays = image.stays || image.sequence >= border;
    if (image.stays)
      images.keep_parents_of(image);
    else
      any = true;
  }
  if (!any) return pruned;
  // An image that stays may have been written by another program, which has not made its name durable yet.
  if (long r = sys::call(__NR_fsync, dir_fd); sys::failed(r)) {
    return image_io_error("make durable (fsync of the directory), so that older ones may go,",
                          images[images.size() - 1].name, r);
  }
  // An increment goes before its parent: at no instant is there one without. Each image that can be removed
  // is removed, also when another one cannot be.
  Result<void> removed;
  for (size_t i = images.size(); i-- > 0;) {
    RunImage& image = images[i];
    const long fd = image.stays ? -1
                                : sys::call(__NR_openat, dir_fd, image.name,
                                            O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
    const ScopedFd file(sys::failed(fd) ? -1 : static_cast<int>(fd));
    image.stays = image.stays || (file.valid() && is_held(file.get()));
    if (image.stays) {
      images.keep_parents_of(image);
      continue;
    }
    const long gone = sys::call(__NR_unlinkat, dir_fd, image.name, 0L);
    if (!sys::failed(gone)) {
      remove_saved_files(dir_fd, image.name);
      pruned.images++;
      if (image.whole) pruned.kept--;
    } else if (gone != -ENOENT && removed.ok()) {  // not there: another program that prunes was faster
      removed = image_io_error("remove the old image", image.name, gone);
    }
  }
  if (!removed.ok()) return removed.error();
  return pruned;
}

}  // namespace ckpt
