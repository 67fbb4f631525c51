// leaderless: the main thread leaves by pthread_exit; the others work on and the last one ends the
// program.
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/programs/victim.h"

namespace {

using namespace victim;

std::atomic<unsigned> left{3};
std::atomic<uint64_t> steps{0};
uint64_t iterations = 0;

void* work(void* argument) {
  uint64_t x = reinterpret_cast<uint64_t>(argument);
  for (uint64_t n = 0; n < iterations; ++n) {
    x = mix(x);
    if (n % 1000 == 0) steps.fetch_add(1000);
    if (n % 100'000 == 0) usleep(1000);
  }
  if (left.fetch_sub(1) == 1) {
    std::printf("leaderless: %llu steps\n", static_cast<unsigned long long>(steps.load()));
    std::printf("1 exercises ok\n");
    std::exit(0);
  }
  return reinterpret_cast<void*>(x);
}

}  // namespace

int main(int argc, char** argv) {
  return run_victim({"leaderless",
                     "The main thread ends first; the others go on.",
                     {{"leaderless", "three threads without a leader", 60'000'000,
                       [](uint64_t n) -> std::string {
                         iterations = n / 1000 * 1000;
                         for (uint64_t t = 1; t <= 3; ++t) {
                           pthread_t thread;
                           require_zero(pthread_create(&thread, nullptr, work, reinterpret_cast<void*>(t)),
                                        "pthread_create");
                         }
                         pthread_exit(nullptr);
                       }}}},
                    argc, argv);
}
