#include "cli/image/core/image_backtrace.h"

#include <elfutils/libdwelf.h>
#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "base/raii_fd.h"
#include "cli/image/core/demangle.h"
#include "cli/image/core/saved_vdso.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

std::string_view base_name(std::string_view path) {
  size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool is_file(const ParsedMapping& m) {
  auto kind = static_cast<MappingKind>(m.record.kind);
  return (kind == MappingKind::kFilePrivate || kind == MappingKind::kFileShared) && m.path.starts_with('/');
}

// Why this is not the file that was mapped; nullptr if it is.
const char* another_file(int fd, const ParsedMapping& m) {
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) return "is no file now";
  if (!m.build_id.empty()) {
    std::unique_ptr<Elf, decltype(&elf_end)> elf(elf_begin(fd, ELF_C_READ, nullptr), elf_end);
    const void* id = nullptr;
    ssize_t bytes = elf ? dwelf_elf_gnu_build_id(elf.get(), &id) : -1;
    bool same = bytes > 0 && static_cast<size_t>(bytes) == m.build_id.size() &&
                std::memcmp(id, m.build_id.data(), m.build_id.size()) == 0;
    return same ? nullptr : "is another file now";
  }
  bool same = static_cast<uint64_t>(st.st_size) == m.record.object_size &&
              st.st_mtim.tv_sec * 1'000'000'000 + st.st_mtim.tv_nsec == m.record.file_mtime_ns;
  return same ? nullptr : "has changed since";
}

}  // namespace

struct ImageBacktrace::Session {
  Session(const ImageChain& i, SavedMemory& m) : image(i), memory(m) {}

  const ImageChain& image;
  SavedMemory& memory;
  std::map<std::string, ScopedFd, std::less<>> files;  // of mapped files, opened when first wanted
  Dwfl_Callbacks callbacks{};
  Dwfl_Thread_Callbacks thread_callbacks{};
  std::unique_ptr<Dwfl, decltype(&dwfl_end)> dwfl{nullptr, dwfl_end};
  bool attached = false;
  const ParsedThread* thread = nullptr;  // the one being walked
  std::vector<Frame>* frames = nullptr;
  size_t limit = 0;

  int file_of(const ParsedMapping& m) {
    auto it = files.find(m.path);
    if (it == files.end()) {
      std::string path(m.path);
      // To open a device may do something; what the image calls a file need not be one here.
      struct stat st;
      bool file = stat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
      int fd = file ? open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
      it = files.emplace(std::move(path), ScopedFd(fd)).first;
    }
    return it->second.get();
  }

  // As the program would have read it, from image, file or thin air. Not across mappings.
  bool read(uint64_t address, std::span<std::byte> out) {
    const ParsedMapping* m = mapping_at(image.meta(), {address});
    if (m == nullptr || m->record.end - address < out.size()) return false;
    if (is_file(*m) && !memory.stored({address})) {
      off_t at = static_cast<off_t>(m->record.file_offset + (address - m->record.start));
      return pread(file_of(*m), out.data(), out.size(), at) == static_cast<ssize_t>(out.size());
    }
    return memory.read({address}, out).ok();
  }

  static Session& of(void* argument) { return *static_cast<Session*>(argument); }

  static bool memory_read(Dwfl*, Dwarf_Addr address, Dwarf_Word* result, void* argument) {
    return of(argument).read(address, std::as_writable_bytes(std::span(result, 1)));
  }
  static pid_t next_thread(Dwfl*, void* argument, void** thread_argument) {
    Session& s = of(argument);
    if (*thread_argument != nullptr) return 0;  // one at a time
    *thread_argument = argument;
    return s.thread->record.tid;
  }
  static bool get_thread(Dwfl*, pid_t, void* argument, void** thread_argument) {
    *thread_argument = argument;
    return true;
  }
  static bool set_initial_registers(Dwfl_Thread* thread, void* argument) {
    const ThreadRecord& r = of(argument).thread->record;
    // DWARF's order of registers for x86-64, the last one the return address column.
    const Dwarf_Word registers[] = {r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8,
                                    r.r9,  r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rip};
    dwfl_thread_state_register_pc(thread, r.rip);
    return dwfl_thread_state_registers(thread, 0, std::size(registers), registers);
  }
  static int frame(Dwfl_Frame* state, void* argument) {
    Session& s = of(argument);
    Dwarf_Addr ip = 0;
    bool exact = false;  // not a return address
    if (!dwfl_frame_pc(state, &ip, &exact)) return DWARF_CB_ABORT;
    s.frames->push_back(s.describe(ip, exact));
    return s.frames->size() < s.limit ? DWARF_CB_OK : DWARF_CB_ABORT;
  }

