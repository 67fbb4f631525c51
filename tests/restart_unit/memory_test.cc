// Memory: mapped, filled, protected as it was, at the right places.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/machine/droppable_memory.h"
#include "made_image.h"
#include "restart/plan/vdso/vdso.h"

namespace ckpt {
namespace {

class Memory : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/restart_unit.XXXXXX";
    directory_ = mkdtemp(name);
  }
  void TearDown() override {
    if (!HasFailure()) (void)!system(("rm -rf " + directory_).c_str());
  }
  RunResult run(MadeImage& image, std::vector<std::string> options = {},
                const std::function<void()>& before_exec = {}) {
    image.step(GuestOp::kGo);
    image.step(GuestOp::kEnd, 7);
    options.push_back(image.write(directory_));
    return run_restart(options, {}, before_exec);
  }
  std::string directory_;
};

constexpr uint64_t kMany = 0x20'0000'0000;

std::string pattern(size_t bytes, unsigned seed) {
  std::string s(bytes, '\0');
  uint32_t x = seed;
  for (char& c : s) {
    x = x * 1664525u + 1013904223u;
    c = static_cast<char>(x >> 24);
  }
  return s;
}

TEST_F(Memory, EndsLikeTheProgram) {
  MadeImage image;
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(r.err, "");
}

TEST_F(Memory, AnonymousPagesWithHolesComeBack) {
  MadeImage image;
  std::string bytes = pattern(3 << 20, 1);
  for (size_t page = 5; page < 700; page += 7) bytes.replace(page * 4096, 4096, std::string(4096, '\0'));
  image.add(0x20'0000'0000, 0x20'0000'0000 + (8 << 20), PROT_READ | PROT_WRITE, MappingKind::kAnonymous,
            bytes);
  image.step(GuestOp::kDump, 0, 0x20'0000'0000, 4 << 20);
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_TRUE(r.out == bytes + std::string(1 << 20, '\0'));
}

TEST_F(Memory, CompressedPagesComeBack) {
  for (Codec codec : {Codec::kLz4, Codec::kZstd}) {
    MadeImage image;
    image.codec = codec;
    std::string bytes;
    for (int i = 0; i < 100000; ++i) bytes += "line " + std::to_string(i * 7) + "\n";
    bytes += pattern(1 << 20, 2);  // and some that cannot be compressed
    image.add(0x20'0000'0000, 0x20'0000'0000 + (8 << 20), PROT_READ | PROT_WRITE, MappingKind::kAnonymous,
              bytes);
    image.step(GuestOp::kDump, 0, 0x20'0000'0000, bytes.size());
    RunResult r = run(image);
    EXPECT_EQ(r.exit_code(), 7) << r.err;
    EXPECT_TRUE(r.out == bytes);
  }
}

TEST_F(Memory, LazyPagesComeBackWhenTheyAreTouched) {
  for (Codec codec : {Codec::kNone, Codec::kLz4, Codec::kZstd}) {
    MadeImage image;
    image.codec = codec;
    std::string bytes;
    for (int i = 0; i < 100000; ++i) bytes += "line " + std::to_string(i * 7) + "\n";
    bytes.resize(2 << 20);
    bytes += pattern(3 << 20, 2);
    for (size_t page = 300; page < 1000; page += 7) bytes.replace(page * 4096, 4096, std::string(4096, '\0'));
    // Two mappings side by side: extents may reach from one into the other. Read only, and with a hole at the
    // end.
    uint64_t at = 0x20'0000'0000;
    size_t middle = (3 << 20) + 8192;
    image.add(at, at + middle, PROT_READ | PROT_WRITE, MappingKind::kAnonymous, bytes.substr(0, middle));
    image.add(at + middle, at + (8 << 20), PROT_READ, MappingKind::kAnonymous, bytes.substr(middle));
    image.step(GuestOp::kGo);
    image.step(GuestOp::kStore, 'X', at + 5);
    image.step(GuestOp::kDump, 0, at, 8 << 20);
    RunResult r = run(image, {"--lazy", "--quiet"});
    EXPECT_EQ(r.exit_code(), 7) << r.err;
    EXPECT_EQ(r.err, "");
    bytes[5] = 'X';
    bytes.resize(8 << 20);
    EXPECT_TRUE(r.out == bytes);
  }
}

