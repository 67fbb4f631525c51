// At every system call that changes the image directory, in turn: an error, half a write, the death of the
// process. Writing a full image, writing an increment, `ckpt compact`, `ckpt gc`; with io_uring and pwritev,
// compressed and encrypted. Whatever happens, a restart of the directory takes a complete image, no older
// than the newest before; an error is one line with its documented code and leaves nothing behind; and the
// next attempt succeeds.
//
// CKPT_SWEEP=long: every error at every call (the target `sweep`); otherwise errors take turns over the
// calls.
#include <sys/file.h>
#include <sys/resource.h>

#include <set>

#include "image/read/saved_memory.h"
#include "image/read/sources/image_catalog.h"
#include "image/read/sources/reading_key.h"
#include "image/write/directory/image_directory.h"
#include "tests/image/image_fixture.h"
#include "tests/image_faults/call_faults.h"

namespace ckpt {
namespace {

constexpr uint64_t kWritten = 0x00ff'0f0f'5555'0001ull;  // pages of an increment, modulo 64
constexpr int kErrors[] = {ENOSPC, EIO, EDQUOT};

bool long_sweep() {
  const char* sweep = getenv("CKPT_SWEEP");
  return sweep != nullptr && std::string_view(sweep) == "long";
}

struct Variant {
  const char* name;
  bool uring;
  Codec codec;
  bool encrypted;
  bool held;  // as in the program: written, or compressed, from where it is
};
constexpr Variant kVariants[] = {{"pwritev", false, Codec::kNone, false, false},
                                 {"io_uring", true, Codec::kNone, false, false},
                                 {"lz4", true, Codec::kLz4, false, false},
                                 {"encrypted", false, Codec::kNone, true, false}};
// What only a checkpoint does; the commands have memory of their own.
constexpr Variant kHeld[] = {{"pwritev_held", false, Codec::kNone, false, true},
                             {"io_uring_held", true, Codec::kNone, false, true},
                             {"lz4_in_place", true, Codec::kLz4, false, true},
                             {"encrypted_lz4_in_place", true, Codec::kLz4, true, true}};

class ImageFaults : public ImageTest, public ::testing::WithParamInterface<Variant> {
 protected:
  void SetUp() override {
    ImageTest::SetUp();
    options_.uring = GetParam().uring;
    options_.codec = GetParam().codec;
    options_.held_buffers = GetParam().held ? 64 : 0;
    options_.chunk_bytes = options_.codec != Codec::kNone ? 512u << 10
                           : GetParam().held              ? 128u << 10
                                                          : 64u << 10;
    options_.in_flight = 3;
    for (TestMemory* memory : {&first_, &second_}) {
      // Half of each page compresses.
      for (size_t at = 0; at < memory->size; at += 4096)
        std::memset(memory->bytes + at, memory->bytes[at] == std::byte{0}, 2048);
    }
    if (GetParam().encrypted) {
      prepare_ciphers();
      key_file_ = path("key");
      write_file(key_file_, std::string(32, 'k'));
      ASSERT_EQ(chmod(key_file_.c_str(), 0600), 0);
      ASSERT_TRUE(read_key_file(key_file_.c_str(), key_).ok());
      ASSERT_TRUE(use_key_file(key_file_).ok());
      options_.key = &key_;
    }
    before_ = path("before");
    work_ = path("work");
    make_directory(before_);
    dir_fd_.reset(::open(before_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // The fixture's helpers look for parents there.
    root_ = directory_;
    directory_ = before_;
    ASSERT_TRUE(write_image(1, first_, ~0ull, options_).ok());
  }
  void TearDown() override {
    forget_reading_key();
    directory_ = root_;
    ImageTest::TearDown();
  }
  static void make_directory(const std::string& at) {
    std::filesystem::create_directory(at);
    std::filesystem::permissions(at, std::filesystem::perms(0700));
  }
  void start_again() {
    std::filesystem::remove_all(work_);
    make_directory(work_);
    for (const auto& file : std::filesystem::directory_iterator(before_)) {
      std::filesystem::copy_file(file.path(), work_ + "/" + file.path().filename().string());
    }
  }

  // Bodies of the process with the fault. As the library does it: leftovers, number, image.
  int write_next(bool increment) {
    directory_ = work_;
    auto directory = open_image_directory(work_.c_str());
    if (!directory.ok()) return told(directory.error());
    dir_fd_ = std::move(*directory);
    remove_dead_leftovers(dir_fd_.get());
    auto sequence = next_sequence(dir_fd_.get(), kRunId);
    if (!sequence.ok()) return told(sequence.error());
    auto stats = increment ? write_image(*sequence, second_, kWritten, options_, 1)
                           : write_image(*sequence, second_, ~0ull, options_);
    return stats.ok() ? 0 : told(stats.error());
  }
  int told(const Error& error) {
    fprintf(stderr, "ckpt: %s\n", error.text);
    return static_cast<int>(error.code);
  }
  int ckpt(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), CKPT_COMMAND);
    if (!key_file_.empty()) arguments.insert(arguments.end(), {"--key-file", key_file_});
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    int null = ::open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    execv(CKPT_COMMAND, argv.data());
    return 127;
  }