  Frame describe(uint64_t ip, bool exact) {
    Frame f;
    f.ip = ip;
    // A call may be the last instruction of its function: the return address is then in the next one.
    Dwarf_Addr inside = exact ? ip : ip - 1;
    if (const ParsedMapping* m = mapping_at(image.meta(), {inside})) {
      f.module = m->path.empty() ? "anonymous memory" : std::string(base_name(m->path));
      f.module_offset = ip - m->record.start + m->record.file_offset;
    }
    Dwfl_Module* module = dwfl_addrmodule(dwfl.get(), inside);
    if (module == nullptr) return f;
    if (f.module.empty()) f.module = "[vdso]";  // the only module outside the mappings of the image
    GElf_Off offset = 0;
    GElf_Sym symbol;
    const char* name = dwfl_module_addrinfo(module, inside, &offset, &symbol, nullptr, nullptr, nullptr);
    // Stripped libraries know their exported functions only: far behind one of these is another.
    if (name != nullptr && (symbol.st_size == 0 || offset < symbol.st_size)) {
      f.function = function_name(name);
      f.offset = offset + (exact ? 0 : 1);
    }
    int line = 0;
    if (Dwfl_Line* at = dwfl_module_getsrc(module, inside)) {
      const char* file = dwfl_lineinfo(at, nullptr, &line, nullptr, nullptr, nullptr);
      if (file != nullptr && line > 0) f.source = fmt::format("{}:{}", base_name(file), line);
    }
    return f;
  }
};

ImageBacktrace::ImageBacktrace(const ImageChain& image, SavedMemory& memory)
    : session_(new Session(image, memory)) {
  elf_version(EV_CURRENT);
  Session& s = *session_;
  s.callbacks.find_elf = dwfl_build_id_find_elf;
  s.callbacks.find_debuginfo = dwfl_standard_find_debuginfo;
  s.callbacks.section_address = dwfl_offline_section_address;
  s.thread_callbacks.next_thread = Session::next_thread;
  s.thread_callbacks.get_thread = Session::get_thread;
  s.thread_callbacks.memory_read = Session::memory_read;
  s.thread_callbacks.set_initial_registers = Session::set_initial_registers;
  s.dwfl.reset(dwfl_begin(&s.callbacks));
  if (!s.dwfl) return;
  report_modules();
  s.attached =
      dwfl_attach_state(s.dwfl.get(), nullptr, image.meta().process.record.pid, &s.thread_callbacks, &s);
}

ImageBacktrace::~ImageBacktrace() = default;

void ImageBacktrace::report_modules() {
  Session& s = *session_;
  const auto& mappings = s.image.meta().mappings;
  dwfl_report_begin(s.dwfl.get());
  for (size_t i = 0; i < mappings.size(); i++) {
    const ParsedMapping& m = mappings[i];
    if (!is_file(m) || m.record.file_offset != 0) continue;
    // Loaded, not just looked at: some of it can be executed.
    bool executable = false;
    for (size_t j = i; j < mappings.size() && !executable; j++) {
      if (mappings[j].path != m.path || (j > i && mappings[j].record.file_offset == 0)) break;
      executable = (mappings[j].record.prot & PROT_EXEC) != 0;
    }
    if (!executable) continue;
    std::string path(m.path);
    int file = s.file_of(m);
    const char* wrong = file < 0 ? "cannot be opened" : another_file(file, m);
    ScopedFd own(wrong == nullptr ? dup(file) : -1);
    if (wrong == nullptr && dwfl_report_elf(s.dwfl.get(), path.c_str(), path.c_str(), own.get(),
                                            m.record.start, false) == nullptr) {
      wrong = dwfl_errmsg(-1);
    }
    if (wrong != nullptr) {
      left_out_.push_back(fmt::format("{}: {}", path, wrong));
    } else {
      own.release();  // libdwfl closes it
    }
  }
  Blob vdso = saved_vdso(s.image.meta());
  ScopedFd copy(vdso.empty() ? -1 : memfd_create("vdso", MFD_CLOEXEC));
  if (copy.valid() && write(copy.get(), vdso.data(), vdso.size()) == static_cast<ssize_t>(vdso.size())) {
    uint64_t at = s.image.meta().process.record.vdso_start;
    if (dwfl_report_elf(s.dwfl.get(), "[vdso]", "[vdso]", copy.get(), at, false) != nullptr) copy.release();
  }
  dwfl_report_end(s.dwfl.get(), nullptr, nullptr);
}

std::vector<Frame> ImageBacktrace::of(const ParsedThread& thread, size_t limit) {
  std::vector<Frame> frames;
  if ((thread.record.flags & kThreadLeaderExited) != 0 || thread.record.rip == 0) return frames;
  Session& s = *session_;
  s.thread = &thread;
  s.frames = &frames;
  s.limit = limit;
  // Whatever ends the walk, the frames found until then are right.
  if (s.attached) dwfl_getthread_frames(s.dwfl.get(), thread.record.tid, Session::frame, &s);
  if (frames.empty() && s.dwfl) frames.push_back(s.describe(thread.record.rip, true));
  return frames;
}

bool ImageBacktrace::was_in_system_call(const ParsedThread& thread) {
  // libckpt_rt goes back to the beginning of its own stub when a call is to be made again.
  auto innermost = of(thread, 1);
  if (!innermost.empty() && innermost[0].function == "ckpt_interruptible_syscall") return true;
  constexpr std::byte kSyscall[2] = {std::byte{0x0f}, std::byte{0x05}};
  // Behind the instruction when the call is over, on it when it will be made again.
  for (uint64_t at : {thread.record.rip - sizeof(kSyscall), thread.record.rip}) {
    std::byte code[sizeof(kSyscall)];
    if (session_->read(at, code) && std::memcmp(code, kSyscall, sizeof(code)) == 0) return true;
  }
  return false;
}

}  // namespace ckpt::cli
