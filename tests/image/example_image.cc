#include "tests/image/example_image.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "image/write/direct_sink.h"
#include "image/write/meta_writer.h"

namespace ckpt {

namespace {

void write_meta(MetaWriter& meta) {
  ProcessRecord process{};
  process.pid = 1234;
  process.thread_count = 1;
  process.cwd_len = 4;
  process.comm_len = 4;
  meta.record(RecordType::kProcess, process, std::string_view("/tmp"), std::string_view("prog"));
  meta.record(RecordType::kMm, MmRecord{});
  MappingRecord mapping{};
  mapping.start = 0x10000;
  mapping.end = 0x14000;
  mapping.prot = 3;
  mapping.page_size = 4096;
  meta.record(RecordType::kMapping, mapping);
  ThreadRecord thread{};
  thread.tid = 1234;
  thread.flags = kThreadLeader;
  thread.name_len = 4;
  meta.record(RecordType::kThread, thread, std::string_view("prog"));
  meta.record(RecordType::kResourceLimits, ResourceLimitsRecord{});
  meta.finish();
}

Result<SinkStats> write_example(int dir_fd) {
  Arena arena, meta_arena;
  ImageIdentity identity{};
  for (uint8_t i = 0; i < 16; i++) identity.run_id[i] = static_cast<uint8_t>(0xa0 + i);
  identity.sequence = 3;
  identity.realtime_ns = 1'700'000'000'000'000'000;
  SinkOptions options;
  options.uring = false;
  if (!arena.reserve(DirectSink::arena_bytes(options, 1 << 20)) || !meta_arena.reserve(1 << 20)) {
    return make_error(ExitCode::kSystem, 0, "no memory for the example");
  }
  MetaWriter meta(meta_arena);
  write_meta(meta);
  // Four pages; the third was all zero and is not in the image.
  auto* pages = static_cast<std::byte*>(std::aligned_alloc(4096, 4 * 4096));
  for (int i = 0; i < 4; i++) std::memset(pages + i * 4096, 0x11 * (i + 1), 4096);
  CopiedSegment segment{{0x10000}, 0b1011, pages, 0};
  DirectSink sink(options);
  auto stats = [&]() -> Result<SinkStats> {
    CKPT_TRY(sink.open(
        dir_fd, "example.ckpt", identity, arena, [](void*, uint32_t) {}, nullptr));
    CKPT_TRY(sink.set_meta(meta.span()));
    CKPT_TRY(sink.append({&segment, 1}));
    return sink.commit();
  }();
  std::free(pages);
  return stats;
}

class Description {
 public:
  explicit Description(const std::string& bytes) : bytes_(bytes) {}

  void title(const char* text) { out_ += fmt::format("{}{:06x}  {}\n", out_.empty() ? "" : "\n", at_, text); }
  void go_to(uint64_t offset) { at_ = offset; }
  uint64_t at() const { return at_; }

  void integer(size_t bytes, const char* name, bool hex = false, const char* meaning = "") {
    uint64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, bytes);
    std::string text = hex ? fmt::format("{} {:#x}", name, value) : fmt::format("{} {}", name, value);
    if (*meaning != '\0') text += fmt::format(" ({})", meaning);
    line(bytes, text);
  }
  void raw(size_t bytes, const std::string& name) { line(bytes, name); }
  void zeros(size_t bytes, const char* name) {
    if (bytes == 0) return;
    bool all = bytes_.find_first_not_of('\0', at_) >= at_ + bytes;
    out_ += fmt::format("  {:06x}  {} bytes of zero{}: {}\n", at_, bytes, all ? "" : " AND OTHERS", name);
    at_ += bytes;
  }
  void filled(size_t bytes, const std::string& name) {
    out_ += fmt::format("  {:06x}  {} bytes of {:02x}: {}\n", at_, bytes, static_cast<uint8_t>(bytes_[at_]),
                        name);
    at_ += bytes;
  }
  std::string take() { return std::move(out_); }