  // What the process had at the image of that number.
  std::vector<std::byte> memory_of(uint64_t sequence) const {
    std::vector<std::byte> memory(first_.size);
    for (size_t page = 0; page < first_.size / 4096; page++) {
      const bool second = sequence > 1 && (!increment_ || (kWritten >> (page % 64) & 1) != 0);
      const bool gone = sequence > 1 && increment_ && !second;  // an increment that inherits nothing
      if (!gone) std::memcpy(&memory[page * 4096], (second ? second_ : first_).bytes + page * 4096, 4096);
    }
    return memory;
  }
  size_t leftovers() const {
    size_t n = 0;
    for (const auto& file : std::filesystem::directory_iterator(work_))
      n += file.path().extension() == ".tmp";
    return n;
  }
  // A dead process is a writer until the kernel has ended its ring: some time after its death.
  void await_end_of_writers() const {
    for (const auto& file : std::filesystem::directory_iterator(work_)) {
      if (file.path().extension() != ".tmp") continue;
      ScopedFd fd(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC));
      ASSERT_EQ(flock(fd.get(), LOCK_EX), 0);
    }
  }
  // What a restart of the directory would take: complete, right, and not older than that.
  void expect_restorable(uint64_t at_least) {
    auto newest = resolve_image(work_);
    ASSERT_TRUE(newest.ok()) << newest.error().message();
    auto image = ImageChain::open(*newest);
    ASSERT_TRUE(image.ok()) << image.error().message();
    ASSERT_GE(image->brief().sequence, at_least);
    auto verified = image->verify_all(1);
    ASSERT_TRUE(verified.ok()) << verified.error().message();
    std::vector<std::byte> got(first_.size);
    ASSERT_TRUE(SavedMemory(*image).read(Addr{first_.base}, got).ok());
    ASSERT_TRUE(got == memory_of(image->brief().sequence))
        << "other memory in image " << image->brief().sequence;
  }

  void expect_survives(const std::function<int()>& body, const CallFault& fault,
                       const std::vector<long>& calls, uint64_t before, uint64_t after) {
    const long call = calls[static_cast<size_t>(fault.at)];
    SCOPED_TRACE(fmt::format("{}: fault {} error {} at call {} of {}, {}", GetParam().name,
                             static_cast<int>(fault.kind), errno_name(fault.error), fault.at, calls.size(),
                             call_name(call)));
    start_again();
    const CallOutcome outcome = run_with_fault(work_, body, fault);
    if (outcome.exit_code == 0) {
      expect_restorable(after);
    } else {
      expect_restorable(before);
    }
    if (outcome.killed) {
      ASSERT_TRUE(outcome.applied);
      ASSERT_EQ(outcome.exit_code, 128 + SIGKILL);
    } else if (outcome.exit_code != 0) {
      ASSERT_TRUE(outcome.applied) << outcome.said;
      EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::kIo)) << outcome.said;
      const std::string& said = outcome.said;
      EXPECT_TRUE(said.starts_with("ckpt: ") && said.find('\n') == said.size() - 1) << said;
      EXPECT_NE(said.find(name(1).substr(0, 10)), std::string::npos) << said;
      EXPECT_NE(said.find(errno_name(fault.error)), std::string::npos) << said;
      errors_seen_.insert(said);
    } else {
      EXPECT_EQ(outcome.said, "");
    }
    if (!outcome.killed && call != __NR_unlinkat) {
      EXPECT_EQ(leftovers(), 0u);
    }
    await_end_of_writers();
    const CallOutcome again = run_with_fault(work_, body, {});
    ASSERT_EQ(again.exit_code, 0) << again.said;
    EXPECT_EQ(leftovers(), 0u);
    expect_restorable(after);
    applied_ += outcome.applied;
  }

  // `before`, `after`: the newest image that must be there.
  void sweep(const std::function<int()>& body, uint64_t before, uint64_t after,
             std::initializer_list<long> must_see) {
    start_again();
    const CallOutcome whole = run_with_fault(work_, body, {});
    ASSERT_EQ(whole.exit_code, 0) << whole.said;
    expect_restorable(after);
    for (long call : must_see)
      ASSERT_NE(std::count(whole.calls.begin(), whole.calls.end(), call), 0) << call_name(call);
    int tried = 0;
    for (int at = 0; at < static_cast<int>(whole.calls.size()); at++) {
      for (CallFault::Kind kind : {CallFault::kFail, CallFault::kFailOn}) {
        for (int i = 0; i < (long_sweep() ? 3 : 1); i++) {
          const int error = kErrors[static_cast<size_t>(at + i) % std::size(kErrors)];
          expect_survives(body, {kind, at, error}, whole.calls, before, after);
          tried++;
          if (HasFatalFailure()) return;
        }
      }
      for (CallFault::Kind kind :
           {CallFault::kShort, CallFault::kTorn, CallFault::kKillBefore, CallFault::kKillAfter}) {
        expect_survives(body, {kind, at, 0}, whole.calls, before, after);
        if (HasFatalFailure()) return;
      }
    }
    EXPECT_GE(applied_, tried);
    EXPECT_FALSE(errors_seen_.empty());
  }

  TestMemory first_{60}, second_{60, 0x10000, 2};
  bool increment_ = false;
  SinkOptions options_;
  ImageKey key_;
  std::string root_, before_, work_, key_file_;
  std::set<std::string> errors_seen_;
  int applied_ = 0;
};

