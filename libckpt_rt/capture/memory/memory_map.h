// The mappings of the process, each with how it is saved.
//
// Owner:     libckpt_rt. Callers: the agent, before and during the stop.
// Never:     allocates but from the Arena given; touches the memory that it describes.
// Source:    proc(5), /proc/PID/maps and /proc/PID/smaps.
#pragma once

#include <span>
#include <string_view>

#include "base/memory/arena.h"
#include "base/result.h"
#include "base/units.h"
#include "image/format/records/process_records.h"
#include "libckpt_rt/capture/memory/maps_text.h"

namespace ckpt {

// How the pages of a mapping get into the image.
enum class Handling : uint8_t {
  kSkip,     // nothing to save: mapped again from its file, or nobody can write it, or not rebuilt at all
  kTracked,  // write-protected at the stop, copied while the program runs
  kEager,    // copied in the pause: what the kernel cannot write-protect for us
};

struct Mapping {
  AddrRange range;
  uint64_t file_offset = 0;
  uint64_t device = 0, inode = 0;
  uint64_t object = 0;     // shared objects: equal for all mappings of one object
  uint32_t prot = 0;       // PROT_*
  uint32_t map_flags = 0;  // MappingFlag
  MappingKind kind = MappingKind::kAnonymous;
  Handling handling = Handling::kSkip;
  bool shared = false;
  bool other_name = false;  // the path is not the name that it was mapped by, which was removed
  bool of_job = false;  // shared with other members of the job, which protect it too (docs/shared_memory.md)
  bool unsure_for_children = false;  // whether a forked child has it: advice on that is being given
  bool whole = false;                // save every page, not only those changed since mapping
  const char* path = "";             // NUL-terminated, in the arena
  uint32_t path_len = 0;
  uint32_t page_size = 4096;

  bool is_vdso_part() const { return kind == MappingKind::kVdso; }
};

// The mapping that holds `a`, or the next one; map.size(): none.
size_t mapping_at(std::span<const Mapping> map, Addr a);

class MemoryMap {
 public:
  explicit MemoryMap(Arena& arena) : arena_(&arena), mappings_(arena), other_names_(arena) {}

  // About as many as there are: a list that has room from the beginning leaves no smaller ones behind.
  void expect(size_t mappings) {
    [[maybe_unused]] const bool room = mappings_.reserve(mappings + mappings / 16 + 64);  // else it grows
  }
  // Before read(): shared memory that other processes of the job may map is kTracked and of_job, as far as it
  // can be.
  void track_shared_of_job(bool track) { track_of_job_ = track; }
  // own: ranges that belong to the library and are neither saved nor rebuilt.
  Result<void> read(std::span<const AddrRange> own);
  // The same in two steps, of which the second, in the stop, is short: it takes apart only those lines of the
  // kernel's text that have changed since the first. Nothing else is trusted: the text is read whole.
  Result<void> read_ahead(std::span<const AddrRange> own);
  Result<void> read_again(std::span<const AddrRange> own, const OtherThreads& others = {});
  // The flags of /proc/self/smaps (DONTFORK, hugetlb, …) for the mappings read. Walks page tables:
  // before the stop only. Mappings that appeared since have no flags.
  Result<void> read_flags();
  // userfaultfd protects huge pages of hugetlbfs only as a whole, and loses the protection of what KSM
  // merges.
  void copy_special_pages_eagerly();
  // Is there a ring or context of asynchronous reading, or a device that reads memory itself? All three write
  // without a fault, at any time, to pages that they hold.
  bool has_pinned_pages() const;
  void copy_flags_from(const MemoryMap& earlier);
  // The same of what read_ahead() has read, and of what read_again() reads. `earlier` must stay.
  void remember_flags_of(const MemoryMap& earlier);
  // Of files whose first name was removed, another name is found while the program runs. In the stop: those
  // that have lost that one too are files without a name.
  void check_other_names();
  // In the stop: the file of a shared mapping has lost the name that it was mapped by since read_ahead(), and
  // whether it has another is not known. Taken for a file without a name, it would be another file after a
  // restart.
  bool has_unknown_name() const { return unknown_name_; }

  std::span<Mapping> mappings() { return mappings_.span(); }
  std::span<const Mapping> mappings() const { return mappings_.span(); }
  const Mapping* find(Addr a) const;
  AddrRange vdso{}, vvar{};
  bool has_probe_area = false;  // probes.h

 private:
  Result<void> add_line(std::string_view line, std::span<const AddrRange> own);
  Result<void> add_without(const Mapping& m, std::span<const AddrRange> own);
  Result<void> take_text(std::string_view text, std::span<const AddrRange> own);
  Result<void> take_changes(std::string_view text, std::span<const AddrRange> own);
  Result<void> find_shared_twice();
  // mapping_kinds.cc
  void classify(Mapping& m);
  bool classify_special(Mapping& m, std::string_view path, bool says_deleted);
  static void handle_private(Mapping& m, std::string_view path, bool deleted);
  void handle_shared(Mapping& m, std::string_view path, bool deleted);
  bool take_other_name(Mapping& m);
  bool is_own_file(const Mapping& m);
  size_t find_other_name_of(const Mapping& m, std::span<char> to);
  static void be_nameless(Mapping& m);

  Arena* arena_;
  ArenaVector<Mapping> mappings_;
  // From read_ahead: what was read, and what else mappings_ was made of.
  MapsText text_;
  size_t own_count_ = 0;
  bool had_forked_ = false;
  const MemoryMap* flags_of_ = nullptr;
  // What a search for the name of a file has found, or that there is none (path nullptr): a mapping may be
  // looked at again in the stop, because those around it have changed.
  struct OtherName {
    uint64_t device, inode;
    const char* path;
    uint32_t path_len;
  };
  ArenaVector<OtherName> other_names_;
  // What may be read of directories for that: searches in more than one, and entries. In the stop nothing but
  // /dev/shm, where semaphores lose the name that they were mapped by when they are made (sem_open(3)).
  static constexpr uint32_t kMostSearches = 16, kMostEntries = 1'000'000, kMostEntriesStopped = 20'000;
  uint32_t searches_left_ = kMostSearches, entries_left_ = kMostEntries;
  bool standing_ = false, unknown_name_ = false, track_of_job_ = false, has_other_names_ = false;
  uint64_t own_files_left_ = 64 << 20;  // bytes that the stop copies of files that the program has made
};

// Is all of the range mapped, whatever it is? Changes nothing.
bool is_mapped(AddrRange range);

}  // namespace ckpt
