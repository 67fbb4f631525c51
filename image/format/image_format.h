// The bytes of an image file. Grammar and a worked example: docs/image_format.md.
//
//   image   = header section* [inherited] index trailer   every part starts at a multiple of 4096
//   header  = FileHeader                               first block of the file
//   section = SectionHead entries zeros, then the body: exactly one META, any number of CHUNKs
//   inherited = a section that only increments have: the memory that is as in the parent
//   index   = a section too, the last one: every extent of every chunk in address order, and memory
//             that repeats the bytes of one
//   trailer = FileTrailer                              last block of the file
//
// The file is written front to back, never seeking: it can be a stream. It is complete iff its last
// block is a valid trailer of the same image. Every byte is under some checksum, padding too.
//
// Owner:     image/format. Callers: the writing half (in the victim) and the reading half.
// Contract:  in every version, past and future, the first 12 bytes are kHeaderMagic and the version,
//            and the last 8 bytes of the first block are the XXH3 of the bytes before them, so that
//            an image of a later version is told from a damaged one. All integers little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace ckpt {

// Grows with every change that an older reader could misread. The reader takes exactly this one. (3:
// sealed_format.h)
inline constexpr uint32_t kFormatVersion = 4;

inline constexpr uint64_t kBlockSize = 4096;                // bytes; everything in the file is aligned to it
inline constexpr uint64_t kMaxCompressedExtent = 4u << 20;  // bytes of memory in one compressed extent
inline constexpr uint32_t kMaxHeadBytes = 1u << 20;         // of a section
inline constexpr uint32_t kMaxChainLength = 255;            // images below an increment

// Not text, and broken by every transfer that changes line ends or strips bit 7.
inline constexpr uint8_t kHeaderMagic[8] = {0x89, 'C', 'K', 'P', 'T', '\r', '\n', 0x1a};
inline constexpr uint8_t kTrailerMagic[8] = {'C', 'K', 'P', 'T', 'E', 'N', 'D', '\n'};
inline constexpr uint32_t kSectionMagic = 0x4b435343;  // "CSCK"
inline constexpr uint32_t kByteOrderMark = 0x01020304;
inline constexpr uint32_t kMachineX86_64 = 62;  // EM_X86_64 of elf.h

enum class Codec : uint32_t { kNone = 0, kLz4 = 1, kZstd = 2 };

enum class SectionKind : uint32_t { kMeta = 1, kChunk = 2, kIndex = 3, kInherited = 4 };

// The image that an increment is to. The parent is known by run, sequence and state, not by its name: a file
// of that name that says something else about the process is not it. So an image may be written anew with the
// same contents (compacted, encrypted) below those that are increments to it.
struct ParentImage {
  uint64_t sequence;  // 0: none, the image is full, and all of this is 0
  uint64_t state;     // the parent's FileTrailer::meta_checksum
  // Repeated memory counts each time: an image without it must not look small beside its increments.
  uint64_t full_bytes;    // length of the full image at the end of the chain, when this was written
  uint64_t chain_bytes;   // of all images below, the full one included
  uint32_t chain_length;  // images below, at most kMaxChainLength
  uint32_t reserved;
  // Of the parent's file, in the same directory or in that of another checkpoint of the job
  // (job::is_parent_in_job()).
  char name[96];  // NUL-terminated, zeros behind
};

// The last 8 bytes of a run id are the first of its job's id: what one process executes one after the other
// are runs of one job.
inline constexpr size_t kRunIdOfJob = 8;

struct FileHeader {
  uint8_t magic[8];     // kHeaderMagic
  uint32_t version;     // kFormatVersion
  uint32_t byte_order;  // kByteOrderMark
  uint32_t machine;     // kMachineX86_64
  uint32_t page_size;   // bytes
  uint8_t run_id[16];   // one run of one program, kept over restarts
  uint64_t sequence;    // from 1
  int64_t realtime_ns;  // CLOCK_REALTIME when the checkpoint was requested
  ParentImage parent;
  uint8_t zeros[3896];
  uint64_t checksum;  // of the 4088 bytes before; also the tag of this image in its other parts
};

