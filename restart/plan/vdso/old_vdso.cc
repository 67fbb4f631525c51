#include "restart/plan/vdso/old_vdso.h"

#include <asm/unistd.h>
#include <sys/utsname.h>

#include <cstring>
#include <optional>
#include <string_view>

namespace ckpt {
namespace {

constexpr uint64_t kJumpBytes = 13;

// mov $target, %r11; jmp *%r11. A function may change r11.
void put_jump(std::byte* at, uint64_t target) {
  const unsigned char head[2] = {0x49, 0xbb}, tail[3] = {0x41, 0xff, 0xe3};
  std::memcpy(at, head, 2);
  std::memcpy(at + 2, &target, 8);
  std::memcpy(at + 10, tail, 3);
}

// mov $number, %eax; syscall; ret. The vdso's functions take a system call's arguments and, like it,
// return -errno.
void put_system_call(std::byte* at, uint32_t number) {
  const unsigned char head[1] = {0xb8}, tail[3] = {0x0f, 0x05, 0xc3};
  std::memcpy(at, head, 1);
  std::memcpy(at + 1, &number, 4);
  std::memcpy(at + 5, tail, 3);
}

// For functions that our vdso does not have.
std::optional<uint32_t> system_call_of(std::string_view name) {
  constexpr std::string_view kPrefix = "__vdso_";
  if (name.substr(0, kPrefix.size()) == kPrefix) name.remove_prefix(kPrefix.size());
  if (name == "clock_gettime") return __NR_clock_gettime;
  if (name == "clock_getres") return __NR_clock_getres;
  if (name == "gettimeofday") return __NR_gettimeofday;
  if (name == "time") return __NR_time;
  if (name == "getcpu") return __NR_getcpu;
  constexpr uint32_t kGetRandom = 318;
  if (name == "getrandom") return kGetRandom;
  return std::nullopt;
}

const VdsoSymbol* find(const std::vector<VdsoSymbol>& symbols, const std::string& name) {
  for (const VdsoSymbol& s : symbols) {
    if (s.name == name) return &s;
  }
  return nullptr;
}

std::vector<VdsoSymbol> our_symbols(const Vdso& ours) {
  if (!ours.present()) return {};
  return vdso_symbols({ours.code.start.as<const std::byte>(), ours.code.size()});
}

}  // namespace

std::span<const std::byte> saved_vdso_code(const ImageMeta& meta) {
  const ProcessRecord& p = meta.process.record;
  for (const ParsedFileContent& c : meta.contents) {
    if (c.record.open_file != 0 || c.record.object != kVdsoContentObject) continue;
    if (c.bytes.size() == p.vdso_end - p.vdso_start) return c.bytes;
  }
  return {};
}

bool is_other_vdso(const ImageMeta& meta, const Vdso& ours) {
  const ProcessRecord& p = meta.process.record;
  bool had = p.vdso_end > p.vdso_start;
  return had &&
         (!ours.present() || p.vdso_hash != ours.hash || p.vdso_end - p.vdso_start != ours.code.size());
}

Result<void> check_other_vdso(const ImageMeta& meta, const Vdso& ours) {
  const ProcessRecord& p = meta.process.record;
  utsname here{};
  uname(&here);
  auto saved = saved_vdso_code(meta);
  if (saved.empty()) {
    return make_error(
        ExitCode::kIncompatible, 0,
        "the image was taken under another kernel: its vdso (the kernel's code in every program) is "
        "{:016x}, that of {} here is {:016x}; restart under the kernel of the checkpoint",
        p.vdso_hash, here.release, ours.hash);
  }
  for (const ParsedThread& t : meta.threads) {
    if (t.record.rip < p.vdso_start || t.record.rip >= p.vdso_end) continue;
    return make_error(
        ExitCode::kIncompatible, 0,
        "thread {} stood inside the vdso of another kernel than {} here: restart under the kernel of the "
        "checkpoint, or another image",
        t.record.tid, here.release);
  }
  auto symbols = vdso_symbols(saved);
  auto present = our_symbols(ours);
  for (const VdsoSymbol& s : symbols) {
    bool can_jump =
        find(present, s.name) != nullptr && s.size >= kJumpBytes && s.offset + kJumpBytes <= saved.size();
    if (can_jump || system_call_of(s.name)) continue;
    return make_error(
        ExitCode::kIncompatible, 0,
        "the image was taken under another kernel, whose vdso has a function {} that {} lacks: restart "
        "under the kernel of the checkpoint",
        s.name, here.release);
  }
  if (symbols.empty()) {
    return make_error(ExitCode::kIncompatible, 0,
                      "the vdso in the image has no functions: restart under its kernel");
  }
  return {};
}

std::vector<std::byte> redirect_vdso(std::span<const std::byte> saved, const Vdso& ours, Addr our_code) {
  std::vector<std::byte> code(saved.begin(), saved.end());
  auto present = our_symbols(ours);
  for (const VdsoSymbol& s : vdso_symbols(saved)) {
    const VdsoSymbol* target = find(present, s.name);
    std::byte* at = &code[s.offset];
    if (target != nullptr && s.size >= kJumpBytes && s.offset + kJumpBytes <= code.size()) {
      put_jump(at, our_code.value + target->offset);
    } else if (auto number = system_call_of(s.name); number && s.offset + 8 <= code.size()) {
      put_system_call(at, *number);
    }
  }
  return code;
}

}  // namespace ckpt
