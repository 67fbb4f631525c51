#include "cluster/srun/pmix/missing.h"

#include <dlfcn.h>
#include <fmt/core.h>

namespace ckpt::cluster::srun {

std::string missing_pmix() {
#ifdef CKPT_HAVE_PMIX
  void* library = dlopen(kPmixLibrary, RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return fmt::format("{} is not here", kPmixLibrary);
  dlclose(library);
  return "";
#else
  return "ckpt was built without it";
#endif
}

}  // namespace ckpt::cluster::srun
