// The META section as typed records. Views into the section's bytes: valid as long as these are.
//
// Owner:     image/read. Callers: ckpt-restart, ckpt; ordinary C++.
// Never:     trusts a byte: parse_meta() checks lengths, counts, order and references, so that what is
//            in an ImageMeta can be used without further checks against the format. No string
//            contains a NUL. The user of the values judges what they mean to the kernel.
#pragma once

#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "image/format/records/descriptor_records.h"
#include "image/format/records/process_records.h"
#include "image/format/records/system_v_records.h"

namespace ckpt {

using Blob = std::span<const std::byte>;

struct ParsedProcess {
  ProcessRecord record;
  std::vector<uint32_t> groups;
  Blob cpu_features;
  std::string_view cwd, root, comm, library_path;
};
struct ParsedMm {
  MmRecord record;
  Blob auxv;
  std::string_view exe_path;
};
struct ParsedMapping {
  MappingRecord record;
  std::string_view path;
  Blob build_id;
};
struct ParsedThread {
  ThreadRecord record;
  std::string_view name;
  Blob affinity, xstate;
};
struct ParsedOpenFile {
  OpenFileRecord record;
  std::string_view path;
  Blob details;  // whole DetailHeaders with their bytes
};
inline OpenFileKind kind_of(const ParsedOpenFile& f) { return static_cast<OpenFileKind>(f.record.kind); }
struct ParsedFileContent {
  FileContentRecord record;
  Blob bytes;
};
struct ParsedChild {
  ChildRecord record;
  std::string_view name;
};
struct ParsedSystemV {
  SystemVRecord record;
  std::vector<uint16_t> values;                    // of a set
  std::vector<std::pair<int64_t, Blob>> messages;  // of a queue: type and text, the oldest first
  SystemVKind kind() const { return static_cast<SystemVKind>(record.kind); }
};
struct ParsedNote {
  uint32_t severity;
  std::string_view text;
};

struct ImageMeta {
  ParsedProcess process;
  ParsedMm mm;
  ResourceLimitsRecord limits;
  bool has_interval_timers = false;
  IntervalTimersRecord interval_timers = {};
  std::vector<ParsedMapping> mappings;  // in address order
  std::vector<ParsedThread> threads;    // leader first
  std::vector<SignalActionRecord> actions;
  std::vector<PosixTimerRecord> posix_timers;
  std::vector<PendingSignalRecord> pending;
  std::vector<DescriptorRecord> descriptors;
  std::vector<ParsedOpenFile> open_files;
  std::vector<ParsedFileContent> contents;
  std::vector<ParsedChild> children;
  std::vector<ParsedSystemV> system_v;
  std::vector<ParsedNote> notes;
  Blob cost;  // as the library wrote it; empty if there is none

  const ParsedOpenFile* open_file(uint32_t id) const;
};

// `path` is for messages. Errors: kImageDamaged.
Result<ImageMeta> parse_meta(Blob bytes, const char* path);

}  // namespace ckpt
