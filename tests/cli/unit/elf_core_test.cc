// Core files whose program headers are more than the ELF header can count, and what is in them.
#include "cli/image/core/elf_core.h"

#include <elf.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "image/write/direct_sink.h"
#include "image/write/meta_writer.h"

namespace ckpt::cli {
namespace {

constexpr uint64_t kBase = 0x10000000;
constexpr uint64_t kMappings = 70000;  // each a page, with a page between

Result<SinkStats> write_image(const std::string& directory, const char* name) {
  Arena arena, meta_arena;
  if (!arena.reserve(64 << 20) || !meta_arena.reserve(64 << 20))
    return make_error(ExitCode::kSystem, 0, "no memory");
  MetaWriter meta(meta_arena);
  ProcessRecord process{};
  process.pid = 1234;
  process.thread_count = 1;
  process.comm_len = 4;
  meta.record(RecordType::kProcess, process, std::string_view("prog"));
  meta.record(RecordType::kMm, MmRecord{});
  for (uint64_t i = 0; i < kMappings; i++) {
    MappingRecord mapping{};
    mapping.start = kBase + 2 * i * kPageSize;
    mapping.end = mapping.start + kPageSize;
    mapping.prot = 3;
    mapping.page_size = kPageSize;
    meta.record(RecordType::kMapping, mapping);
  }
  ThreadRecord thread{};
  thread.tid = 1234;
  thread.flags = kThreadLeader;
  thread.rip = 0x1234;
  meta.record(RecordType::kThread, thread);
  meta.record(RecordType::kResourceLimits, ResourceLimitsRecord{});
  meta.finish();
  alignas(4096) static std::byte page[kPageSize];
  std::memset(page, 0x5a, sizeof(page));
  // The last mapping's page is all there is.
  CopiedSegment segment{{kBase + 2 * (kMappings - 1) * kPageSize}, 1, page, 0};
  ImageIdentity identity{};
  identity.sequence = 1;
  ScopedFd dir(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  DirectSink sink;
  CKPT_TRY(sink.open(
      dir.get(), name, identity, arena, [](void*, uint32_t) {}, nullptr));
  CKPT_TRY(sink.append({&segment, 1}));
  CKPT_TRY(sink.set_meta(meta.span()));
  return sink.commit();
}

TEST(ElfCore, MoreSegmentsThanTheHeaderCounts) {
  std::string directory = (std::filesystem::temp_directory_path() / "ckpt-core-XXXXXX").string();
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  auto written = write_image(directory, "prog.1234.00000000.000001.ckpt");
  ASSERT_TRUE(written.ok()) << written.error().message();
  auto image = ImageChain::open(directory + "/prog.1234.00000000.000001.ckpt");
  ASSERT_TRUE(image.ok()) << image.error().message();
  SavedMemory memory(*image);
  auto size = write_core(*image, memory, directory + "/core", {});
  ASSERT_TRUE(size.ok()) << size.error().message();
  std::ifstream in(directory + "/core", std::ios::binary);
  const std::string core{std::istreambuf_iterator<char>(in), {}};
  std::filesystem::remove_all(directory);

  auto at = [&]<typename T>(uint64_t offset, T value) {
    EXPECT_LE(offset + sizeof(value), core.size());
    std::memcpy(&value, core.data() + offset, sizeof(value));
    return value;
  };
  EXPECT_EQ(core.size(), size->file_bytes);
  auto head = at(0, Elf64_Ehdr{});
  EXPECT_EQ(head.e_phnum, PN_XNUM);
  EXPECT_EQ(at(head.e_shoff, Elf64_Shdr{}).sh_info, kMappings + 1);
  EXPECT_EQ(at(head.e_phoff, Elf64_Phdr{}).p_type, static_cast<Elf64_Word>(PT_NOTE));
  uint64_t end = 0;
  for (uint64_t i = 1; i <= kMappings; i++) {
    auto load = at(head.e_phoff + i * sizeof(Elf64_Phdr), Elf64_Phdr{});
    ASSERT_EQ(load.p_type, static_cast<Elf64_Word>(PT_LOAD));
    ASSERT_GE(load.p_vaddr, end);
    end = load.p_vaddr + load.p_memsz;
    ASSERT_EQ(load.p_filesz, i == kMappings ? kPageSize : 0);
    if (i == kMappings) {
      EXPECT_EQ(core.substr(load.p_offset, kPageSize), std::string(kPageSize, 0x5a));
    }
  }
}

}  // namespace
}  // namespace ckpt::cli
