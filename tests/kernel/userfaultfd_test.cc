// What mode realtime relies on: the behaviour of userfaultfd write protection, each as a test. With
// user mode only, or none, there is nothing to rely on, and mode fork is taken: the tests say so.
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "base/machine/kernel_caps.h"
#include "base/raii_fd.h"
#include "base/units.h"

namespace ckpt {

namespace {

class UserfaultfdTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 4 * kPageSize;

  void SetUp() override {
    UserfaultfdProbe probe;
    uffd_.reset(open_userfaultfd(O_CLOEXEC | O_NONBLOCK, &probe));
    full_ = probe.access == UserfaultfdAccess::kFull;
    if (!full_) {
      printf("no full userfaultfd here: mode fork is taken, nothing to show\n");
      return;
    }
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP;
    ASSERT_EQ(ioctl(uffd_.get(), UFFDIO_API, &api), 0);
    memory_ =
        static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(memory_, MAP_FAILED);
    memset(memory_, 'a', kBytes);
    uffdio_register reg{};
    reg.range = {reinterpret_cast<uint64_t>(memory_), kBytes};
    reg.mode = UFFDIO_REGISTER_MODE_WP;
    ASSERT_EQ(ioctl(uffd_.get(), UFFDIO_REGISTER, &reg), 0);
  }
  void TearDown() override {
    if (memory_ != nullptr) munmap(memory_, kBytes);
  }

