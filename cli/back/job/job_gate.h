// The memory that all processes of a job map while they go back, and its file (base/protocol/back_gate.h).
//
// Owner: cli. Ordinary code, one thread. Callers: JobBack.
#pragma once

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/protocol/back_gate.h"
#include "base/raii_fd.h"
#include "base/result.h"

namespace ckpt::cli {

class JobGate {
 public:
  ~JobGate() {
    if (gate_ != nullptr) munmap(gate_, kBackGateBytes);
  }
  Result<void> open(uint32_t members) {
    fd_ = ScopedFd(memfd_create("ckpt back gate", MFD_CLOEXEC));
    void* p = fd_.valid() && ftruncate(fd_.get(), kBackGateBytes) == 0
                  ? mmap(nullptr, kBackGateBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0)
                  : MAP_FAILED;
    if (p == MAP_FAILED) {
      return make_error(ExitCode::kSystem, errno, "no memory that the job's processes have in common ({})",
                        errno_name(errno));
    }
    gate_ = static_cast<BackGate*>(p);
    gate_->members = members;
    return {};
  }
  BackGate* operator->() const { return gate_; }
  int fd() const { return fd_.get(); }

 private:
  ScopedFd fd_;
  BackGate* gate_ = nullptr;
};

}  // namespace ckpt::cli