// What ckpt-restart puts there itself (mappings with a MiB or more), what the restorer copies, side by side
// and in the same extents.
void add_memory_of_all_kinds(MadeImage& image, std::string& bytes) {
  bytes = pattern(7 << 20, 9);
  for (size_t page = 0; page < 1700; page += 2)
    bytes.replace(page * 4096 + 8, 4000, std::string(4000, 'y'));  // can be compressed
  for (size_t page = 3; page < 1700; page += 11) bytes.replace(page * 4096, 4096, std::string(4096, '\0'));
  constexpr size_t kEnds[] = {(2 << 20) + 4096, (2 << 20) + 65536, 4 << 20, 6 << 20, 7 << 20};
  constexpr uint32_t kFlags[] = {0, 0, kMapHugePage, 0, kMapLocked};
  size_t from = 0;
  for (size_t i = 0; i < std::size(kEnds); ++i) {
    const uint32_t prot = i == 3 ? PROT_READ : PROT_READ | PROT_WRITE;
    image
        .add(kMany + from, kMany + kEnds[i], prot, MappingKind::kAnonymous,
             bytes.substr(from, kEnds[i] - from))
        .record.flags = kFlags[i];
    from = kEnds[i];
  }
}

TEST_F(Memory, WhoeverPutsItThereItIsOrdinaryMemory) {
  for (Codec codec : {Codec::kNone, Codec::kLz4}) {
    MadeImage image;
    image.codec = codec;
    std::string bytes;
    add_memory_of_all_kinds(image, bytes);
    image.step(GuestOp::kGo);
    image.step(GuestOp::kStore, 'X', kMany + 3 * 4096);  // a page that the image does not have
    image.step(GuestOp::kDump, 0, kMany, bytes.size());
    image.cat("/proc/self/smaps");
    RunResult r = run(image, {"--eager"});
    EXPECT_EQ(r.exit_code(), 7) << r.err;
    bytes[3 * 4096] = 'X';
    EXPECT_TRUE(r.out.substr(0, bytes.size()) == bytes);
    EXPECT_NE(r.out.find("VmFlags:"), std::string::npos);
    EXPECT_EQ(r.out.find(" um "), std::string::npos) << "registered still";
  }
}

TEST_F(Memory, TheRestorerCopiesAllWhereTheKernelRefusesUserfaultfd) {
  for (unsigned long request : {UFFDIO_API, UFFDIO_REGISTER}) {
    MadeImage image;
    std::string bytes;
    add_memory_of_all_kinds(image, bytes);
    image.step(GuestOp::kDump, 0, kMany, bytes.size());
    RunResult r = run(image, {"--eager"}, [&] { refuse_ioctl(request, EPERM); });
    EXPECT_EQ(r.exit_code(), 7) << r.err;
    EXPECT_TRUE(r.out == bytes);
  }
}

TEST_F(Memory, NothingRunsWhenMemoryCannotBePutThere) {
  MadeImage image;
  std::string bytes;
  add_memory_of_all_kinds(image, bytes);
  image.step(GuestOp::kDump, 0, kMany, 1);
  RunResult r = run(image, {"--eager"}, [] { refuse_ioctl(UFFDIO_COPY, ENOMEM); });
  EXPECT_EQ(r.exit_code(), 71) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_NE(r.err.find("not enough memory"), std::string::npos) << r.err;
}

TEST_F(Memory, MapsAreWhatTheImageSays) {
  MadeImage image;
  image.add(0x20'0000'0000, 0x20'0000'2000, PROT_READ, MappingKind::kAnonymous, pattern(8192, 3));
  image.add(0x20'0000'4000, 0x20'0000'6000, PROT_NONE, MappingKind::kAnonymous, pattern(8192, 4));
  image.add(0x20'0001'0000, 0x20'0002'0000, PROT_READ | PROT_WRITE, MappingKind::kAnonymous).record.flags =
      kMapGrowsDown;
  image.cat("/proc/self/maps");
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  for (const char* line :
       {"1000000000-1000004000 r-xp", "2000000000-2000002000 r--p", "2000004000-2000006000 ---p",
        "2000010000-2000020000 rw-p", "[vdso]", "[vvar]", "700000000000-"}) {
    EXPECT_NE(r.out.find(line), std::string::npos) << line << " in\n" << r.out;
  }
  // The restorer's own range is all that may be there beside it (the library unmaps it).
  EXPECT_LE(std::count(r.out.begin(), r.out.end(), '\n'), 16) << r.out;
  EXPECT_EQ(r.out.find("ckpt-restart"), std::string::npos) << r.out;
}