  void protect(bool on) {
    uffdio_writeprotect wp{};
    wp.range = {reinterpret_cast<uint64_t>(memory_), kBytes};
    wp.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
    ASSERT_EQ(ioctl(uffd_.get(), UFFDIO_WRITEPROTECT, &wp), 0) << strerror(errno);
  }
  // Waits for the next fault, says what the first byte was then, and lets the writer go on.
  char first_byte_at_fault() {
    pollfd fd{uffd_.get(), POLLIN, 0};
    if (poll(&fd, 1, 10'000) != 1) return '!';
    uffd_msg message{};
    if (read(uffd_.get(), &message, sizeof(message)) != sizeof(message)) return '?';
    EXPECT_EQ(message.event, UFFD_EVENT_PAGEFAULT);
    EXPECT_NE(message.arg.pagefault.flags & UFFD_PAGEFAULT_FLAG_WP, 0u);
    char seen = memory_[0];
    protect(false);
    return seen;
  }

  ScopedFd uffd_;
  bool full_ = false;
  char* memory_ = nullptr;
};

TEST_F(UserfaultfdTest, AWriteWaitsUntilUnprotected) {
  if (!full_) return;
  protect(true);
  std::thread writer([&] { memory_[0] = 'b'; });
  EXPECT_EQ(first_byte_at_fault(), 'a');
  writer.join();
  EXPECT_EQ(memory_[0], 'b');
}

TEST_F(UserfaultfdTest, AWriteByTheKernelWaitsToo) {
  if (!full_) return;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ScopedFd reader(ends[0]), writer_end(ends[1]);
  ASSERT_EQ(write(ends[1], "z", 1), 1);
  protect(true);
  std::atomic<ssize_t> got{-2};
  std::thread caller([&] { got = read(reader.get(), memory_, 1); });
  EXPECT_EQ(first_byte_at_fault(), 'a');
  caller.join();
  EXPECT_EQ(got, 1);  // neither EFAULT nor EINTR
  EXPECT_EQ(memory_[0], 'z');
}

// Where the kernel changes a futex itself, it cannot wait for a fault.
TEST_F(UserfaultfdTest, FutexesThatTheKernelWritesFailWithEfault) {
  if (!full_) return;
  auto* word = reinterpret_cast<uint32_t*>(memory_);
  *word = 0;
  auto futex = [&](int operation, long value3) {
    errno = 0;
    syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, 0, nullptr, word, value3);
    return errno;
  };
  protect(true);
  EXPECT_EQ(futex(FUTEX_LOCK_PI, 0), EFAULT);
  EXPECT_EQ(futex(FUTEX_WAKE_OP, FUTEX_OP(FUTEX_OP_ADD, 1, FUTEX_OP_CMP_EQ, 0)), EFAULT);
  protect(false);
  EXPECT_EQ(futex(FUTEX_LOCK_PI, 0), 0);
  protect(true);
  EXPECT_EQ(futex(FUTEX_UNLOCK_PI, 0), EFAULT);
  protect(false);
  EXPECT_EQ(futex(FUTEX_UNLOCK_PI, 0), 0);
}

TEST_F(UserfaultfdTest, TheDeathOfARobustMutexsOwnerIsNotMarked) {
  if (!full_) return;
  auto* mutex = reinterpret_cast<pthread_mutex_t*>(memory_);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(mutex, &attributes);
  for (bool protected_at_exit : {false, true}) {
    std::thread owner([&] {
      pthread_mutex_lock(mutex);
      if (protected_at_exit) protect(true);
    });
    owner.join();
    protect(false);
    EXPECT_EQ(pthread_mutex_trylock(mutex), protected_at_exit ? EBUSY : EOWNERDEAD);
    if (!protected_at_exit) {
      pthread_mutex_consistent(mutex);
      pthread_mutex_unlock(mutex);
    }
  }
}

TEST_F(UserfaultfdTest, ReadsDoNotFault) {
  if (!full_) return;
  protect(true);
  EXPECT_EQ(memory_[kPageSize], 'a');
  pollfd fd{uffd_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
}

TEST_F(UserfaultfdTest, ProtectionSurvivesMprotectThereAndBack) {
  if (!full_) return;
  protect(true);
  ASSERT_EQ(mprotect(memory_, kBytes, PROT_READ), 0);
  ASSERT_EQ(mprotect(memory_, kBytes, PROT_READ | PROT_WRITE), 0);
  std::thread writer([&] { memory_[0] = 'b'; });
  EXPECT_EQ(first_byte_at_fault(), 'a');
  writer.join();
}

TEST_F(UserfaultfdTest, AForkedChildWritesFreely) {
  if (!full_) return;
  protect(true);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    memory_[0] = 'c';
    _exit(memory_[0] == 'c' ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::thread writer([&] { memory_[0] = 'b'; });
  EXPECT_EQ(first_byte_at_fault(), 'a');  // still protected in the parent
  writer.join();
}

TEST_F(UserfaultfdTest, DontneedLosesProtectionWithoutAWord) {
  if (!full_) return;
  protect(true);
  ASSERT_EQ(madvise(memory_, kBytes, MADV_DONTNEED), 0);
  memory_[0] = 'b';  // would wait for ever if it were still protected
  pollfd fd{uffd_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
}

// MADV_PAGEOUT is what the kernel does by itself when it is short of memory.
TEST_F(UserfaultfdTest, AFreedPageThatIsReclaimedLosesProtectionWithoutAWord) {
  if (!full_) return;
  ASSERT_EQ(madvise(memory_, kBytes, MADV_FREE), 0);
  protect(true);
  ASSERT_EQ(madvise(memory_, kBytes, MADV_PAGEOUT), 0);
  // The processor on which it was given to MADV_FREE may have it in a list still. Then it is an ordinary
  // page, which the kernel keeps, or swaps out with its protection.
  ScopedFd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  uint64_t entry = 0;
  ASSERT_EQ(pread(pagemap.get(), &entry, 8, Addr::of(memory_).value / kPageSize * 8), 8);
  constexpr uint64_t kPresent = 1ull << 63, kSwapped = 1ull << 62;
  if ((entry & (kPresent | kSwapped)) != 0) GTEST_SKIP() << "the kernel has kept the page";
  memory_[0] = 'b';  // would wait for ever if it were still protected
  pollfd fd{uffd_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
}

TEST_F(UserfaultfdTest, MremapLosesProtectionWithoutAWord) {
  if (!full_) return;
  protect(true);
  void* moved = mremap(memory_, kBytes, kBytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
  if (moved == MAP_FAILED) moved = mremap(memory_, kBytes, 2 * kBytes, MREMAP_MAYMOVE);
  ASSERT_NE(moved, MAP_FAILED);
  static_cast<char*>(moved)[0] = 'b';
  pollfd fd{uffd_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
  munmap(moved, kBytes);
}

// The quick end of a registration (WriteProtection::remove), and why nothing may be protected then.
TEST_F(UserfaultfdTest, RegisteringForMissingPagesEndsWriteProtectionAndLeavesTheMarks) {
  if (!full_) return;
  protect(true);
  uffdio_register missing{};
  missing.range = {reinterpret_cast<uint64_t>(memory_), kBytes};
  missing.mode = UFFDIO_REGISTER_MODE_MISSING;
  ASSERT_EQ(ioctl(uffd_.get(), UFFDIO_REGISTER, &missing), 0);
  memory_[0] = 'b';  // would wait for ever
  pollfd fd{uffd_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
  // The other pages bear the mark of protection, although nothing protects them.
  ScopedFd pagemap(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  uint64_t entry = 0;
  ASSERT_EQ(pread(pagemap.get(), &entry, 8, Addr::of(memory_ + kPageSize).value / kPageSize * 8), 8);
  constexpr uint64_t kMarked = 1ull << 57;
  EXPECT_NE(entry & kMarked, 0u);
  // A thread that waits for a missing page is woken by the end of the registration.
  ASSERT_EQ(madvise(memory_ + 2 * kPageSize, kPageSize, MADV_DONTNEED), 0);
  std::thread toucher([&] { memory_[2 * kPageSize] = 'c'; });
  EXPECT_EQ(poll(&fd, 1, 10'000), 1);
  EXPECT_EQ(ioctl(uffd_.get(), UFFDIO_UNREGISTER, &missing.range), 0);
  toucher.join();
  EXPECT_EQ(memory_[2 * kPageSize], 'c');
}

TEST_F(UserfaultfdTest, HolesAreProtectedOnlyWithUnpopulated) {
  if (!full_) return;
  UserfaultfdProbe probe = probe_userfaultfd();
  // Without the feature, protecting a hole does nothing: its first write goes unseen.
  ASSERT_EQ(madvise(memory_, kBytes, MADV_DONTNEED), 0);
  protect(true);
  memory_[0] = 'b';
  pollfd fd{uffd_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 0), 0);
  if ((probe.features & kUffdFeatureWpUnpopulated) == 0) return;

  ScopedFd other(open_userfaultfd(O_CLOEXEC | O_NONBLOCK, nullptr));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | kUffdFeatureWpUnpopulated;
  ASSERT_EQ(ioctl(other.get(), UFFDIO_API, &api), 0);
  char* hole = static_cast<char*>(
      mmap(nullptr, kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  uffdio_register reg{};
  reg.range = {reinterpret_cast<uint64_t>(hole), kPageSize};
  reg.mode = UFFDIO_REGISTER_MODE_WP;
  ASSERT_EQ(ioctl(other.get(), UFFDIO_REGISTER, &reg), 0);
  uffdio_writeprotect wp{};
  wp.range = reg.range;
  wp.mode = UFFDIO_WRITEPROTECT_MODE_WP;
  ASSERT_EQ(ioctl(other.get(), UFFDIO_WRITEPROTECT, &wp), 0);
  std::thread writer([&] { hole[0] = 'b'; });
  fd = {other.get(), POLLIN, 0};
  EXPECT_EQ(poll(&fd, 1, 10'000), 1);
  wp.mode = 0;
  EXPECT_EQ(ioctl(other.get(), UFFDIO_WRITEPROTECT, &wp), 0);
  writer.join();
  munmap(hole, kPageSize);
}

// Why WriteProtection::unprotect_many() looks a second time: what was mapped into a hole between both calls
// would pass for memory that had been protected.
TEST_F(UserfaultfdTest, UnprotectingPassesOverAHole) {
  if (!full_) return;
  protect(true);
  char* second = memory_ + kPageSize;
  ASSERT_EQ(munmap(second, kPageSize), 0);
  protect(false);
  ASSERT_EQ(msync(memory_, kBytes, MS_ASYNC), -1) << "the hole is seen";
  ASSERT_EQ(mmap(second, kPageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
            second);
  ASSERT_EQ(msync(memory_, kBytes, MS_ASYNC), 0) << "it is filled";
  uffdio_writeprotect wp{};
  wp.range = {reinterpret_cast<uint64_t>(memory_), kBytes};
  EXPECT_EQ(ioctl(uffd_.get(), UFFDIO_WRITEPROTECT, &wp), -1);
  EXPECT_EQ(errno, ENOENT);
}

// The trap of the handler thread: while an event is unread, every UFFDIO_WRITEPROTECT says EAGAIN, so
// whoever reads the events must not insist on unprotecting first.
TEST_F(UserfaultfdTest, WriteProtectSaysEagainUntilTheEventIsRead) {
  if (!full_) return;
  ScopedFd other(open_userfaultfd(O_CLOEXEC | O_NONBLOCK, nullptr));
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_REMOVE;
  ASSERT_EQ(ioctl(other.get(), UFFDIO_API, &api), 0);
  char* memory =
      static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  memset(memory, 'a', kBytes);
  uffdio_register reg{};
  reg.range = {reinterpret_cast<uint64_t>(memory), kBytes};
  reg.mode = UFFDIO_REGISTER_MODE_WP;
  ASSERT_EQ(ioctl(other.get(), UFFDIO_REGISTER, &reg), 0);
  std::thread giver([&] { madvise(memory, kPageSize, MADV_DONTNEED); });
  pollfd fd{other.get(), POLLIN, 0};
  ASSERT_EQ(poll(&fd, 1, 10'000), 1);  // the event is there, unread
  uffdio_writeprotect wp{};
  wp.range = reg.range;
  wp.mode = UFFDIO_WRITEPROTECT_MODE_WP;
  EXPECT_EQ(ioctl(other.get(), UFFDIO_WRITEPROTECT, &wp), -1);
  EXPECT_EQ(errno, EAGAIN);
  uffd_msg message{};
  EXPECT_EQ(read(other.get(), &message, sizeof(message)), static_cast<ssize_t>(sizeof(message)));
  EXPECT_EQ(message.event, UFFD_EVENT_REMOVE);
  giver.join();
  EXPECT_EQ(ioctl(other.get(), UFFDIO_WRITEPROTECT, &wp), 0);
  munmap(memory, kBytes);
}

}  // namespace

}  // namespace ckpt
