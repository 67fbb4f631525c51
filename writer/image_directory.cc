#include "writer/image_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/settings.h"
#include "base/sys.h"
#include "writer/directory_scan.h"
#include "writer/image_probe.h"
#include "writer/io_error.h"

namespace ckpt {

namespace {

Result<void> check_directory(int fd, const char* path) {
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

// Sequence and parent of a complete image of this run.
bool complete_image(int dir_fd, const char* name, const uint8_t run_id[16], const ImageKey* key, ImageBrief* brief) {
  long fd = sys::call(__NR_openat, dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0L);
  if (sys::failed(fd)) return false;
  ScopedFd file(static_cast<int>(fd));
  auto probed = probe_image(file.get(), name, key);
  if (!probed.ok() || !same_run(probed->run_id, run_id)) return false;
  *brief = *probed;
  return true;
}

bool is_whole_parent(int dir_fd, const uint8_t run_id[16], const ImageKey* key, const ParentImage& parent, ImageBrief* brief) {
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
// What was reserved but not written reads as zeros.
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
    if (!begun && st.st_size != 0 && !(filled && std::memcmp(start.magic, none, sizeof(none)) == 0)) return false;
  } else if (begun && !same_run(start.run_id, run_id)) {
    return false;
  }
  return !sys::failed(sys::call(__NR_unlinkat, dir_fd, name, 0L));
}

// The newest sequences of complete images, highest first: a fixed number, so that no memory is needed.
struct Newest {
  uint64_t sequence[kMostKept];
  uint32_t count = 0, limit = 0;

  void add(uint64_t value) {
    uint32_t at = count;
    while (at > 0 && sequence[at - 1] < value) at--;
    if (at == limit) return;
    if (count < limit) count++;
    for (uint32_t i = count - 1; i > at; i--) sequence[i] = sequence[i - 1];
    sequence[at] = value;
  }
};

// A place in the list of a run's images, which is in the order of the numbers in their names.
struct Listed {
  explicit Listed(uint64_t in_front_of) : sequence(in_front_of) {}
  bool follows(uint64_t other, std::string_view other_name) const {
    return other != sequence ? other < sequence : other_name < std::string_view(name);
  }
  uint64_t sequence;
  char name[256] = {};
};

// To the one before.
long step_back(int dir_fd, const uint8_t run_id[16], Listed* at, bool* found) {
  Listed next(0);
  *found = false;
  long r = scan_run(dir_fd, run_id, [&](std::string_view name, const ParsedImageName& parsed) {
    if (parsed.temporary || name.size() >= sizeof(next.name) || !at->follows(parsed.sequence, name)) return;
    if (*found && next.follows(parsed.sequence, name)) return;
    next.sequence = parsed.sequence;
    std::memcpy(next.name, name.data(), name.size() + 1);
    *found = true;
  });
  *at = next;
  return r;
}

}  // namespace

Result<ScopedFd> open_image_directory(const char* path) {
  const long flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
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
    fd = sys::call(__NR_openat, static_cast<long>(AT_FDCWD), path, flags, 0L);
    // The umask may have taken our own rights away.
    if (!sys::failed(fd)) sys::call(__NR_fchmod, fd, 0700L);
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
  CKPT_TRY(check_directory(directory.get(), path));
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

Result<Pruned> prune_images(int dir_fd, const uint8_t run_id[16], uint32_t keep, const ImageKey* key) {
  Pruned pruned;
  Newest newest;
  newest.limit = keep < kMostKept ? keep : kMostKept;
  bool all = keep == 0 || keep > kMostKept;
  long r = scan_run(dir_fd, run_id, [&](std::string_view name, const ParsedImageName& parsed) {
    ImageBrief brief;
    if (parsed.temporary) {
      if (remove_leftover(dir_fd, name.data(), run_id)) pruned.leftovers++;
    } else if (complete_image(dir_fd, name.data(), run_id, key, &brief) && chain_is_whole(dir_fd, run_id, key, brief)) {
      // One whose parents are gone cannot be restored: it must not push out one that can.
      pruned.kept++;
      newest.add(brief.sequence);
    }
  });
  if (sys::failed(r)) return cannot_list(r);
  if (all || newest.count == 0) return pruned;

  // An increment needs its parent, and that one its own: move the border down until it holds. A chain
  // is linear, so everything at or above the border stays.
  uint64_t border = newest.sequence[newest.count - 1];
  for (bool moved = true; moved;) {
    moved = false;
    r = scan_run(dir_fd, run_id, [&](std::string_view name, const ParsedImageName& parsed) {
      ImageBrief brief;
      if (parsed.temporary || !complete_image(dir_fd, name.data(), run_id, key, &brief)) return;
      if (brief.sequence >= border && brief.parent.sequence != 0 && brief.parent.sequence < border) {
        border = brief.parent.sequence;
        moved = true;
      }
    });
    if (sys::failed(r)) return cannot_list(r);
  }
  // An increment goes before its parent: at no instant is there one without. What can be removed is, also when
  // something else cannot.
  Result<void> removed;
  for (Listed at(border);;) {
    bool found = false;
    r = step_back(dir_fd, run_id, &at, &found);
    if (sys::failed(r)) return cannot_list(r);
    if (!found) break;
    ImageBrief brief;
    if (!complete_image(dir_fd, at.name, run_id, key, &brief) || brief.sequence >= border) continue;
    const bool counted = chain_is_whole(dir_fd, run_id, key, brief);
    const long gone = sys::call(__NR_unlinkat, dir_fd, at.name, 0L);
    if (!sys::failed(gone)) {
      pruned.images++;
      if (counted) pruned.kept--;
    } else if (gone != -ENOENT && removed.ok()) {  // not there: another program that prunes was faster
      removed = image_io_error("remove the old image", at.name, gone);
    }
  }
  if (!removed.ok()) return removed.error();
  return pruned;
}

}  // namespace ckpt