// Before Linux 6.11 there is none.
TEST_F(Memory, DroppableMemoryHasNothingOfTheImage) {
  const std::string bytes = pattern(2 << 20, 5);
  for (bool known : {true, false}) {
    MadeImage image;
    image.add(kMany, kMany + (2 << 20), PROT_READ | PROT_WRITE, MappingKind::kAnonymous, bytes).record.flags =
        kMapDroppable | kMapWipeOnFork | kMapDontDump | kMapNoReserve;
    image.add(kMany + (3 << 20), kMany + (5 << 20), PROT_READ | PROT_WRITE, MappingKind::kAnonymous, bytes);
    image.step(GuestOp::kDump, 0, kMany, 2 << 20);
    image.step(GuestOp::kDump, 0, kMany + (3 << 20), 2 << 20);
    image.cat("/proc/self/smaps");
    RunResult r = run(image, {}, [known] {
      if (!known) refuse_mmap(MAP_DROPPABLE, EINVAL);
    });
    EXPECT_EQ(r.exit_code(), 7) << r.err;
    ASSERT_GT(r.out.size(), size_t{4 << 20});
    EXPECT_TRUE(r.out.substr(0, 2 << 20) == std::string(2 << 20, '\0'));
    EXPECT_TRUE(r.out.substr(2 << 20, 2 << 20) == bytes);
    known = known && kernel_has_droppable_memory();
    EXPECT_EQ(r.out.find(" dp", 4 << 20) != std::string::npos, known);
    EXPECT_EQ(r.err.find("older than 6.11") == std::string::npos, known) << r.err;
  }
}

uint64_t clock_gettime_offset(const Vdso& vdso) {
  for (const VdsoSymbol& s : vdso_symbols({vdso.code.start.as<const std::byte>(), vdso.code.size()})) {
    if (s.name == "__vdso_clock_gettime") return s.offset;
  }
  ADD_FAILURE() << "no __vdso_clock_gettime";
  return 0;
}

TEST_F(Memory, VdsoWorksAtItsOldPlace) {
  MadeImage image;
  auto vdso = find_vdso();
  ASSERT_TRUE(vdso.ok());
  image.step(GuestOp::kClock, 0, image.process.vdso_start + clock_gettime_offset(*vdso));
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_EQ(r.out, "vdso 1 \n");
}

TEST_F(Memory, AnotherKernelsVdsoLeadsToOurs) {
  auto vdso = find_vdso();
  ASSERT_TRUE(vdso.ok());
  std::string code(vdso->code.start.as<const char>(), vdso->code.size());
  uint64_t offset = clock_gettime_offset(*vdso);
  code[offset + 40] ^= 1;  // what the old function did no longer matters
  code[code.size() - 1] ^= 1;
  for (bool lacking : {false, true}) {
    std::string saved = code;
    if (lacking) {
      // A function that this kernel does not know by its name, but knows as a system call.
      size_t at = saved.find("__vdso_getcpu");
      ASSERT_NE(at, std::string::npos);
      std::memcpy(saved.data() + at, "__vdso_nobody", 13);
    }
    MadeImage image;
    image.vdso_code = saved;
    image.process.vdso_hash ^= 1;
    image.step(GuestOp::kClock, 0, image.process.vdso_start + offset);
    image.cat("/proc/self/maps");
    RunResult r = run(image);
    if (lacking) {
      EXPECT_EQ(r.exit_code(), 68) << r.err;
      EXPECT_NE(r.err.find("__vdso_nobody"), std::string::npos) << r.err;
    } else {
      EXPECT_EQ(r.exit_code(), 7) << r.err;
      EXPECT_EQ(r.out.substr(0, 8), "vdso 1 \n") << r.out;
      EXPECT_NE(r.out.find("[vdso]"), std::string::npos) << r.out;
    }
  }
}

