// The image directory: made, refused, numbered, pruned.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "image/write/backend/pwritev_backend.h"
#include "image/write/directory/image_directory.h"
#include "image/write/directory/saved_files.h"
#include "image/write/image_file.h"
#include "tests/image/image_fixture.h"

namespace ckpt {
namespace {

class Directory : public ImageTest {
 protected:
  static void expect_refused(const std::string& directory, ExitCode code, const char* words) {
    auto opened = open_image_directory(directory.c_str());
    ASSERT_FALSE(opened.ok()) << directory;
    EXPECT_EQ(static_cast<int>(opened.error().code), static_cast<int>(code)) << opened.error().message();
    EXPECT_NE(opened.error().message().find(words), std::string_view::npos) << opened.error().message();
    EXPECT_NE(opened.error().message().find("CKPT_DIR"), std::string_view::npos) << opened.error().message();
  }
  std::vector<uint64_t> sequences() const {
    std::vector<uint64_t> found;
    for (uint64_t s = 1; s < 40; s++) {
      if (exists(name(s))) found.push_back(s);
    }
    return found;
  }
  void write_images(uint64_t first, uint64_t last) {
    for (uint64_t s = first; s <= last; s++) ASSERT_TRUE(write_image(s, memory_).ok());
  }
  TestMemory memory_{2};
};

TEST_F(Directory, IsMadePrivate) {
  mode_t old = umask(0777);
  auto made = open_image_directory(path("images").c_str());
  umask(old);
  ASSERT_TRUE(made.ok()) << made.error().message();
  struct stat st;
  ASSERT_EQ(stat(path("images").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0700u);
  auto again = open_image_directory(path("images").c_str());
  EXPECT_TRUE(again.ok());
}

TEST_F(Directory, RefusesWhatIsNotOurs) {
  write_file(path("file"), "x");
  expect_refused(path("file"), ExitCode::kCannotCreate, "not a directory");
  expect_refused(path("file/images"), ExitCode::kCannotCreate, "not a directory");
  expect_refused(path("no/images"), ExitCode::kCannotCreate, "directory above");
  ASSERT_EQ(mkdir(path("open").c_str(), 0700), 0);
  for (mode_t mode : {0720, 0702, 0777, 01777}) {
    ASSERT_EQ(chmod(path("open").c_str(), mode), 0);
    expect_refused(path("open"), ExitCode::kPermission, "written by others");
  }
  ASSERT_EQ(chmod(path("open").c_str(), 0755), 0);
  EXPECT_TRUE(open_image_directory(path("open").c_str()).ok());
}

// As another user: what belongs to someone else, what may not be written.
TEST_F(Directory, AsAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become somebody else";
  ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
  ASSERT_EQ(mkdir(path("theirs").c_str(), 0755), 0);
  ASSERT_EQ(mkdir(path("locked").c_str(), 0555), 0);
  ASSERT_EQ(chown(path("locked").c_str(), 65534, 65534), 0);
  pid_t child = fork();
  if (child == 0) {
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) _exit(2);
    expect_refused(path("theirs"), ExitCode::kPermission, "belongs to user 0");
    expect_refused(path("new"), ExitCode::kPermission, "not allowed");
    expect_refused(path("locked"), ExitCode::kPermission, "not allowed");
    _exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Directory, NextSequence) {
  EXPECT_EQ(*next_sequence(dir_fd_.get(), kRunId), 1u);
  write_images(1, 3);
  EXPECT_EQ(*next_sequence(dir_fd_.get(), kRunId), 4u);
  // A number once begun is not used again, and those of other runs do not count.
  write_file(path(name(7) + ".tmp"), "");
  uint8_t other[16] = {9};
  write_file(path(compose_image_name("prog", 1, other, 50).text), "");
  write_file(path("prog.1.abcdef01.notes.ckpt"), "");
  EXPECT_EQ(*next_sequence(dir_fd_.get(), kRunId), 8u);
  write_file(path(name(UINT64_MAX)), "");
  EXPECT_FALSE(next_sequence(dir_fd_.get(), kRunId).ok());
}

TEST_F(Directory, PruneKeepsTheNewest) {
  write_images(1, 6);
  auto pruned = prune_images(dir_fd_.get(), kRunId, 2);
  ASSERT_TRUE(pruned.ok());
  EXPECT_EQ(pruned->images, 4u);
  EXPECT_EQ(pruned->kept, 2u);
  EXPECT_EQ(sequences(), (std::vector<uint64_t>{5, 6}));
  EXPECT_EQ(prune_images(dir_fd_.get(), kRunId, 1)->images, 1u);
  EXPECT_EQ(prune_images(dir_fd_.get(), kRunId, 1)->images, 0u);
  EXPECT_EQ(sequences(), (std::vector<uint64_t>{6}));
}

TEST_F(Directory, PruneZeroKeepsAll) {
  write_images(1, 4);
  auto pruned = prune_images(dir_fd_.get(), kRunId, 0);
  ASSERT_TRUE(pruned.ok());
  EXPECT_EQ(pruned->images, 0u);
  EXPECT_EQ(pruned->kept, 4u);
}

TEST_F(Directory, PruneCountsOnlyCompleteImages) {
  write_images(1, 4);
  for (uint64_t cut : {3, 4}) std::filesystem::resize_file(path(name(cut)), 8192);
  ASSERT_TRUE(prune_images(dir_fd_.get(), kRunId, 1).ok());
  // 2 is the newest that restarts; what is damaged stays for its owner to look at.
  EXPECT_EQ(sequences(), (std::vector<uint64_t>{2, 3, 4}));
}

TEST_F(Directory, PruneKeepsWhatIncrementsNeed) {
  write_images(1, 2);
  ASSERT_TRUE(write_image(3, memory_).ok());
  ASSERT_TRUE(write_image(4, memory_, ~0ull, {}, 3).ok());
  ASSERT_TRUE(write_image(5, memory_, ~0ull, {}, 4).ok());
  ASSERT_TRUE(prune_images(dir_fd_.get(), kRunId, 1).ok());
  EXPECT_EQ(sequences(), (std::vector<uint64_t>{3, 4, 5}));
}

// In whichever order the directory lists them.
TEST_F(Directory, PruneRemovesIncrementsBeforeTheirParents) {
  ASSERT_TRUE(write_image(1, memory_).ok());
  for (uint64_t i = 2; i <= 12; i++) ASSERT_TRUE(write_image(i, memory_, ~0ull, {}, i - 1).ok());
  ASSERT_TRUE(write_image(13, memory_).ok());
  ASSERT_TRUE(write_image(14, memory_, ~0ull, {}, 13).ok());
  const std::string copy = "copy." + name(3);
  std::filesystem::copy_file(path(name(3)), path(copy));
  ScopedFd watch(inotify_init1(IN_CLOEXEC));
  ASSERT_GE(inotify_add_watch(watch.get(), directory_.c_str(), IN_DELETE), 0);
  auto pruned = prune_images(dir_fd_.get(), kRunId, 1);
  ASSERT_TRUE(pruned.ok());
  EXPECT_EQ(pruned->images, 13u);
  EXPECT_EQ(pruned->kept, 2u);
  EXPECT_EQ(sequences(), (std::vector<uint64_t>{13, 14}));
  alignas(inotify_event) char events[8192];
  const ssize_t bytes = read(watch.get(), events, sizeof(events));
  std::vector<std::string> gone;
  for (ssize_t at = 0; at < bytes;) {
    auto* event = reinterpret_cast<const inotify_event*>(events + at);
    gone.push_back(event->name);
    at += static_cast<ssize_t>(sizeof(*event) + event->len);
  }
  std::vector<std::string> in_order;
  for (uint64_t i = 12; i >= 1; i--) {
    in_order.push_back(name(i));
    if (i == 3) in_order.push_back(copy);
  }
  EXPECT_EQ(gone, in_order);
}

// However long chains are.
TEST_F(Directory, PruneLooksAtEachImageOnce) {
  constexpr uint64_t kImages = 39;
  ASSERT_TRUE(write_image(1, memory_).ok());
  for (uint64_t i = 2; i <= kImages; i++)
    ASSERT_TRUE(write_image(i, memory_, ~0ull, {}, i == 20 ? 0 : i - 1).ok());
  ScopedFd watch(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  ASSERT_GE(inotify_add_watch(watch.get(), directory_.c_str(), IN_OPEN), 0);
  auto pruned = prune_images(dir_fd_.get(), kRunId, 3);
  ASSERT_TRUE(pruned.ok());
  EXPECT_EQ(pruned->images, 19u);
  EXPECT_EQ(pruned->kept, 20u);
  alignas(inotify_event) char events[8192];
  uint64_t opened = 0;
  for (ssize_t bytes; (bytes = read(watch.get(), events, sizeof(events))) > 0;) {
    for (ssize_t at = 0; at < bytes;) {
      const auto& event = *reinterpret_cast<const inotify_event*>(events + at);
      // The directory itself is opened by whoever looks through all that there is in that of temporary files.
      opened += (event.mask & IN_ISDIR) == 0;
      at += static_cast<ssize_t>(sizeof(event) + event.len);
    }
  }
  EXPECT_EQ(opened, kImages + pruned->images);
}

// A program that was restarted twice: two chains, one beside the other.
TEST_F(Directory, PruneKeepsNoChainForAnother) {
  ASSERT_TRUE(write_image(1, memory_).ok());
  for (uint64_t i = 2; i <= 9; i++)
    ASSERT_TRUE(write_image(i, memory_, ~0ull, {},
                            i == 3 || i == 6 ? 0
                            : i == 8         ? 6
                            : i == 2         ? 1
                                             : i - 2)
                    .ok());
  // 1 2 4, 3 5 7 9, 6 8.
  auto pruned = prune_images(dir_fd_.get(), kRunId, 2);
  ASSERT_TRUE(pruned.ok());
  EXPECT_EQ(pruned->images, 3u);
  EXPECT_EQ(pruned->kept, 6u);
  EXPECT_EQ(sequences(), (std::vector<uint64_t>{3, 5, 6, 7, 8, 9}));
}

// The parent of an increment that is being written, by another program of the run.
TEST_F(Directory, PruneLeavesWhatIsHeld) {
  ASSERT_TRUE(write_image(1, memory_).ok());
  for (uint64_t i = 2; i <= 4; i++) ASSERT_TRUE(write_image(i, memory_, ~0ull, {}, i - 1).ok());
  write_images(5, 6);
  {
    ScopedFd held = hold_image(dir_fd_.get(), name(3).c_str());
    ASSERT_TRUE(held.valid());
    auto pruned = prune_images(dir_fd_.get(), kRunId, 1);
    ASSERT_TRUE(pruned.ok());
    EXPECT_EQ(pruned->images, 2u);
    EXPECT_EQ(pruned->kept, 4u);
    EXPECT_EQ(sequences(), (std::vector<uint64_t>{1, 2, 3, 6}));
  }
  EXPECT_EQ(prune_images(dir_fd_.get(), kRunId, 1)->images, 3u);
  EXPECT_EQ(sequences(), (std::vector<uint64_t>{6}));
  EXPECT_FALSE(hold_image(dir_fd_.get(), name(3).c_str()).valid());
}

// A copy that somebody made of an image is not another one.
TEST_F(Directory, PruneCountsCopiesOnce) {
  write_images(1, 4);
  std::filesystem::copy_file(path(name(4)), path("copy." + name(4)));
  ASSERT_TRUE(prune_images(dir_fd_.get(), kRunId, 2).ok());
  EXPECT_EQ(sequences(), (std::vector<uint64_t>{3, 4}));
  EXPECT_TRUE(exists("copy." + name(4)));
}

TEST_F(Directory, PruneLeavesOthersAlone) {
  write_images(1, 3);
  // The same eight digits in the name, another run inside.
  uint8_t other[16];
  std::memcpy(other, kRunId, 16);
  other[15] ^= 1;
  ImageIdentity id = identity(2);
  std::memcpy(id.run_id, other, 16);
  std::string theirs = compose_image_name("else", 99, other, 2).text;
  arena_.reset();
  DirectSink sink;
  TestMeta meta({});
  ASSERT_TRUE(sink.open(dir_fd_.get(), theirs.c_str(), id, arena_, count_release, &released_).ok());
  ASSERT_TRUE(sink.set_meta(meta.writer.span()).ok());
  ASSERT_TRUE(sink.commit().ok());
  std::filesystem::copy_file(path(theirs), path(theirs + ".tmp"));
  write_file(path("notes.txt"), "x");
  std::filesystem::create_directory(path(name(9)));
  std::filesystem::create_symlink(path("notes.txt"), path(name(8)));
  ASSERT_TRUE(prune_images(dir_fd_.get(), kRunId, 1).ok());
  EXPECT_EQ(sequences(), (std::vector<uint64_t>{3, 8, 9}));
  EXPECT_TRUE(exists(theirs));
  EXPECT_TRUE(exists(theirs + ".tmp"));
  EXPECT_TRUE(exists("notes.txt"));
}

TEST_F(Directory, PruneRemovesLeftoversOfDeadWritersOnly) {
  write_images(1, 1);
  std::filesystem::copy_file(path(name(1)), path(name(5) + ".tmp"));
  write_file(path(name(6) + ".tmp"), "");
  write_file(path(name(7) + ".tmp"), std::string(8192, '\0'));
  Arena other;
  ASSERT_TRUE(other.reserve(64 << 20));
  DirectSink alive;
  ASSERT_TRUE(alive.open(dir_fd_.get(), name(9).c_str(), identity(9), other, count_release, &released_).ok());
  auto pruned = prune_images(dir_fd_.get(), kRunId, 2);
  ASSERT_TRUE(pruned.ok());
  EXPECT_EQ(pruned->leftovers, 3u);
  EXPECT_TRUE(exists(name(9) + ".tmp"));
  alive.abort();
  EXPECT_EQ(files(), 1u);
}

// Whatever run they are of: the next checkpoint into the directory tidies it.
TEST_F(Directory, LeftoversOfAnyDeadWriterAreRemoved) {
  write_images(1, 1);
  const uint8_t other[16] = {9, 9, 9};
  auto of_other = [&](uint64_t sequence) {
    return std::string(compose_image_name("else", 99, other, sequence).text) + ".tmp";
  };
  std::filesystem::copy_file(path(name(1)), path(of_other(1)));
  write_file(path(of_other(2)), "");
  write_file(path(of_other(3)), std::string(8192, '\0'));
  // Not ours to remove: no image inside, not a file, a link, somebody else's, still being written.
  write_file(path(of_other(4)), std::string(8192, 'x'));
  write_file(path(of_other(5)), "x");
  std::filesystem::create_directory(path(of_other(6)));
  std::filesystem::create_symlink(path(name(1)), path(of_other(7)));
  write_file(path("notes.tmp"), "");
  uint32_t theirs = 0;
  if (geteuid() == 0) {
    write_file(path(of_other(8)), "");
    ASSERT_EQ(chown(path(of_other(8)).c_str(), 65534, 65534), 0);
    theirs = 1;
  }
  Arena arena;
  ASSERT_TRUE(arena.reserve(64 << 20));
  DirectSink alive;
  ASSERT_TRUE(alive.open(dir_fd_.get(), name(9).c_str(), identity(9), arena, count_release, &released_).ok());
  EXPECT_EQ(remove_dead_leftovers(dir_fd_.get()), 3u);
  EXPECT_FALSE(exists(of_other(1)) || exists(of_other(2)) || exists(of_other(3)));
  EXPECT_EQ(files(), 7u + theirs);
  EXPECT_EQ(remove_dead_leftovers(dir_fd_.get()), 0u);
  alive.abort();
}

// A writer that begins while others tidy: it has its file, under its name, whoever was first.
TEST_F(Directory, ANewFileIsNotTakenForALeftover) {
  std::atomic<bool> over{false};
  std::thread tidy([&] {
    ScopedFd directory(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    while (!over) remove_dead_leftovers(directory.get());
  });
  for (uint64_t s = 1; s <= 300; ++s) {
    ImageFile file;
    auto made = file.create(dir_fd_.get(), name(s).c_str(), false);
    ASSERT_TRUE(made.ok()) << made.error().message();
    struct stat by_name, by_fd;
    ASSERT_EQ(stat(path(name(s) + ".tmp").c_str(), &by_name), 0) << s;
    ASSERT_EQ(fstat(file.fd(), &by_fd), 0);
    ASSERT_EQ(by_name.st_ino, by_fd.st_ino);
    file.remove();
  }
  over = true;
  tidy.join();
}

// Two that write the same image, and one that tidies: each has its file under its name, or is told of the
// other.
TEST_F(Directory, AFileThatIsBeingWrittenIsNotTakenAway) {
  std::atomic<bool> over{false};
  std::atomic<uint32_t> made{0}, wrong{0};
  auto write = [&] {
    ScopedFd directory(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    PwritevBackend backend;
    while (!over) {
      ImageFile file;
      auto created = file.create(directory.get(), name(1).c_str(), false);
      if (!created.ok()) {
        if (created.error().sys_errno != EBUSY) wrong++;
        continue;
      }
      for (int looks = 0; looks < 3; looks++) {
        struct stat by_name, by_fd;
        if (stat(path(name(1) + ".tmp").c_str(), &by_name) != 0 || fstat(file.fd(), &by_fd) != 0 ||
            by_name.st_ino != by_fd.st_ino)
          wrong++;
      }
      // As `ckpt compact` does, or as it is given up.
      if (made++ % 2 == 0) {
        if (!file.publish(backend, 0, true).ok()) wrong++;
      } else {
        file.remove();
      }
    }
  };
  std::thread first(write), second(write), tidy([&] {
    ScopedFd directory(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    while (!over) remove_dead_leftovers(directory.get());
  });
  while (made < 1000 && wrong == 0) std::this_thread::yield();
  over = true;
  first.join();
  second.join();
  tidy.join();
  EXPECT_EQ(wrong, 0u) << "of " << made;
}

// As of a process that was killed, whose last writes are on their way to the disk.
TEST_F(Directory, AFileThatIsLetGoSoonIsReplaced) {
  ScopedFd directory(open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string left = path(name(1) + ".tmp");
  ScopedFd old(open(left.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(old.get(), LOCK_EX), 0);
  const std::string waits = "/proc/self/task/" + std::to_string(gettid()) + "/syscall";
  std::thread end([&] {
    // The thread that creates the file has found it locked, and looks again a little later.
    const std::string pause = std::to_string(__NR_nanosleep) + " ";
    for (std::string call; !call.starts_with(pause); std::getline(std::ifstream(waits), call))
      std::this_thread::yield();
    old.reset();
  });
  ImageFile file;
  auto created = file.create(directory.get(), name(1).c_str(), false);
  end.join();
  EXPECT_TRUE(created.ok()) << created.error().message();
  file.remove();
}

TEST(ImageNames, Compose) {
  EXPECT_STREQ(compose_image_name("prog", 12, kRunId, 3).text, "prog.12.abcdef01.000003.ckpt");
  EXPECT_STREQ(compose_image_name("a b/c\nd", 1, kRunId, 1234567).text, "a_b_c_d.1.abcdef01.1234567.ckpt");
  EXPECT_STREQ(compose_image_name("..", 1, kRunId, 1).text, "_..1.abcdef01.000001.ckpt");
  EXPECT_STREQ(compose_image_name("", 1, kRunId, 1).text, "_.1.abcdef01.000001.ckpt");
}

TEST(ImageNames, ParseIsTheInverse) {
  for (const char* comm : {"prog", "python3.11", "a.1.00000000.b", "_"}) {
    ParsedImageName parsed;
    ImageName name = compose_image_name(comm, 77, kRunId, UINT64_MAX);
    ASSERT_TRUE(parse_image_name(name.text, &parsed)) << name.text;
    EXPECT_EQ(parsed.comm, comm);
    EXPECT_EQ(parsed.pid, 77);
    EXPECT_EQ(parsed.run_prefix, run_prefix_of(kRunId));
    EXPECT_EQ(parsed.sequence, UINT64_MAX);
    EXPECT_FALSE(parsed.temporary);
    std::string temporary = std::string(name.text) + ".tmp";
    ASSERT_TRUE(parse_image_name(temporary, &parsed));
    EXPECT_TRUE(parsed.temporary);
  }
  ParsedImageName parsed;
  for (const char* bad :
       {"", ".ckpt", "prog.ckpt", "prog.12.abcdef01.3.ckpt", "prog.12.abcdef01.000000.ckpt",
        "prog.12.ABCDEF01.000001.ckpt", "prog.x.abcdef01.000001.ckpt", ".12.abcdef01.000001.ckpt",
        "prog.12.abcdef01.000001.ckpt.tmp.tmp", "prog.12.abcdef01.99999999999999999999.ckpt",
        "prog.99999999999.abcdef01.000001.ckpt", "prog.12.abcdef0.000001.ckpt",
        "prog.12.abcdef01.000001.ckpt~"}) {
    EXPECT_FALSE(parse_image_name(bad, &parsed)) << bad;
  }
}

TEST_F(Directory, SavedFilesStayForAnImageThatIsToCome) {
  // Of a process that nobody here knows: no pid is that high. A process of another pid namespace looks like
  // that.
  const std::string to_come = "elsewhere.4999999.00000001.000001.files";
  ASSERT_EQ(mkdir(path(to_come).c_str(), 0700), 0);
  write_file(path(to_come + "/1-2"), "x");
  const ScopedFd its(open(path(to_come).c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(flock(its.get(), LOCK_SH), 0);
  const ScopedFd images(open(path("").c_str(), O_RDONLY | O_DIRECTORY));
  remove_orphaned_saved_files(images.get());
  EXPECT_TRUE(exists(to_come + "/1-2"));
  ASSERT_EQ(flock(its.get(), LOCK_UN), 0);
  remove_orphaned_saved_files(images.get());
  EXPECT_FALSE(exists(to_come));
}

}  // namespace
}  // namespace ckpt
