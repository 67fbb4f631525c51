// Everything that is known and checked before a restart touches anything.
//
// Owner:     restart. Callers: main(); for a job restart/job/job_plan.cc. One thread.
// Never:     changes anything: no file, no process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "image/read/image_chain.h"
#include "restart/files/vanished_file.h"
#include "restart/plan/check_files.h"
#include "restart/plan/memory/fill_plan.h"
#include "restart/plan/memory/lazy_plan.h"
#include "restart/plan/vdso/vdso.h"

namespace ckpt {

struct RestartPlan {
  std::unique_ptr<ImageChain> image;
  Vdso vdso;
  FillPlan fill;
  LazyPlan lazy;          // what is loaded while the program runs, and so is not in `fill`
  std::vector<int> tids;  // the pid first
  std::string image_directory;
  std::vector<std::string> notes;  // of the image, for the user
  ReturningFiles returning;        // of a job: its other processes' too
  WrittenFiles written;            // the same
  SharedFiles shared;              // the same

  const ProcessRecord& process() const { return image->meta().process.record; }
};

// Opens the image with those below it.
Result<RestartPlan> open_plan(const std::string& image_path);

// Where files of the program are kept beside the image, if any are; empty: it is no image of a directory.
std::string saved_files_of(const ImageChain& image, const std::string& image_directory);

enum class Loading { kAuto, kEager, kLazy, kNone };

// Adds those of this process that need not be as they were (WrittenFiles).
void add_changing_files(const RestartPlan& plan, WrittenFiles& files);

// Of an image that is restarted by itself: a member of a job may have left shared memory to another's image.
Result<void> check_is_whole(const RestartPlan& plan);

// The machine, the files, and the checksums of what others than the program will see; those of the rest are
// compared while it is loaded. kAuto: lazily where that is allowed and worth it. kLazy: where it is allowed,
// else a note. kNone: it is not loaded, and all is checked here.
Result<void> check_plan(RestartPlan& plan, Loading loading, const VerifyProgress& progress);

// Changes the plan: all memory is loaded before the program runs.
Result<void> load_eagerly(RestartPlan& plan, const VerifyProgress& progress);

}  // namespace ckpt
