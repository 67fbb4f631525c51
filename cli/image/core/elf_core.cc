#include "cli/image/core/elf_core.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/raii_fd.h"
#include "cli/image/core/core_notes.h"
#include "cli/image/core/saved_vdso.h"
#include "cli/text/failure.h"

namespace ckpt::cli {

namespace {

// Longer stretches without contents are segments of their own, which need no room in the file: an
// address space of terabytes must not make a file of terabytes, even one that is all hole.
constexpr uint64_t kLongestHole = 64u << 20;
constexpr size_t kCopyBytes = 1u << 20;

struct Segment {
  AddrRange range;
  uint64_t file_bytes;  // of the range, from its start
  uint32_t flags;       // PF_*
  std::vector<SavedMemory::Contents> contents;
};

uint32_t segment_flags(uint32_t prot) {
  return ((prot & PROT_READ) != 0 ? PF_R : 0u) | ((prot & PROT_WRITE) != 0 ? PF_W : 0u) |
         ((prot & PROT_EXEC) != 0 ? PF_X : 0u);
}

// Pages without contents are zeros here, and not those of a file.
bool is_zero_filled(const MappingRecord& r) {
  switch (static_cast<MappingKind>(r.kind)) {
    case MappingKind::kAnonymous:
    case MappingKind::kSharedAnonymous:
    case MappingKind::kMemfd:
    case MappingKind::kSysV:
      return true;
    default:
      return false;
  }
}

std::vector<Segment> plan_segments(const ImageMeta& meta, const SavedMemory& memory) {
  std::vector<Segment> segments;
  for (const ParsedMapping& m : meta.mappings) {
    if (static_cast<MappingKind>(m.record.kind) == MappingKind::kLibraryOwned) continue;
    uint32_t flags = segment_flags(m.record.prot);
    uint64_t hole = is_zero_filled(m.record) ? kLongestHole : 0;
    Addr at{m.record.start}, end{m.record.end};
    Segment* open = nullptr;
    for (auto& c : memory.contents_of(m)) {
      if (open == nullptr || c.range.start - open->range.end > hole) {
        if (at < c.range.start) segments.push_back({{at, c.range.start}, 0, flags, {}});
        segments.push_back({{c.range.start, c.range.end}, 0, flags, {}});
        open = &segments.back();
      }
      at = open->range.end = c.range.end;
      open->file_bytes = open->range.size();
      open->contents.push_back(std::move(c));
    }
    if (at < end) segments.push_back({{at, end}, 0, flags, {}});
  }
  if (Blob vdso = saved_vdso(meta); !vdso.empty()) {
    Addr at{meta.process.record.vdso_start};
    AddrRange range{at, at + vdso.size()};
    segments.push_back({range, vdso.size(), PF_R | PF_X, {{range, at, vdso}}});
  }
  std::sort(segments.begin(), segments.end(),
            [](const Segment& a, const Segment& b) { return a.range.start < b.range.start; });
  return segments;
}

Error cannot_write(const std::string& path, int error) {
  return failure(error == ENOSPC || error == EFBIG || error == EIO ? ExitCode::kIo : ExitCode::kCannotCreate,
                 path, fmt::format("cannot be written: {}", errno_name(error)), "name another file with -o");
}

// Written under a name of its own, renamed when whole, removed otherwise.
class NewFile {
 public:
  explicit NewFile(const std::string& path) : path_(path), temporary_(path + ".tmp") {}
  ~NewFile() {
    if (fd_.valid()) unlink(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  Result<void> create() {
    struct stat st;
    // rename(2) would put a file in the place of a device.
    if (stat(path_.c_str(), &st) == 0 && !S_ISREG(st.st_mode)) {
      return failure(ExitCode::kUsage, path_, "is there and no regular file", "name another with -o");
    }
    unlink(temporary_.c_str());
    fd_.reset(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd_.valid()) return cannot_write(path_, errno);
    return {};
  }
  Result<void> write(uint64_t offset, const void* data, size_t bytes) {
    auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      ssize_t n = pwrite(fd_.get(), from, bytes, static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return cannot_write(path_, n < 0 ? errno : EIO);
      from += n;
      offset += static_cast<uint64_t>(n);
      bytes -= static_cast<size_t>(n);
    }
    return {};
  }
  Result<void> publish(uint64_t bytes) {
    if (ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) return cannot_write(path_, errno);
    if (rename(temporary_.c_str(), path_.c_str()) != 0) return cannot_write(path_, errno);
    fd_.reset();
    return {};
  }

 private:
  std::string path_, temporary_;
  ScopedFd fd_;
};

class CoreWriter {
 public:
  CoreWriter(const ImageChain& image, SavedMemory& memory, const CoreProgress& progress)
      : image_(image), memory_(memory), progress_(progress) {}

  Result<CoreSize> write(const std::string& path) {
    auto notes = make_core_notes(image_.meta(), memory_);
    if (!notes.ok()) return notes.error();
    segments_ = plan_segments(image_.meta(), memory_);
    lay_out(notes->bytes.size());
    NewFile file(path);
    CKPT_TRY(file.create());
    CKPT_TRY(file.write(0, head_.data(), head_.size()));
    CKPT_TRY(file.write(notes_offset_, notes->bytes.data(), notes->bytes.size()));
    for (const Segment& s : segments_) {
      for (const auto& c : s.contents) total_ += c.range.size();
    }
    uint64_t offset = data_offset_;
    for (const Segment& s : segments_) {
      for (const auto& c : s.contents) CKPT_TRY(copy(file, c, offset + (c.range.start - s.range.start)));
      offset += s.file_bytes;
    }
    CKPT_TRY(file.publish(offset));
    return CoreSize{offset, total_, notes->threads};
  }

 private:
  // ELF header, program headers, and, when these are too many to be counted in the ELF header, the
  // section header that counts them.
  void lay_out(uint64_t note_bytes) {
    uint64_t count = segments_.size() + 1;
    bool many = count >= PN_XNUM;
    Elf64_Ehdr e{};
    std::memcpy(e.e_ident, ELFMAG, SELFMAG);
    e.e_ident[EI_CLASS] = ELFCLASS64;
    e.e_ident[EI_DATA] = ELFDATA2LSB;
    e.e_ident[EI_VERSION] = EV_CURRENT;
    e.e_type = ET_CORE;
    e.e_machine = EM_X86_64;
    e.e_version = EV_CURRENT;
    e.e_ehsize = sizeof(e);
    e.e_phoff = sizeof(e);
    e.e_phentsize = sizeof(Elf64_Phdr);
    e.e_phnum = static_cast<Elf64_Half>(many ? PN_XNUM : count);
    uint64_t end = sizeof(e) + count * sizeof(Elf64_Phdr);
    if (many) {
      e.e_shoff = end;
      e.e_shentsize = sizeof(Elf64_Shdr);
      e.e_shnum = 1;
      end += sizeof(Elf64_Shdr);
    }
    notes_offset_ = end;
    data_offset_ = (end + note_bytes + kPageSize - 1) & ~(kPageSize - 1);
    put(e);
    Elf64_Phdr note{};
    note.p_type = PT_NOTE;
    note.p_offset = notes_offset_;
    note.p_filesz = note_bytes;
    note.p_align = 4;
    put(note);
    uint64_t offset = data_offset_;
    for (const Segment& s : segments_) {
      Elf64_Phdr load{};
      load.p_type = PT_LOAD;
      load.p_flags = s.flags;
      load.p_offset = offset;
      load.p_vaddr = s.range.start.value;
      load.p_filesz = s.file_bytes;
      load.p_memsz = s.range.size();
      load.p_align = kPageSize;
      put(load);
      offset += s.file_bytes;
    }
    if (many) {
      Elf64_Shdr section{};
      section.sh_info = static_cast<Elf64_Word>(count);
      put(section);
    }
  }

  Result<void> copy(NewFile& file, const SavedMemory::Contents& c, uint64_t offset) {
    if (!c.bytes.empty()) {
      done_ += c.bytes.size();
      return file.write(offset, c.bytes.data(), c.bytes.size());
    }
    buffer_.resize(kCopyBytes);
    for (uint64_t at = 0; at < c.range.size();) {
      size_t n = std::min<uint64_t>(kCopyBytes, c.range.size() - at);
      SavedMemory& memory = c.saver != nullptr ? *c.saver : memory_;
      CKPT_TRY(memory.read(c.from + at, std::span(buffer_).first(n)));
      CKPT_TRY(file.write(offset + at, buffer_.data(), n));
      at += n;
      done_ += n;
      if (progress_) progress_(done_, total_);
    }
    return {};
  }

  template <typename T>
  void put(const T& value) {
    head_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  const ImageChain& image_;
  SavedMemory& memory_;
  const CoreProgress& progress_;
  std::vector<Segment> segments_;
  std::string head_;
  std::vector<std::byte> buffer_;
  uint64_t notes_offset_ = 0, data_offset_ = 0, done_ = 0, total_ = 0;
};

}  // namespace

Result<CoreSize> write_core(const ImageChain& image, SavedMemory& memory, const std::string& path,
                            const CoreProgress& progress) {
  return CoreWriter(image, memory, progress).write(path);
}

}  // namespace ckpt::cli
