#include "cli/starting/program.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace ckpt::cli {

namespace {

class ProgramTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "ckpt-program-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string file(const std::string& bytes, mode_t mode = 0755) {
    std::string path = directory_ + "/program";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    chmod(path.c_str(), mode);
    return path;
  }
  // A header and one program header, as in a dynamically linked program; the tests spoil it.
  struct Elf {
    Elf64_Ehdr head{};
    Elf64_Phdr interpreter{};
    char path[32] = "/lib64/ld-linux-x86-64.so.2";
  };
  static Elf dynamic_elf() {
    Elf e;
    memcpy(e.head.e_ident, ELFMAG, SELFMAG);
    e.head.e_ident[EI_CLASS] = ELFCLASS64;
    e.head.e_ident[EI_DATA] = ELFDATA2LSB;
    e.head.e_type = ET_DYN;
    e.head.e_machine = EM_X86_64;
    e.head.e_phoff = offsetof(Elf, interpreter);
    e.head.e_phentsize = sizeof(Elf64_Phdr);
    e.head.e_phnum = 1;
    e.interpreter.p_type = PT_INTERP;
    e.interpreter.p_offset = offsetof(Elf, path);
    e.interpreter.p_filesz = sizeof(e.path);
    return e;
  }
  template <typename T>
  static std::string bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }
  static void expect_refusal(const Result<Entry>& result, ExitCode code, const char* what) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, code) << result.error().message();
    EXPECT_NE(result.error().message().find(what), std::string_view::npos) << result.error().message();
    EXPECT_EQ(result.error().message().find('\n'), std::string_view::npos);
  }

  std::string directory_;
};

TEST_F(ProgramTest, TakesAProgramOfTheSystem) { EXPECT_TRUE(check_program("/bin/sh").ok()); }

TEST_F(ProgramTest, TakesDynamicElf) { EXPECT_TRUE(check_program(file(bytes_of(dynamic_elf()))).ok()); }

TEST_F(ProgramTest, RefusesStatic) {
  Elf e = dynamic_elf();
  e.interpreter.p_type = PT_LOAD;
  expect_refusal(check_program(file(bytes_of(e))), ExitCode::kUnsupported, "statically linked");
}

TEST_F(ProgramTest, Refuses32Bit) {
  Elf32_Ehdr head{};
  memcpy(head.e_ident, ELFMAG, SELFMAG);
  head.e_ident[EI_CLASS] = ELFCLASS32;
  head.e_machine = EM_386;
  expect_refusal(check_program(file(bytes_of(head))), ExitCode::kUnsupported, "32-bit program");
  head.e_machine = EM_X86_64;  // x32
  expect_refusal(check_program(file(bytes_of(head))), ExitCode::kUnsupported, "32-bit program");
  head.e_machine = EM_ARM;
  expect_refusal(check_program(file(bytes_of(head))), ExitCode::kUnsupported, "32-bit ARM");
}

TEST_F(ProgramTest, RefusesForeign) {
  Elf e = dynamic_elf();
  e.head.e_machine = EM_AARCH64;
  expect_refusal(check_program(file(bytes_of(e))), ExitCode::kUnsupported, "64-bit ARM");
}

TEST_F(ProgramTest, RefusesEveryTruncation) {
  std::string whole = bytes_of(dynamic_elf());
  for (size_t n = 0; n < whole.size(); ++n) {
    expect_refusal(check_program(file(whole.substr(0, n))), ExitCode::kUnsupported, "");
  }
}

TEST_F(ProgramTest, RefusesObjectFileMuslAndMissingLinker) {
  Elf e = dynamic_elf();
  e.head.e_type = ET_REL;
  expect_refusal(check_program(file(bytes_of(e))), ExitCode::kUnsupported, "object or core file");
  e = dynamic_elf();
  strcpy(e.path, "/lib/ld-musl-x86_64.so.1");
  expect_refusal(check_program(file(bytes_of(e))), ExitCode::kUnsupported, "musl");
  strcpy(e.path, "/no/such/ld.so");
  expect_refusal(check_program(file(bytes_of(e))), ExitCode::kNotFound, "dynamic linker");
}

TEST_F(ProgramTest, JudgesScriptsByTheirInterpreter) {
  EXPECT_TRUE(check_program(file("#!/bin/sh\n")).ok());
  EXPECT_TRUE(check_program(file("#! /usr/bin/env  python3 -u\n")).ok());
  expect_refusal(check_program(file("#!\n")), ExitCode::kUnsupported, "names no interpreter");
  expect_refusal(check_program(file("#!/no/such/interpreter\n")), ExitCode::kNotFound, "interpreter");
  expect_refusal(check_program(file("#!" + directory_ + "/program\n")), ExitCode::kUnsupported,
                 "script of a script");
  expect_refusal(check_program(file("echo hello\n")), ExitCode::kUnsupported,
                 "neither an ELF program nor a script");
}

TEST_F(ProgramTest, RefusesWhatIsNoProgram) {
  expect_refusal(check_program(directory_), ExitCode::kNotFound, "directory");
  expect_refusal(check_program(directory_ + "/none"), ExitCode::kNotFound, "no such program");
  expect_refusal(check_program(file(bytes_of(dynamic_elf()), 0644)), ExitCode::kPermission,
                 "may not be executed");
  expect_refusal(check_program("/dev/null"), ExitCode::kPermission, "may not be executed");
}

TEST_F(ProgramTest, RefusesSetuidOfSomeoneElse) {
  if (geteuid() == 0) {
    std::string path = file(bytes_of(dynamic_elf()));
    ASSERT_EQ(chown(path.c_str(), 65534, 65534), 0);
    chmod(path.c_str(), 04755);
    expect_refusal(check_program(path), ExitCode::kUnsupported, "setuid");
    chmod(path.c_str(), 02755);
    expect_refusal(check_program(path), ExitCode::kUnsupported, "setgid");
  } else {
    expect_refusal(check_program("/usr/bin/su"), ExitCode::kUnsupported, "setuid");
  }
}

TEST_F(ProgramTest, TakesOwnSetuid) { EXPECT_TRUE(check_program(file(bytes_of(dynamic_elf()), 04755)).ok()); }

TEST_F(ProgramTest, FindsInPath) {
  setenv("PATH", (directory_ + ":/nowhere:/usr/bin:/bin").c_str(), 1);
  auto sh = find_program("sh");
  ASSERT_TRUE(sh.ok());
  EXPECT_TRUE(sh->ends_with("/bin/sh"));
  file("not executable", 0644);
  auto refused = find_program("program");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ExitCode::kPermission);
  EXPECT_EQ(find_program("no-such-program-here").error().code, ExitCode::kNotFound);
  EXPECT_EQ(*find_program("./x"), "./x");
}

}  // namespace

}  // namespace ckpt::cli
