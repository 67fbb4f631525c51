#include <dlfcn.h>

#include "tests/programs/churn/churn.h"

namespace churn {

using namespace victim;

std::string libraries(uint64_t iterations) {
  uint64_t calls = 0;
  for (uint64_t n = 0; n < iterations; ++n) {
    void* library = dlopen("libchurn_plugin.so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) broken(fmt::format("libraries: {}", dlerror()));
    auto step = reinterpret_cast<uint64_t (*)(uint64_t)>(dlsym(library, "churn_plugin_step"));
    require(step != nullptr, "libraries: churn_plugin_step is missing");
    // A library fresh from its file sums to 119; each step adds its n in four places.
    uint64_t expected = 11 + 22 + 33 + 44 + 9;
    for (uint64_t i = 0; i < 3; ++i) {
      uint64_t sum = step(n);
      require(sum == expected, "libraries: load {} step {}: {}, not {}", n, i, sum, expected);
      expected += 4 * n;
      ++calls;
    }
    require(dlclose(library) == 0, "libraries: dlclose failed");
  }
  return fmt::format("{} loads, {} calls", iterations, calls);
}

}  // namespace churn