// Written by a checkpoint.
class CheckpointFaults : public ImageFaults {};

TEST_P(CheckpointFaults, FullImage) {
  sweep([this] { return write_next(false); }, 1, 2,
        {__NR_openat, __NR_fsync, __NR_renameat2, __NR_ftruncate});
}

TEST_P(CheckpointFaults, Increment) {
  increment_ = true;
  sweep([this] { return write_next(true); }, 1, 2, {__NR_openat, __NR_fsync, __NR_renameat2});
}

TEST_P(ImageFaults, Compact) {
  increment_ = true;
  ASSERT_TRUE(write_image(2, second_, kWritten, options_, 1).ok());
  sweep(
      [this] {
        return ckpt({"compact", work_});
      },
      2, 2, {__NR_openat, __NR_fsync, __NR_renameat, __NR_ftruncate});
}

TEST_P(ImageFaults, Prune) {
  increment_ = true;
  ASSERT_TRUE(write_image(2, second_, kWritten, options_, 1).ok());
  for (uint64_t sequence : {3, 4}) {
    // Full images of what the increment has.
    ASSERT_TRUE(write_image(sequence, second_, kWritten, options_).ok());
  }
  ASSERT_TRUE(write_image(5, second_, kWritten, options_, 4).ok());
  write_file(before_ + "/" + name(6) + ".tmp", "");
  sweep([this] { return ckpt({"gc", work_, "--keep", "1"}); }, 5, 5, {__NR_unlinkat});
}

// The limit at every block of the file (ulimit -f).
TEST_P(CheckpointFaults, FileSizeLimit) {
  start_again();
  ASSERT_EQ(run_with_fault(work_, [this] { return write_next(false); }, {}).exit_code, 0);
  const uint64_t bytes = std::filesystem::file_size(work_ + "/" + name(2));
  for (uint64_t limit = 0; limit <= bytes; limit += long_sweep() ? 512 : 4096) {
    SCOPED_TRACE(limit);
    start_again();
    const CallOutcome outcome = run_with_fault(work_,
                                               [&] {
                                                 rlimit r{limit, RLIM_INFINITY};
                                                 // Of the process, so that not even the test's own output may
                                                 // grow: it has none.
                                                 setrlimit(RLIMIT_FSIZE, &r);
                                                 auto stats = write_next(false);
                                                 r.rlim_cur = RLIM_INFINITY;
                                                 setrlimit(RLIMIT_FSIZE, &r);
                                                 return stats;
                                               },
                                               {});
    EXPECT_EQ(outcome.exit_code, limit >= bytes ? 0 : static_cast<int>(ExitCode::kIo));
    expect_restorable(limit >= bytes ? 2 : 1);
    EXPECT_EQ(leftovers(), 0u);
  }
}

const auto name_of = [](const auto& variant) { return std::string(variant.param.name); };
INSTANTIATE_TEST_SUITE_P(Writing, ImageFaults, ::testing::ValuesIn(kVariants), name_of);
INSTANTIATE_TEST_SUITE_P(Writing, CheckpointFaults, ::testing::ValuesIn(kVariants), name_of);
INSTANTIATE_TEST_SUITE_P(InPlace, CheckpointFaults, ::testing::ValuesIn(kHeld), name_of);

}  // namespace
}  // namespace ckpt
