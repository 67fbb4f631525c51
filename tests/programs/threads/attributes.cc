#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>

#include "tests/programs/threads/threads.h"

namespace threads {

using namespace victim;

std::string attributes(uint64_t iterations) {
  constexpr unsigned kThreads = 4;
  cpu_set_t available;
  require_call(sched_getaffinity(0, sizeof(available), &available) == 0, "sched_getaffinity");
  run_threads(kThreads, [&](unsigned t) {
    std::string old_name(16, '\0');
    pthread_getname_np(pthread_self(), old_name.data(), old_name.size());
    std::string name = fmt::format("attributes {}", t);
    require_zero(pthread_setname_np(pthread_self(), name.c_str()), "pthread_setname_np");
    cpu_set_t bound = available;
    if (t % 2 == 0) {
      // The first processor there is.
      CPU_ZERO(&bound);
      int cpu = 0;
      while (!CPU_ISSET(cpu, &available)) ++cpu;
      CPU_SET(cpu, &bound);
    }
    require_zero(pthread_setaffinity_np(pthread_self(), sizeof(bound), &bound), "pthread_setaffinity_np");
    int policy = t == 1 ? SCHED_BATCH : SCHED_OTHER;
    sched_param parameters{};
    require_zero(pthread_setschedparam(pthread_self(), policy, &parameters), "pthread_setschedparam");
    int nice_value = static_cast<int>(t);
    if (t != 0)
      require_call(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice_value) == 0, "setpriority");
    const unsigned long slack = 60'000 + t;
    require_call(prctl(PR_SET_TIMERSLACK, slack) == 0, "PR_SET_TIMERSLACK");
    const pid_t tid = gettid();
    for (uint64_t n = 0; n < iterations; ++n) {
      char now[16] = {};
      require_zero(pthread_getname_np(pthread_self(), now, sizeof(now)), "pthread_getname_np");
      require(name == now, "attributes: thread {} is named {}", t, now);
      cpu_set_t set;
      require_zero(pthread_getaffinity_np(pthread_self(), sizeof(set), &set), "pthread_getaffinity_np");
      require(CPU_EQUAL(&set, &bound), "attributes: thread {} may run on {} processors, not {}", t,
              CPU_COUNT(&set), CPU_COUNT(&bound));
      int got_policy = sched_getscheduler(0);
      require(got_policy == policy, "attributes: thread {} has policy {}, not {}", t, got_policy, policy);
      int got_nice = getpriority(PRIO_PROCESS, static_cast<id_t>(tid));
      require(t == 0 || got_nice == nice_value, "attributes: thread {} has nice value {}", t, got_nice);
      require(gettid() == tid, "attributes: thread {} became {}", tid, gettid());
      require(prctl(PR_GET_TIMERSLACK) == static_cast<int>(slack), "attributes: thread {} has timer slack {}",
              t, prctl(PR_GET_TIMERSLACK));
    }
    pthread_setname_np(pthread_self(), old_name.c_str());
    pthread_setaffinity_np(pthread_self(), sizeof(available), &available);
  });
  return fmt::format("{} looks by {} threads", kThreads * iterations, kThreads);
}

}  // namespace threads
