#include <pthread.h>

#include "tests/programs/locks/locks.h"

int main(int argc, char** argv) {
  using namespace locks;
  auto mutex = [](const char* name, const char* description, MutexKind kind) {
    return victim::Exercise{name, description, 10'000, [kind](uint64_t n) { return mutexes(kind, n); }};
  };
  return victim::run_victim(
      {"locks",
       "Holds and waits for every kind of lock.",
       {mutex("normal", "plain mutex", {PTHREAD_MUTEX_NORMAL, false, false, false}),
        mutex("recursive", "recursive mutex", {PTHREAD_MUTEX_RECURSIVE, false, false, false}),
        mutex("errorcheck", "error-checking mutex", {PTHREAD_MUTEX_ERRORCHECK, false, false, false}),
        mutex("adaptive", "adaptive mutex", {PTHREAD_MUTEX_ADAPTIVE_NP, false, false, false}),
        mutex("robust", "robust mutex", {PTHREAD_MUTEX_NORMAL, true, false, false}),
        mutex("pi", "priority-inheriting mutex", {PTHREAD_MUTEX_NORMAL, false, true, false}),
        mutex("shared", "process-shared mutex", {PTHREAD_MUTEX_NORMAL, false, false, true}),
        mutex("robustpi", "robust, priority-inheriting, process-shared, recursive mutex",
              {PTHREAD_MUTEX_RECURSIVE, true, true, true}),
        {"ownerdies", "robust mutexes whose owner ends", 4'000, owner_dies},
        {"conditions", "condition variables, private and shared", 90'000, conditions},
        {"barriers", "barriers", 60'000, barriers},
        {"rwlocks", "read-write locks", 60'000, rwlocks},
        {"semaphores", "semaphores, private and shared", 120'000, semaphores},
        {"spinlocks", "spin locks", 200'000, spinlocks},
        {"once", "pthread_once", 10'000, once}}},
      argc, argv);
}
