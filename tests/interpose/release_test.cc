// Memory that is given back while a copy is under way is announced first, whoever gives it back.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include <vector>

#include "tests/interpose/blocked_thread.h"

extern "C" pid_t _Fork();

namespace ckpt::test {
namespace {

constexpr size_t kMiB = 1 << 20;

void* fresh(size_t n = kMiB) {
  void* p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(p, MAP_FAILED);
  memset(p, 1, n);
  return p;
}

class Releases : public ::testing::Test {
 protected:
  void SetUp() override { install_stop_handler(0); }
  void TearDown() override { set_copying(false); }
};

TEST_F(Releases, NothingIsSaidWhenNothingIsCopied) {
  set_copying(true);
  set_copying(false);
  void* p = fresh();
  munmap(p, kMiB);
  EXPECT_EQ(releases(), 0);
}

TEST_F(Releases, ByTheProgram) {
  void *a = fresh(), *b = fresh(), *c = fresh(), *d = fresh(), *e = fresh(), *f = fresh(), *g = fresh();
  set_copying(true);
  EXPECT_EQ(madvise(a, kMiB, MADV_WILLNEED), 0);
  EXPECT_EQ(mprotect(a, kMiB, PROT_READ), 0);
  void* untouched = mmap(nullptr, kMiB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(releases(), 0);
  EXPECT_EQ(munmap(a, kMiB), 0);
  EXPECT_TRUE(was_released(a, kMiB));
  EXPECT_EQ(madvise(b, kMiB, MADV_DONTNEED), 0);
  EXPECT_TRUE(was_released(b, kMiB));
  EXPECT_EQ(mmap(c, kMiB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), c);
  EXPECT_TRUE(was_released(c, kMiB));
  void* moved = mremap(d, kMiB, 2 * kMiB, MREMAP_MAYMOVE);
  EXPECT_NE(moved, MAP_FAILED);
  EXPECT_TRUE(was_released(d, kMiB));
  EXPECT_EQ(mprotect(e, kMiB, PROT_NONE), 0);
  EXPECT_TRUE(was_released(e, kMiB));
  EXPECT_EQ(syscall(SYS_munmap, f, kMiB), 0);
  EXPECT_TRUE(was_released(f, kMiB));
  EXPECT_EQ(mremap(g, kMiB, kMiB / 2, 0), g);
  EXPECT_TRUE(was_released(static_cast<char*>(g) + kMiB / 2, kMiB / 2));
  EXPECT_FALSE(was_released(g, 4096));
  set_copying(false);
  munmap(untouched, kMiB);
}

// While memory is registered MADV_FREE gives it back at once. The kernel refuses it where a file is behind
// the memory: MADV_DONTNEED would put the file's bytes in the place of the program's.
TEST_F(Releases, FreedLazilyOnlyWhereNoFileIs) {
  const int fd = memfd_create("lazily", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, kMiB), 0);
  auto* mine = static_cast<char*>(mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
  auto* anonymous = static_cast<char*>(fresh());
  memset(mine, 1, kMiB);
  set_registered(true);
  EXPECT_EQ(madvise(mine, kMiB, MADV_FREE), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(madvise(anonymous, kMiB, MADV_FREE), 0);
  set_registered(false);
  EXPECT_EQ(mine[0], 1);
  EXPECT_EQ(anonymous[0], 0);
  munmap(mine, kMiB);
  munmap(anonymous, kMiB);
  close(fd);
}

TEST_F(Releases, OfFiles) {
  int fd = memfd_create("release", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, kMiB), 0);
  void* p = mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  memset(p, 1, kMiB);
  set_copying(true);
  EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_TRUE(was_released(p, kMiB));
  set_copying(true);
  EXPECT_EQ(ftruncate(fd, 4096), 0);
  EXPECT_TRUE(was_released(p, kMiB));
  set_copying(false);
  int id = shmget(IPC_PRIVATE, kMiB, 0600);
  void* s = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  memset(s, 1, kMiB);
  set_copying(true);
  EXPECT_EQ(shmdt(s), 0);
  EXPECT_TRUE(was_released(s, kMiB));
}

TEST_F(Releases, ByTheHeapOfLibc) {
  // Mapped by itself: unmapped by free, moved by realloc.
  char* large = static_cast<char*>(malloc(64 * kMiB));
  char* other = static_cast<char*>(malloc(64 * kMiB));
  memset(large, 1, 64 * kMiB);
  memset(other, 1, 64 * kMiB);
  set_copying(true);
  const volatile auto was_large = reinterpret_cast<uintptr_t>(large);
  const volatile auto was_other = reinterpret_cast<uintptr_t>(other);
  free(large);
  EXPECT_TRUE(was_released(was_large, 64 * kMiB - 4096));
  // Grown in place, nothing is given back; moved, all of it.
  char* grown = static_cast<char*>(realloc(other, 128 * kMiB));
  EXPECT_TRUE(reinterpret_cast<uintptr_t>(grown) == was_other || was_released(was_other, 64 * kMiB - 4096));
  set_copying(false);
  free(grown);

  // The top of the heap, trimmed by free.
  std::vector<void*> blocks;
  for (int i = 0; i < 2000; ++i) blocks.push_back(memset(malloc(20'000), 1, 20'000));
  char* end = static_cast<char*>(sbrk(0));
  set_copying(true);
  for (auto i = blocks.rbegin(); i != blocks.rend(); ++i) free(*i);
  malloc_trim(0);
  char* after = static_cast<char*>(sbrk(0));
  ASSERT_LT(after, end);
  EXPECT_GT(releases(), 0);
  size_t told = 0;
  for (int i = 0; i < releases(); ++i) {
    if (release(i).start >= reinterpret_cast<uintptr_t>(after)) told += release(i).length;
  }
  EXPECT_GE(told, static_cast<size_t>(end - after));
}

TEST_F(Releases, ByAThreadsEnd) {
  // Large stacks are not kept by libc: unmapped; small ones are kept, their pages dropped.
  for (size_t size : {8 * kMiB, 128 * kMiB}) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, size);
    pthread_t thread;
    static std::atomic<bool> go;
    static std::atomic<char*> deep;
    go = false;
    deep = nullptr;
    ASSERT_EQ(pthread_create(
                  &thread, &attributes,
                  [](void*) -> void* {
                    volatile char frame[256 * 1024];
                    memset(const_cast<char*>(frame), 1, sizeof(frame));
                    deep = const_cast<char*>(frame);
                    while (!go.load()) sched_yield();
                    return nullptr;
                  },
                  nullptr),
              0);
    while (deep.load() == nullptr) sched_yield();
    set_copying(true);
    go = true;
    pthread_join(thread, nullptr);
    EXPECT_TRUE(was_released(deep.load(), 64 * 1024)) << size;
    set_copying(false);
    pthread_attr_destroy(&attributes);
  }
}

TEST_F(Releases, ByDlclose) {
  void* library = dlopen("libnss_compat.so.2", RTLD_NOW);
  ASSERT_NE(library, nullptr) << dlerror();
  link_map* map = nullptr;
  ASSERT_EQ(dlinfo(library, RTLD_DI_LINKMAP, &map), 0);
  const void* dynamic_section = map->l_ld;
  set_copying(true);
  dlclose(library);
  EXPECT_TRUE(was_released(dynamic_section, 16));
}

// A stop between the question and the system call: it is asked again.
TEST_F(Releases, AreAskedAgainAfterAStop) {
  std::atomic<bool> over{false};
  std::atomic<pid_t> tid{0};
  std::atomic<uint64_t> rounds{0};
  std::thread worker([&] {
    tid = this_thread();
    while (!over.load()) {
      void* p = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(p, MAP_FAILED);
      *static_cast<char*>(p) = 1;
      ASSERT_EQ(munmap(p, 4096), 0);
      ++rounds;
    }
  });
  // Stops one right behind the other let nothing come between.
  while (rounds == 0) sched_yield();
  for (int i = 0; i < 500; ++i) {
    uint64_t before = stops();
    send_stop(tid);
    while (stops() == before) sched_yield();
  }
  over = true;
  worker.join();
  EXPECT_GT(rounds.load(), 0u);
}

TEST(Fork, ChildrenAreTold) {
  for (int kind = 0; kind < 2; ++kind) {
    int before = forks_in_child();
    pid_t child = kind == 0 ? fork() : _Fork();
    if (child == 0) _exit(forks_in_child() == before + 1 ? 0 : 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << kind;
    EXPECT_EQ(forks_in_child(), before);
  }
}

}  // namespace
}  // namespace ckpt::test
