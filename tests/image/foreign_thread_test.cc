// The sink on a thread like the victim's writer thread: made by clone, with a thread block that is
// not libc's. Anything below %fs, where libc keeps errno, the allocator's caches and all other
// thread-local variables, is unmapped: whoever touches it dies.
#include <asm/prctl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <atomic>

#include "image/write/directory/image_directory.h"
#include "tests/image/image_fixture.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CKPT_TEST_SANITIZED 1
#else
#define CKPT_TEST_SANITIZED 0
#endif

namespace ckpt {
namespace {

struct Job {
  int dir_fd;
  const char* directory;
  const char* name;
  Arena* arena;
  const SinkOptions* options;
  std::span<const CopiedSegment> segments;
  std::span<const std::byte> meta;
  ImageIdentity identity;
  const char* backend;
  uint64_t next;
  Error error;
  bool ok;
};

Result<void> work(Job& job) {
  auto directory = open_image_directory(job.directory);
  if (!directory.ok()) return directory.error();
  DirectSink sink(*job.options);
  CKPT_TRY(sink.open(
      directory->get(), job.name, job.identity, *job.arena, [](void*, uint32_t) {}, nullptr));
  CKPT_TRY(sink.set_meta(job.meta));
  CKPT_TRY(sink.append(job.segments));
  auto stats = sink.commit();
  if (!stats.ok()) return stats.error();
  job.backend = sink.backend_name();
  auto pruned = prune_images(directory->get(), job.identity.run_id, 2);
  if (!pruned.ok()) return pruned.error();
  auto next = next_sequence(directory->get(), job.identity.run_id);
  if (!next.ok()) return next.error();
  job.next = *next;
  // An error's text, too, is made without libc.
  auto again = sink.open(-1, job.name, job.identity, *job.arena, nullptr, nullptr);
  if (again.ok()) return make_error(ExitCode::kInternal, 0, "a bad directory was taken");
  return {};
}

int thread_main(void* argument) {
  auto& job = *static_cast<Job*>(argument);
  auto result = work(job);
  job.ok = result.ok();
  if (!result.ok()) job.error = result.error();
  sys::call(__NR_exit, 0L);
  return 0;
}

class ForeignThread : public ImageTest {};

TEST_F(ForeignThread, NeedsNothingOfLibc) {
  if (CKPT_TEST_SANITIZED) GTEST_SKIP() << "sanitizers use thread-local variables themselves";
  TestMemory memory(700);
  // Compressible, so that the compressors do their whole work.
  for (size_t i = 0; i < memory.size; i += 3) memory.bytes[i] = std::byte{7};
  TestMeta meta({{memory.base, memory.base + memory.size}});
  auto list = segments(memory);

  size_t stack_bytes = 256 << 10;
  auto* stack = static_cast<std::byte*>(
      mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  // One page that nobody may touch, and behind it the block that %fs leads to.
  auto* block = static_cast<std::byte*>(
      mmap(nullptr, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_EQ(mprotect(block, 4096, PROT_NONE), 0);
  std::byte* fs = block + 4096;
  *reinterpret_cast<void**>(fs) = fs;  // the ABI: %fs:0 is its own address
  *reinterpret_cast<void**>(fs + 0x10) = fs;

  uint64_t sequence = 0;
  for (Codec codec : {Codec::kNone, Codec::kLz4, Codec::kZstd}) {
    for (bool uring : {true, false}) {
      sequence++;
      SCOPED_TRACE(sequence);
      SinkOptions options;
      options.codec = codec;
      options.uring = uring;
      arena_.reset();
      std::string file = name(sequence);
      Job job{dir_fd_.get(),      directory_.c_str(), file.c_str(), &arena_, &options, list,
              meta.writer.span(), identity(sequence), "",           0,       {},       false};
      pid_t tid = -1;
      std::atomic<int> alive{1};
      tid = clone(thread_main, stack + stack_bytes,
                  CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS |
                      CLONE_CHILD_CLEARTID,
                  &job, nullptr, fs, &alive);
      ASSERT_GT(tid, 0);
      while (alive.load() != 0) sys::call(__NR_futex, &alive, 0L, 1L, nullptr, nullptr, 0L);
      ASSERT_TRUE(job.ok) << job.error.message();
      EXPECT_EQ(job.next, sequence + 1);
      if (!uring) {
        EXPECT_STREQ(job.backend, "pwritev");
      }
      auto image = ImageReader::open(path(file));
      ASSERT_TRUE(image.ok()) << image.error().message();
      ASSERT_TRUE(image->verify_data().ok());
      expect_memory(*image, memory);
    }
  }
  EXPECT_EQ(files(), 2u);
  munmap(stack, stack_bytes);
  munmap(block, 2 * 4096);
}

}  // namespace
}  // namespace ckpt
