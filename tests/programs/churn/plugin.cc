// The library that is loaded and unloaded: data, zeroed data, thread-local storage, a constructor.
#include <cstdint>

namespace {
uint64_t data[1024] = {11, 22, 33};
uint64_t zeros[4096];
thread_local uint64_t per_thread = 9;
thread_local uint64_t per_thread_zeros[512];

__attribute__((constructor)) void constructed() { data[3] = 44; }
}  // namespace

// Adds n everywhere and returns a sum that shows what was there before.
extern "C" uint64_t churn_plugin_step(uint64_t n) {
  uint64_t sum = data[0] + data[1] + data[2] + data[3] + zeros[4095] + per_thread + per_thread_zeros[511];
  data[0] += n;
  zeros[4095] += n;
  per_thread += n;
  per_thread_zeros[511] += n;
  return sum;
}
