// The restorer range: the one piece of ckpt-restart's address space that survives the restorer.
//
//   start ┬ the restorer's code           read, execute
//         ├ RestorerArgs, lists            read, write
//         ├ stack                          read, write
//         ├ room to park vdso and vvar     reserved
//         ├ views of shared objects        read, write
//         ├ the gate, one page             read; only if memory is lazy: the loader fills it last
//   end   ┴
//
// Owner:     restart. Callers: the child process. Free in the saved process, the library unmaps it.
#pragma once

#include <vector>

#include "image/read/image_chain.h"
#include "restart/descriptors/descriptors.h"
#include "restart/plan/memory/fill_plan.h"
#include "restart/plan/memory/lazy_plan.h"
#include "restart/plan/vdso/vdso.h"
#include "restart/reports/report.h"
#include "restart/restorer/restorer_args.h"

namespace ckpt {

class RestorerRange {
 public:
  RestorerRange(const ImageChain& image, const FillPlan& fill, const LazyPlan& lazy, const Vdso& vdso,
                const RestoredDescriptors& descriptors)
      : image_(image), fill_(fill), lazy_(lazy), vdso_(vdso), descriptors_(descriptors) {}

  // Finds and reserves the range, with `view_bytes` for shared objects, and copies the restorer's code there.
  Result<void> reserve(uint64_t view_bytes);
  uint64_t views_at() const { return views_; }
  uint64_t gate() const { return gate_; }  // 0: nothing is lazy
  RestorerArgs& args() { return *args_; }

  // Lists, mm description, limits, credentials. Descriptors are the caller's to fill in.
  Result<void> fill_in(const std::vector<RestorerMapping>& mappings, bool in_new_user, ReportChannel& report);

  // Runs the restorer. Nothing of ckpt-restart is left behind it.
  [[noreturn]] void enter();

 private:
  template <typename T>
  T* place(const T* values, size_t count);
  void describe_mm();
  void describe_lazy();
  void describe_own_rseq();
  Result<void> plan_vdso();

  const ImageChain& image_;
  const FillPlan& fill_;
  const LazyPlan& lazy_;
  const Vdso& vdso_;
  const RestoredDescriptors& descriptors_;
  uint64_t start_ = 0, end_ = 0;
  uint64_t lists_ = 0, lists_end_ = 0;  // next free byte of the lists, and where they end
  uint64_t stack_top_ = 0, parking_ = 0, views_ = 0, gate_ = 0;
  uint64_t vdso_code_ = 0;  // where our vdso's code goes
  RestorerArgs* args_ = nullptr;
};

}  // namespace ckpt
