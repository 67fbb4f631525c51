#include <fcntl.h>

#include "base/machine/known_devices.h"
#include "image/format/records/process_records.h"
#include "libckpt_rt/capture/descriptors/descriptors.h"
#include "libckpt_rt/capture/descriptors/half_read_lists.h"
#include "libckpt_rt/capture/descriptors/table/notes.h"
#include "libckpt_rt/core/preload_rules.h"

namespace ckpt {
namespace {

// A record's length has 32 bits.
constexpr uint64_t kMaxContentRecord = 1u << 30;

std::span<const std::byte> bytes_of(const char* text, size_t length) {
  return {reinterpret_cast<const std::byte*>(text), length};
}

template <typename T>
void put_record(ByteWriter& out, RecordType type, const T& fixed, std::span<const std::byte> first = {},
                std::span<const std::byte> second = {}) {
  const uint64_t length = sizeof(T) + first.size() + second.size();
  out.put(RecordHeader{static_cast<uint32_t>(type), static_cast<uint32_t>((length + 7) & ~uint64_t{7})});
  out.put(fixed);
  out.raw(first.data(), first.size());
  out.raw(second.data(), second.size());
  static constexpr std::byte kZeros[8] = {};
  out.raw(kZeros, static_cast<size_t>(-length & 7));
}

// A pidfd of a thread that is not the first of its process (PIDFD_THREAD, Linux 6.9).
bool is_of_other_thread(const CapturedDescriptor& d) {
  if ((d.now.open_flags & O_EXCL) == 0 || static_cast<int64_t>(d.value) <= 0) return false;
  const long first = sys::call(__NR_pidfd_open, static_cast<long>(d.value), 0L);
  if (first >= 0) sys::call(__NR_close, first);
  return first < 0 && first != -ESRCH;
}

}  // namespace

Result<void> DescriptorCapture::write_notes() {
  half_read_lists::begin();
  if (files_.is_refused()) {
    CKPT_TRY(
        notes_.add(kChanged,
                   "the kernel refuses kcmp(2): which descriptors share an offset was guessed from equal "
                   "offsets and flags; allow kcmp in the container's seccomp profile"));
  }
  for (const auto& d : files_.entries()) {
    const bool is_pipe = S_ISFIFO(d.now.mode) && (d.flags & kOpenFilePipeReadEnd) != 0;
    if (!d.shares && is_pipe && d.now.queued != 0 &&
        (d.kind == OpenFileKind::kOther || d.kind == OpenFileKind::kStandard)) {
      CKPT_TRY(notes_.add(
          kChanged, "descriptor {} ({}): the {} bytes that wait in it come from another process and are lost",
          d.fd, std::string_view(d.path, d.path_len), d.now.queued));
    }
    // note_lost_mappings() says whether it is made again.
    if (std::string_view(d.path, d.path_len) == "anon_inode:[io_uring]") continue;
    if (!d.shares && (d.kind == OpenFileKind::kRegular || d.kind == OpenFileKind::kDirectory))
      CKPT_TRY(note_process_file(d));
    const auto process = static_cast<int64_t>(d.value);
    // Only a restart knows which processes are in the job.
    if (!d.shares && d.kind == OpenFileKind::kPidFd && process > 0 && process != sys::getpid() &&
        !partners_.any) {
      CKPT_TRY(notes_.add(
          kChanged,
          "descriptor {} is a pidfd of process {}, which is not in the image: after a restart it says that "
          "the process has ended",
          d.fd, process));
    }
    if (!d.shares && d.kind == OpenFileKind::kPidFd && partners_.any && is_of_other_thread(d)) {
      constexpr std::string_view kSent = "a descriptor that waits to be received";
      char name[40];
      const auto end = fmt::format_to_n(name, sizeof(name), "descriptor {}", d.fd);
      CKPT_TRY(
          notes_.add(kChanged,
                     "{} is a pidfd of thread {}, which is not the first of its process: after a restart it "
                     "says that the thread has ended",
                     d.in_flight ? kSent : std::string_view(name, end.size), process));
    }
    // O_PATH is a place in the file system, and a directory is no device: neither has the device open.
    const bool open_device = S_ISCHR(d.now.mode) && (d.now.open_flags & O_PATH) == 0;
    const KnownDevice* device = open_device ? known_device({d.path, d.path_len}) : nullptr;
    if (!d.shares && device != nullptr && device->carries_messages) {
      CKPT_TRY(notes_.add(kNoRestart, "descriptor {} is {} ({}): {}", d.fd, device->what,
                          std::string_view(d.path, d.path_len), device->why));
    } else if (!d.shares && d.kind == OpenFileKind::kOther) {
      CKPT_TRY(notes_.add(
          kChanged,
          "descriptor {} ({}) cannot be saved; after restart reading gives end of file and writing EPIPE",
          d.fd, std::string_view(d.path, d.path_len)));
    }
  }
  return {};
}

// rest: its path behind the process.
Result<void> DescriptorCapture::note_half_read(const CapturedDescriptor& d, std::string_view rest) {
  if (!half_read_lists::is_list(rest) || d.now.offset == 0) return {};
  // Lines that have been read since the attempt prepared were read with our memory in the list, as a rule.
  const auto unseen = d.offset_ahead == d.now.offset ? own_ : std::span<const AddrRange>();
  if (!half_read_lists::add(d.fd, rest, d.now.offset, unseen)) return {};
  return notes_.add(
      kChanged,
      "descriptor {} ({}) may be half read: what the program reads of it after a restart may leave "
      "out mappings, or have some twice",
      d.fd, std::string_view(d.path, d.path_len));
}

// What /proc says of another process, or of a thread: neither is there when the descriptor is made again.
Result<void> DescriptorCapture::note_process_file(const CapturedDescriptor& d) {
  std::string_view path(d.path, d.path_len);
  constexpr std::string_view kProc = "/proc/", kTask = "/task/";
  if (!path.starts_with(kProc)) return {};
  const long self = sys::getpid();
  auto number = [&] {
    long n = 0;
    for (; !path.empty() && path[0] >= '0' && path[0] <= '9'; path.remove_prefix(1))
      n = n * 10 + (path[0] - '0');
    return n;
  };
  path.remove_prefix(kProc.size());
  const long process = number();
  long thread = process;
  if (path.starts_with(kTask)) {
    path.remove_prefix(kTask.size());
    if (const long n = number(); n != 0) thread = n;
  }
  if (process == self && thread == self) return note_half_read(d, path);
  if (process == 0) return {};
  if (partners_.any && thread == process) return {};  // it may be in the job
  return notes_.add(
      kChanged,
      "descriptor {} ({}) is about {} {}: after a restart it is about what has that number then, or reads as "
      "of one that has ended",
      d.fd, std::string_view(d.path, d.path_len), process == self ? "thread" : "process", thread);
}

bool DescriptorCapture::serialize(ByteWriter& out) const {
  for (uint32_t i : files_.order()) {
    const auto& d = files_.entries()[i];
    if (!d.shares) {
      OpenFileRecord r{};
      r.id = d.open_file;
      r.kind = static_cast<uint32_t>(d.kind);
      r.flags = d.flags | (names_.has_one_name(d) ? kOpenFileOneName : 0u);
      r.open_flags = d.now.open_flags;
      r.offset = d.now.offset;
      r.size = d.now.size;
      r.device = d.now.device;
      r.inode = d.now.inode;
      r.rdev = d.now.rdev;
      r.mtime_ns = d.now.mtime_ns;
      r.mode = d.now.mode;
      r.seals = d.kind == OpenFileKind::kMemfd ? d.now.seals : 0;
      r.owner = d.now.owner;
      r.owner_type = d.now.owner_type;
      r.owner_signal = d.now.owner_signal;
      r.pipe_size = d.now.pipe_size;
      r.object = object_number(d.now.device, d.now.inode);
      r.value = d.value;
      if (d.kind == OpenFileKind::kMessageQueue && d.now.links == 0) r.flags |= kOpenFileDeleted;
      if (d.kind == OpenFileKind::kRegular && (d.flags & (kOpenFileDeleted | kOpenFileContents)) != 0) {
        r.flags |= kOpenFileOwner;
        r.value = d.now.uid | uint64_t{d.now.gid} << 32;
      }
      r.path_len = d.path_len;
      r.details_len = d.details_len;
      put_record(out, RecordType::kOpenFile, r, bytes_of(d.path, d.path_len),
                 std::span<const std::byte>(d.details, d.details_len));
    }
    if (d.in_flight) continue;
    put_record(out, RecordType::kDescriptor,
               DescriptorRecord{d.fd, d.open_file, d.now.fd_flags & FD_CLOEXEC, 0});
  }
  for (const auto& c : contents_) {
    for (uint64_t at = 0; at < c.length; at += kMaxContentRecord) {
      const uint64_t n = c.length - at < kMaxContentRecord ? c.length - at : kMaxContentRecord;
      put_record(out, RecordType::kFileContent, FileContentRecord{c.open_file, 0, c.object, c.offset + at, n},
                 std::span<const std::byte>(c.data + at, n));
    }
  }
  for (const auto& n : notes_.all()) {
    put_record(out, RecordType::kNote, NoteRecord{n.severity, n.length}, bytes_of(n.text, n.length));
  }
  return out.ok();
}

}  // namespace ckpt
