// Copies by the Intel Data Streaming Accelerator, through a work queue that the administrator has opened to
// users. (Source: Intel DSA Architecture Specification, sections 3.8 and 8; linux/idxd.h).
//
// A descriptor that is under way cannot be taken back: settle() waits for it, as long as one state takes.
#include <dirent.h>
#include <fcntl.h>
#include <linux/idxd.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/raii_fd.h"
#include "timewarp/state/non_blocking.h"

namespace ckpt::timewarp {

namespace {

constexpr size_t kPortal = 4096;

// True: accepted. ENQCMD, for shared work queues: the zero flag says that the queue was full.
bool enqueue(void* portal, const dsa_hw_desc& descriptor) {
  bool retry;
  asm volatile(".byte 0xf2, 0x0f, 0x38, 0xf8, 0x02" /* enqcmd (%rdx), %rax */
               : "=@ccz"(retry)
               : "a"(portal), "d"(&descriptor)
               : "memory");
  return !retry;
}

class DsaCopier final : public BackgroundCopier {
 public:
  DsaCopier(void* portal, uint32_t most_copies) : portal_(portal), jobs_(size_t{most_copies} * 2 + 8) {
    for (size_t i = jobs_.size(); i-- > 0;) free_.push_back(i);
  }
  ~DsaCopier() override { munmap(portal_, kPortal); }

  [[nodiscard]] bool start(NonBlockingCopy& copy) override {
    if (free_.empty()) return false;
    Job& job = jobs_[free_.back()];
    job.descriptor = {};
    job.descriptor.opcode = DSA_OPCODE_MEMMOVE;
    job.descriptor.flags = IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_RCR | IDXD_OP_FLAG_CC | IDXD_OP_FLAG_BOF;
    job.descriptor.completion_addr = reinterpret_cast<uint64_t>(&job.record);
    job.descriptor.src_addr = reinterpret_cast<uint64_t>(copy.from);
    job.descriptor.dst_addr = reinterpret_cast<uint64_t>(copy.to);
    job.descriptor.xfer_size = copy.bytes;
    std::memset(&job.record, 0, sizeof(job.record));
    // The device reads and writes memory of its own accord: what was stored is there before it is told.
    __builtin_ia32_sfence();
    if (!enqueue(portal_, job.descriptor)) return false;
    copy.ticket = free_.back();
    free_.pop_back();
    return true;
  }
  Settled settle(NonBlockingCopy& copy, uint32_t percent) override {
    Job& job = jobs_[copy.ticket];
    // The first byte of the record. acquire: the device writes it last, after the copy.
    uint8_t status;
    while ((status = __atomic_load_n(reinterpret_cast<const uint8_t*>(&job.record), __ATOMIC_ACQUIRE)) ==
           DSA_COMP_NONE) {
      __builtin_ia32_pause();
    }
    free_.push_back(copy.ticket);
    if (percent > 100) return Settled::kAborted;
    if ((status & DSA_COMP_STATUS_MASK) == DSA_COMP_SUCCESS) return Settled::kComplete;
    // A page was not there, or the device has failed: the processor does it.
    std::memcpy(copy.to, copy.from, copy.bytes);
    return Settled::kFinished;
  }

 private:
  struct alignas(64) Job {
    dsa_hw_desc descriptor;
    alignas(32) dsa_completion_record record;
  };
  void* const portal_;
  std::vector<Job> jobs_;
  std::vector<size_t> free_;
};

}  // namespace

std::unique_ptr<BackgroundCopier> make_dsa_copier(uint32_t most_copies, std::string* why) {
  constexpr char kDirectory[] = "/dev/dsa";
  DIR* const directory = opendir(kDirectory);
  if (directory == nullptr) {
    *why = "no Intel DSA here (no /dev/dsa): choose the emulated device or the helper thread";
    return nullptr;
  }
  *why = "no work queue in /dev/dsa: let the administrator configure a shared one for users (accel-config)";
  void* portal = MAP_FAILED;
  while (const dirent* entry = readdir(directory)) {
    if (std::strncmp(entry->d_name, "wq", 2) != 0) continue;
    const std::string path = std::string(kDirectory) + "/" + entry->d_name;
    ScopedFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (fd.get() < 0) {
      *why = "cannot open " + path + ": " + std::strerror(errno) +
             ": let the administrator give you the right to";
      continue;
    }
    portal = mmap(nullptr, kPortal, PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
    if (portal != MAP_FAILED) break;
    *why = "cannot map the portal of " + path + ": " + std::strerror(errno);
  }
  closedir(directory);
  if (portal == MAP_FAILED) return nullptr;
  return std::make_unique<DsaCopier>(portal, most_copies);
}

}  // namespace ckpt::timewarp