 private:
  void line(size_t bytes, const std::string& text) {
    for (size_t done = 0; done < bytes; done += 8) {
      std::string hex;
      for (size_t i = done; i < std::min(bytes, done + 8); i++) {
        hex += fmt::format("{:02x} ", static_cast<uint8_t>(bytes_[at_ + i]));
      }
      out_ += done == 0 ? fmt::format("  {:06x}  {:24} {}\n", at_, hex, text)
                        : fmt::format("  {:06x}  {}\n", at_ + done, hex.substr(0, hex.size() - 1));
    }
    at_ += bytes;
  }
  const std::string& bytes_;
  std::string out_;
  uint64_t at_ = 0;
};

void describe_header(Description& d) {
  d.title("header");
  d.raw(8, "magic");
  d.integer(4, "version");
  d.integer(4, "byte_order", true);
  d.integer(4, "machine", false, "EM_X86_64");
  d.integer(4, "page_size");
  d.raw(16, "run_id");
  d.integer(8, "sequence");
  d.integer(8, "realtime_ns");
  d.zeros(sizeof(ParentImage), "parent: this image is full");
  d.zeros(sizeof(FileHeader::zeros), "to the checksum");
  d.integer(8, "checksum", true, "of 000000-000ff7; the image's tag");
}

void describe_section_head(Description& d, const char* title) {
  d.title(title);
  d.raw(4, "magic");
  d.integer(4, "kind");
  d.integer(8, "ordinal");
  d.integer(8, "image_tag", true);
  d.integer(4, "head_bytes");
  d.integer(4, "entry_count");
  d.integer(8, "content_bytes");
  d.integer(8, "body_bytes");
  d.integer(8, "body_checksum", true);
  d.integer(8, "head_checksum", true);
}

void describe_trailer(Description& d) {
  d.title("trailer");
  d.raw(8, "magic");
  d.integer(4, "version");
  d.integer(4, "reserved");
  d.raw(16, "run_id");
  d.integer(8, "sequence");
  d.integer(8, "image_tag", true);
  d.integer(8, "file_bytes");
  d.integer(8, "meta_offset", true);
  d.integer(8, "meta_bytes");
  d.integer(8, "meta_checksum", true);
  d.integer(8, "index_offset", true);
  d.integer(8, "index_bytes");
  d.integer(8, "index_checksum", true);
  d.integer(8, "section_count");
  d.integer(8, "extent_count");
  d.integer(8, "memory_bytes");
  d.integer(8, "inherited_offset", false, "full");
  d.integer(8, "inherited_bytes");
  d.integer(8, "inherited_checksum");
  d.zeros(sizeof(FileTrailer::zeros), "to the checksum");
  d.integer(8, "checksum", true, "of the 4088 bytes before");
}

template <typename T>
T at(const std::string& bytes, uint64_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

void describe_meta(Description& d, const std::string& bytes, uint64_t end) {
  static const char* const kNames[] = {"end", "process", "mm", "mapping", "thread"};
  while (d.at() < end) {
    auto header = at<RecordHeader>(bytes, d.at());
    const char* name = header.type < std::size(kNames) ? kNames[header.type] : "resource limits";
    d.integer(4, "type", false, name);
    d.integer(4, "length");
    if (header.length >= 16) d.raw(16, "the record's first fields …");
    d.go_to(d.at() + header.length - (header.length >= 16 ? 16 : 0));
  }
}

}  // namespace

std::string example_image() {
  std::string directory = (std::filesystem::temp_directory_path() / "ckpt-example-XXXXXX").string();
  if (mkdtemp(directory.data()) == nullptr) return {};
  ScopedFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  auto stats = write_example(fd.get());
  std::ifstream in(directory + "/example.ckpt", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::filesystem::remove_all(directory);
  return stats.ok() ? bytes : std::string();
}

std::string describe_image(const std::string& bytes) {
  Description d(bytes);
  describe_header(d);
  uint64_t trailer = bytes.size() - kBlockSize;
  while (d.at() < trailer) {
    uint64_t start = d.at();
    auto head = at<SectionHead>(bytes, start);
    uint64_t body = start + head.head_bytes;
    auto kind = static_cast<SectionKind>(head.kind);
    describe_section_head(d, kind == SectionKind::kMeta    ? "META: head"
                             : kind == SectionKind::kChunk ? "CHUNK: head"
                                                           : "INDEX: head");
    std::vector<ExtentEntry> extents;
    if (kind == SectionKind::kChunk) {
      for (uint32_t i = 0; i < head.entry_count; i++) {
        extents.push_back(at<ExtentEntry>(bytes, d.at()));
        d.integer(8, fmt::format("extent {}: address", i).c_str(), true);
        d.integer(4, "length");
        d.integer(4, "stored");
        d.integer(8, "checksum", true);
        d.integer(4, "codec", false, "none");
        d.integer(4, "reserved");
      }
    }
    d.zeros(body - d.at(), "to head_bytes");
    d.title(kind == SectionKind::kMeta    ? "META: body, records"
            : kind == SectionKind::kChunk ? "CHUNK: body, the pages"
                                          : "INDEX: body, extents by address");
    uint64_t end = body + head.content_bytes;
    if (kind == SectionKind::kMeta) describe_meta(d, bytes, end);
    for (const auto& e : extents) {
      for (uint64_t page = 0; page < e.stored; page += 4096) {
        d.filled(4096, fmt::format("page {:#x}", e.address + page));
      }
    }
    for (uint64_t i = 0; kind == SectionKind::kIndex && d.at() < end; i++) {
      d.integer(8, fmt::format("entry {}: address", i).c_str(), true);
      d.integer(8, "offset", true);
      d.integer(4, "length");
      d.integer(4, "stored");
      d.integer(8, "checksum", true);
      d.integer(4, "codec", false, "none");
      d.integer(4, "reserved");
    }
    d.zeros(body + head.body_bytes - d.at(), "to body_bytes");
  }
  describe_trailer(d);
  return d.take();
}

std::string with_example(const std::string& document, const std::string& example) {
  const std::string begin = "<!-- example: begin -->\n```text\n", end = "```\n<!-- example: end -->";
  size_t from = document.find(begin), to = document.find(end);
  if (from == std::string::npos || to == std::string::npos || to < from) return {};
  from += begin.size();
  return document.substr(0, from) + example + document.substr(to);
}

}  // namespace ckpt
