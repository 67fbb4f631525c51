// Files in the directory for temporary files that are saved beside an image, where memory for lists is short.
#include "libckpt_rt/checkpoint/stages/files/temporary_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/memory/arena.h"
#include "libckpt_rt/checkpoint/stages/files/saved_files_directory.h"

namespace ckpt {
namespace {

constexpr int kFiles = 80;                                       // more than a list has room for at first
constexpr size_t kEnvironment = 64 << 10, kMostRoom = 40 << 10;  // bytes; of what the library reads first
constexpr const char* kOwn = "ckpt_temporary_files_test.";

// The library asks /proc/self/environ for TMPDIR, which does not change while a process runs.
int run_again_in(const std::string& directory, const char* test) {
  const std::string filter = std::string("--gtest_filter=") + test;
  const pid_t child = fork();
  if (child == 0) {
    setenv("TMPDIR", directory.c_str(), 1);
    execl("/proc/self/exe", "unit_test", filter.c_str(), "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

size_t names_in(const std::filesystem::path& directory) {
  size_t names = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    names += entry.path().extension() == ".name";
  return names;
}

// room: bytes for lists and names. How many of the files are saved, and how many of those names stay when all
// files have been removed.
void save_and_remove(const std::string& directory, size_t room, size_t* saved, size_t* stay) {
  const std::string images = directory + "/images", files = images + "/image.files";
  std::filesystem::create_directories(files);
  for (int i = 0; i < kFiles; ++i) std::ofstream(directory + "/file" + std::to_string(i)) << i;
  const int fd = open(images.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat st;
  ASSERT_EQ(fstat(fd, &st), 0);
  Arena arena;
  ASSERT_TRUE(arena.reserve(kEnvironment + kMostRoom));
  ASSERT_NE(arena.allocate(kMostRoom - room), nullptr);
  SavedFilesDirectory beside;
  beside.be_in(fd, saved_files_directory_of("image.ckpt"));
  TemporaryFiles temporary;
  temporary.look(arena, st.st_dev, beside);
  *saved = names_in(files);
  for (int i = 0; i < kFiles; ++i) std::filesystem::remove(directory + "/file" + std::to_string(i));
  temporary.look_again(beside);
  *stay = names_in(files);
  std::filesystem::remove_all(images);
  close(fd);
}

TEST(TemporaryFiles, AreNotSavedWhereTheListHasNoRoomForThem) {
  const char* own = getenv("TMPDIR");
  if (own == nullptr || std::string(own).find(kOwn) == std::string::npos) {
    std::string directory = testing::TempDir() + kOwn + "XXXXXX";
    ASSERT_NE(mkdtemp(directory.data()), nullptr);
    EXPECT_EQ(run_again_in(directory, "TemporaryFiles.AreNotSavedWhereTheListHasNoRoomForThem"), 0);
    std::filesystem::remove_all(directory);
    return;
  }
  size_t saved = 0, stay = 0;
  for (size_t room = 0; room < kMostRoom; room += 512) {
    save_and_remove(own, room, &saved, &stay);
    EXPECT_EQ(stay, 0u) << "of " << saved << " in " << room
                        << " bytes: a restart brings back what was removed";
  }
  EXPECT_EQ(saved, size_t{kFiles});
}

// Names that the saved files have beside an image.
std::set<std::string> saved_names(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".name") names.insert(std::filesystem::read_symlink(entry).filename());
  }
  return names;
}

// Between the two looks a file gets another name, one goes and one comes.
TEST(TemporaryFiles, AreSavedUnderTheirNamesInTheStop) {
  constexpr const char* kTest = "TemporaryFiles.AreSavedUnderTheirNamesInTheStop";
  const char* own = getenv("TMPDIR");
  if (own == nullptr || std::string(own).find(kOwn) == std::string::npos) {
    for (const int others : {0, 300}) {  // names of 200 bytes: a small directory, and one that is watched
      std::string directory = testing::TempDir() + kOwn + "XXXXXX";
      ASSERT_NE(mkdtemp(directory.data()), nullptr);
      for (int i = 0; i < others; ++i)
        std::filesystem::create_directory(directory + "/" + std::string(200, 'x') + std::to_string(i));
      EXPECT_EQ(run_again_in(directory, kTest), 0) << others;
      std::filesystem::remove_all(directory);
    }
    return;
  }
  const std::filesystem::path directory(own), images = directory / "images", files = images / "image.files";
  std::filesystem::create_directories(files);
  for (const char* name : {"renamed", "removed", "stays"}) std::ofstream(directory / name) << name;
  const int fd = open(images.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  struct stat st;
  ASSERT_EQ(fstat(fd, &st), 0);
  Arena arena;
  ASSERT_TRUE(arena.reserve(kEnvironment + (1 << 20)));
  SavedFilesDirectory beside;
  beside.be_in(fd, saved_files_directory_of("image.ckpt"));
  TemporaryFiles temporary;
  temporary.look(arena, st.st_dev, beside);
  EXPECT_EQ(saved_names(files), (std::set<std::string>{"removed", "renamed", "stays"}));
  std::filesystem::rename(directory / "renamed", directory / "other");
  std::filesystem::remove(directory / "removed");
  std::ofstream(directory / "new") << "new";
  temporary.look_again(beside);
  EXPECT_EQ(saved_names(files), (std::set<std::string>{"new", "other", "stays"}));
  close(fd);
}

}  // namespace
}  // namespace ckpt
