// Going back: mappings, and what is in them.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include "base/raii_fd.h"
#include "libckpt_rt/back/back_run.h"
#include "libckpt_rt/interpose/addresses/addresses.h"
#include "libckpt_rt/stop/stop_state.h"
#include "libckpt_rt/core/preload_rules.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24  // Linux 5.18
#endif

namespace ckpt {

void BackRun::change_memory(bool late) {
  for (const BackMemoryOp& op : list<BackMemoryOp>(head_.memory, head_.memory_count)) {
    if ((op.late != 0) == late) change_one(op);
  }
}

// Checks that the program, with the rights that it has now, can open the files that will be mapped again.
// The files must be those that the asker has looked at.
Result<void> BackRun::check_files() {
  for (const BackMemoryOp& op : list<BackMemoryOp>(head_.memory, head_.memory_count)) {
    if (op.kind != static_cast<uint32_t>(BackMemory::kMap) || op.path == 0) continue;
    const char* path = reinterpret_cast<const char*>(plan_ + op.path);
    const ScopedFd file(
        static_cast<int>(sys::call(__NR_openat, AT_FDCWD, path, op.open_flags | O_CLOEXEC, 0L)));
    struct stat st {};
    long r = file.valid() ? sys::call(__NR_fstat, file.get(), &st) : file.get();
    if (r == 0 && op.inode != 0 && (st.st_ino != op.inode || st.st_dev != op.device)) r = -ESTALE;
    if (r == 0) continue;
    return make_error(
        ExitCode::kFileChanged, static_cast<int>(r),
        "{} was mapped and is not any more; the program cannot open it again ({}); it goes on as it "
        "was",
        path, errno_name(static_cast<int>(r)));
  }
  return {};
}

void BackRun::change_one(const BackMemoryOp& op) {
  long r = 0;
  switch (static_cast<BackMemory>(op.kind)) {
    case BackMemory::kUnmap:
      r = sys::call(__NR_munmap, op.start, op.length);
      if (sys::failed(r)) die("munmap", r, op.start);
      return;
    case BackMemory::kBrk:
      r = sys::call(__NR_brk, op.start);
      if (static_cast<uint64_t>(r) != op.start) die("brk", -ENOMEM, op.start);
      return;
    case BackMemory::kMap: {
      long fd = -1;
      if (op.path != 0) {
        fd = sys::call(__NR_openat, AT_FDCWD, reinterpret_cast<const char*>(plan_ + op.path),
                       op.open_flags | O_CLOEXEC, 0L);
        if (sys::failed(fd)) die("opening a mapped file again", fd, op.start);
      }
      r = sys::call(__NR_mmap, op.start, op.length, op.prot, op.flags | MAP_FIXED_NOREPLACE, fd, op.offset);
      if (fd >= 0) sys::call(__NR_close, fd);
      if (!sys::failed(r) && static_cast<uint64_t>(r) != op.start) r = -EEXIST;
      if (sys::failed(r)) die("mmap", r, op.start);
      return;
    }
    case BackMemory::kProtect:
      r = sys::call(__NR_mprotect, op.start, op.length, op.prot);
      if (sys::failed(r)) die("mprotect", r, op.start);
      return;
    case BackMemory::kDrop:
      r = sys::call(__NR_madvise, op.start, op.length, MADV_DONTNEED);
      if (r == -EINVAL) r = sys::call(__NR_madvise, op.start, op.length, MADV_DONTNEED_LOCKED);
      if (sys::failed(r)) die("madvise(MADV_DONTNEED)", r, op.start);
      return;
    case BackMemory::kZero:
      r = sys::call(__NR_madvise, op.start, op.length, MADV_REMOVE);
      if (sys::failed(r) && unwritable_end(op.start) == 0) write_zeros(op.start, op.length);
      return;
    case BackMemory::kWritable:
      r = sys::call(__NR_mprotect, op.start, op.length, op.prot | PROT_READ | PROT_WRITE);
      if (sys::failed(r) && !unwritable_.push_back({Addr{op.start}, Addr{op.start + op.length}}))
        die("mprotect", r, op.start);
      return;
    case BackMemory::kAdvise:
      sys::call(__NR_madvise, op.start, op.length, long{op.prot});
      return;
  }
  die("an unknown order", -EINVAL, op.start);
}

// For shared memory that takes no holes: it is locked, or a memfd with F_SEAL_FUTURE_WRITE, which mappings
// from before the seal may write.
void BackRun::write_zeros(uint64_t address, uint64_t length) {
  alignas(uint64_t) std::byte page[kPageSize];
  for (uint64_t at = address; at < address + length; at += kPageSize) {
    // What cannot be read lies behind the end of the file: there is nothing to put back.
    if (sys::call(__NR_pread64, memory_fd_, page, kPageSize, at) != static_cast<long>(kPageSize)) continue;
    if (std::all_of(page, page + kPageSize, [](std::byte b) { return b == std::byte{0}; })) continue;
    std::memset(page, 0, sizeof(page));
    put(at, page, kPageSize);
  }
}

// The end of the range of unwritable_ that holds the address; 0: none does.
uint64_t BackRun::unwritable_end(uint64_t address) const {
  for (const AddrRange& r : unwritable_) {
    if (r.start.value <= address && address < r.end.value) return r.end.value;
  }
  return 0;
}

// Memory that was made writable for the fills gets its protection again.
void BackRun::protect_again() {
  for (const BackMemoryOp& op : list<BackMemoryOp>(head_.memory, head_.memory_count)) {
    if (op.kind != static_cast<uint32_t>(BackMemory::kWritable)) continue;
    const long r = sys::call(__NR_mprotect, op.start, op.length, op.prot);
    if (sys::failed(r)) die("mprotect", r, op.start);
  }
}

// The kernel copies, since a thread that writes to read-only memory would get a signal. The program's memory
// is the local side of process_vm_readv(2), whose pages the kernel does not pin. Only pwrite(2) to
// /proc/thread-self/mem reaches memory that is read-only or unreadable.
void BackRun::put(uint64_t address, const std::byte* from, uint64_t bytes) {
  cost_.bytes += bytes;
  if (!filtered_) {
    iovec local{reinterpret_cast<void*>(address), bytes}, remote{const_cast<std::byte*>(from), bytes};
    const long n = sys::call(__NR_process_vm_readv, sys::gettid(), &local, 1, &remote, 1, 0L);
    if (n == static_cast<long>(bytes)) return;
  }
  for (uint64_t done = 0; done < bytes;) {
    const long n = sys::call(__NR_pwrite64, memory_fd_, from + done, bytes - done, address + done);
    if (const uint64_t end = n <= 0 ? unwritable_end(address + done) : 0; end != 0) {
      done = std::min(bytes, end - address);
      continue;
    }
    if (n <= 0) die("writing memory", n, address + done);
    done += static_cast<uint64_t>(n);
  }
}

void BackRun::fill(std::span<const BackFill> fills, bool late) {
  for (const BackFill& f : fills) {
    if ((f.late != 0) == late) put(f.address, data_ + f.at, f.length);
  }
}

void BackRun::fill_all() {
  fill(list<BackFill>(head_.fills, head_.fill_count), false);
  // The pages of the late fills are in the first part of the data, which the asker does not overwrite.
  for (uint32_t more = head_.more; more != 0;) {
    message_ = {};
    message_.says = static_cast<uint32_t>(BackSays::kMore);
    auto reply = ask(message_);
    if (!reply.ok()) die("getting more of the image", -EIO, 0);
    fill(list<BackFill>(reply->fills, reply->fill_count), false);
    more = reply->more;
  }
}

void BackRun::put_library_back() {
  present_->save();
  if (watch_ != nullptr) {
    // The serving thread uses the library's data, too: so the agent serves meanwhile.
    ArmedMemory::Serving serving(watch_->protection);
    change_memory(true);
    fill(list<BackFill>(head_.fills, head_.fill_count), true);
    present_->put_back(watch_);
  } else {
    change_memory(true);
    fill(list<BackFill>(head_.fills, head_.fill_count), true);
    present_->put_back(nullptr);
  }
  if (head_.address_count != 0) addresses::set(list<AddressLine>(head_.addresses, head_.address_count));
  for (ThreadSlot* s = stop_state.threads; s != nullptr; s = s->next) {
    ParkedThreads::Thread* thread = threads_.find(s->tid);
    if (thread == nullptr) die("finding a thread", -ESRCH, static_cast<uint64_t>(s->tid));
    thread->slot = s;
  }
  for (const ParkedThreads::Thread* thread : threads_.threads()) {
    if (thread->slot == nullptr) die("finding a thread", -ESRCH, static_cast<uint64_t>(thread->tid));
  }
}

}  // namespace ckpt
