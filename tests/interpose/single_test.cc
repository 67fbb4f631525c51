// A program that never had a second thread pays nothing for being cancellable: its calls do not change the
// cancellation type.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace {
std::atomic<int> changes{0};
}  // namespace

// In place of libc's, for the library too.
extern "C" int pthread_setcanceltype(int type, int* before) {
  static auto* libc = reinterpret_cast<int (*)(int, int*)>(dlsym(RTLD_NEXT, "pthread_setcanceltype"));
  ++changes;
  return libc(type, before);
}

namespace {

void write_and_read() {
  int ends[2];
  char byte = 'x';
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], &byte, 1), 1);
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  close(ends[0]);
  close(ends[1]);
}

// One test: what comes first decides what holds later.
TEST(Single, CancellationTypeChangesOnlyWhereThereIsAnotherThread) {
  write_and_read();
  EXPECT_EQ(changes, 0);
  std::thread(write_and_read).join();
  EXPECT_EQ(changes, 4);
}

}  // namespace