// Followed, in a chunk, by ExtentEntry[entry_count]; then zeros up to head_bytes; then the body.
struct SectionHead {
  uint32_t magic;          // kSectionMagic
  uint32_t kind;           // SectionKind
  uint64_t ordinal;        // sections before this one in the file
  uint64_t image_tag;      // FileHeader::checksum
  uint32_t head_bytes;     // this struct, entries and zeros; a multiple of 4096
  uint32_t entry_count;    // CHUNK: extents; INDEX, INHERITED: entries in the body; META: 0
  uint64_t content_bytes;  // of the body without the zeros at its end
  uint64_t body_bytes;     // content_bytes rounded up to 4096
  uint64_t body_checksum;  // of body_bytes; CHUNK: 0, each extent has its own
  uint64_t head_checksum;  // of head_bytes, with this field 0
};

// Contiguous pages of memory. The stored bytes of a chunk's extents follow each other in the body, each
// starting at a multiple of 4096. An extent of codec none can therefore be mapped from the file.
struct ExtentEntry {
  uint64_t address;   // in the saved process, page-aligned
  uint32_t length;    // bytes of memory, a multiple of 4096, not 0
  uint32_t stored;    // bytes in the file: == length for codec none, < length otherwise
  uint64_t checksum;  // of the stored bytes and the zeros that fill their last block
  uint32_t codec;     // Codec
  uint32_t reserved;  // 0
};

// Of a chunk's extent; or of other memory with the same bytes: all but the address is then as in that
// extent's entry. Several may repeat the same one.
struct IndexEntry {
  uint64_t address;
  uint64_t offset;  // of the stored bytes in the file
  uint32_t length;
  uint32_t stored;
  uint64_t checksum;
  uint32_t codec;
  uint32_t reserved;
};

// Memory of an increment that is as in its parent: what that one has for it, or inherits itself; zeros
// where no image of the chain has anything. Pages that are neither here nor in an extent were given back
// since the parent, or are zero: they are not taken from it.
struct InheritedRun {
  uint64_t address;  // page-aligned
  uint64_t length;   // bytes, a multiple of 4096, not 0
};

struct FileTrailer {
  uint8_t magic[8];  // kTrailerMagic
  uint32_t version;  // kFormatVersion
  uint32_t reserved;
  uint8_t run_id[16];
  uint64_t sequence;
  uint64_t image_tag;      // FileHeader::checksum
  uint64_t file_bytes;     // with this block
  uint64_t meta_offset;    // of META's SectionHead
  uint64_t meta_bytes;     // its content_bytes
  uint64_t meta_checksum;  // its body_checksum
  uint64_t index_offset;   // of INDEX's SectionHead
  uint64_t index_bytes;
  uint64_t index_checksum;
  uint64_t section_count;  // with META and INDEX
  uint64_t extent_count;
  uint64_t memory_bytes;      // sum of the extents' lengths
  uint64_t inherited_offset;  // of INHERITED's SectionHead; these three are 0 in a full image
  uint64_t inherited_bytes;
  uint64_t inherited_checksum;
  uint8_t zeros[3936];
  uint64_t checksum;  // of the 4088 bytes before
};

static_assert(sizeof(FileHeader) == kBlockSize && offsetof(FileHeader, checksum) == 4088);
static_assert(sizeof(FileTrailer) == kBlockSize && offsetof(FileTrailer, checksum) == 4088);
static_assert(sizeof(SectionHead) == 64 && sizeof(ExtentEntry) == 32 && sizeof(IndexEntry) == 40);
static_assert(sizeof(ParentImage) == 136 && sizeof(InheritedRun) == 16);
static_assert(std::is_trivially_copyable_v<FileHeader> && std::is_trivially_copyable_v<FileTrailer>);

constexpr uint64_t round_up_to_block(uint64_t bytes) { return (bytes + kBlockSize - 1) & ~(kBlockSize - 1); }

}  // namespace ckpt