TEST_F(Memory, WhereCkptRestartItselfIsNothingIsInTheWay) {
  // The image's memory lies exactly where ckpt-restart's own code, heap, stack and vdso are likely to be.
  MadeImage image;
  std::string bytes = pattern(64 << 10, 5);
  uint64_t places[] = {0x10000, 0x400000, 0x5555'5555'0000, 0x7fff'f7d0'0000, 0x7fff'ff00'0000};
  for (uint64_t at : places) {
    image.add(at, at + 0x10'0000, PROT_READ | PROT_WRITE, MappingKind::kAnonymous, bytes);
    image.step(GuestOp::kDump, 0, at, bytes.size());
  }
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  std::string all;
  for (size_t i = 0; i < std::size(places); ++i) all += bytes;
  EXPECT_TRUE(r.out == all);
}

TEST_F(Memory, FilesAreMappedAgain) {
  MadeImage image;
  std::string path = directory_ + "/file", content = pattern(4 * 4096, 6);
  int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size()));
  close(fd);
  // Private: page 1 changed by the program. Shared: page 2 written by it.
  std::string changed = pattern(4096, 7), written = pattern(4096, 8);
  auto& p = image.add(0x20'0000'0000, 0x20'0000'3000, PROT_READ, MappingKind::kFilePrivate,
                      std::string(4096, '\0') + changed);
  p.path = path;
  auto& s =
      image.add(0x21'0000'0000, 0x21'0000'1000, PROT_READ | PROT_WRITE, MappingKind::kFileShared, written);
  s.path = path;
  s.record.file_offset = 0x3000;
  s.record.flags = kMapMayWrite;
  s.record.object_size = content.size();
  image.step(GuestOp::kDump, 0, 0x20'0000'0000, 0x3000);
  image.step(GuestOp::kDump, 0, 0x21'0000'0000, 0x1000);
  image.step(GuestOp::kStore, 'X', 0x21'0000'0000);
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_TRUE(r.out == content.substr(0, 4096) + changed + content.substr(8192, 4096) + written);
  std::string now(content.size(), '\0');
  fd = open(path.c_str(), O_RDONLY);
  ASSERT_EQ(read(fd, now.data(), now.size()), static_cast<ssize_t>(now.size()));
  close(fd);
  EXPECT_TRUE(now == content.substr(0, 3 * 4096) + "X" + written.substr(1));
}

TEST_F(Memory, SharedObjectsStayShared) {
  for (MappingKind kind : {MappingKind::kSharedAnonymous, MappingKind::kMemfd, MappingKind::kSysV}) {
    MadeImage image;
    std::string bytes = pattern(4 * 4096, 9);
    const char* path = kind == MappingKind::kMemfd             ? "/memfd:thing (deleted)"
                       : kind == MappingKind::kSharedAnonymous ? "/dev/zero (deleted)"
                                                               : "/SYSV00000000 (deleted)";
    auto& whole = image.add(0x20'0000'0000, 0x20'0000'4000, PROT_READ | PROT_WRITE, kind, bytes);
    auto& part = image.add(0x21'0000'0000, 0x21'0000'2000, PROT_READ, kind);
    part.record.file_offset = 0x2000;
    for (MadeMapping* m : {&whole, &part}) {
      m->path = path;
      m->record.object = 77;
      m->record.object_size = 0x4000;
      m->record.sysv_shmid = 123456;
      m->record.sysv_mode = 01600;  // removed when the last one leaves
    }
    image.step(GuestOp::kStore, 'Y', 0x20'0000'2001);
    image.step(GuestOp::kDump, 0, 0x21'0000'0000, 0x2000);
    image.cat("/proc/self/maps");
    RunResult r = run(image, {"--quiet"});
    EXPECT_EQ(r.exit_code(), 7) << r.err;
    std::string expected = bytes.substr(0x2000);
    expected[1] = 'Y';
    EXPECT_TRUE(r.out.substr(0, 0x2000) == expected);
    EXPECT_NE(r.out.find("2100000000-2100002000 r--s 00002000"), std::string::npos) << r.out.substr(0x2000);
    EXPECT_NE(r.out.find(std::string(path).substr(0, 9)), std::string::npos) << r.out.substr(0x2000);
  }
}

TEST_F(Memory, ThousandsOfMappings) {
  MadeImage image;
  std::string page = pattern(4096, 10);
  for (uint64_t i = 0; i < 200; ++i) {
    uint64_t at = 0x20'0000'0000 + i * 0x2000;
    image.add(at, at + 0x1000, PROT_READ | (i % 2 != 0 ? PROT_WRITE : 0u), MappingKind::kAnonymous, page);
  }
  image.step(GuestOp::kDump, 0, 0x20'0000'0000 + 199 * 0x2000, 4096);
  RunResult r = run(image);
  EXPECT_EQ(r.exit_code(), 7) << r.err;
  EXPECT_TRUE(r.out == page);
}

}  // namespace
}  // namespace ckpt
