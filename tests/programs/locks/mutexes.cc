#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/programs/locks/locks.h"

namespace locks {

using namespace victim;

namespace {

constexpr unsigned kThreads = 3;

// What the mutex guards; in memory shared with other processes where its kind asks for that.
struct Guarded {
  pthread_mutex_t mutex;
  uint64_t turns;
  int holder;  // -1: free
  uint64_t done[kThreads];
};

Guarded* make_guarded(const MutexKind& kind) {
  int flags = MAP_ANONYMOUS | (kind.shared ? MAP_SHARED : MAP_PRIVATE);
  void* p = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, flags, -1, 0);
  require_call(p != MAP_FAILED, "mmap");
  auto* guarded = static_cast<Guarded*>(p);
  guarded->holder = -1;
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  require_zero(pthread_mutexattr_settype(&attributes, kind.type), "pthread_mutexattr_settype");
  if (kind.robust) pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  if (kind.inherits) pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
  if (kind.shared) pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  require_zero(pthread_mutex_init(&guarded->mutex, &attributes), "pthread_mutex_init");
  pthread_mutexattr_destroy(&attributes);
  return guarded;
}

void take_turn(Guarded& guarded, const MutexKind& kind, unsigned t, Random& random) {
  require_zero(pthread_mutex_lock(&guarded.mutex), "pthread_mutex_lock");
  require(guarded.holder == -1, "mutex: thread {} has it while thread {} holds it", t, guarded.holder);
  guarded.holder = static_cast<int>(t);
  uint64_t turns = guarded.turns;
  if (random.below(40) == 0) usleep(200);
  if (random.below(16) == 0) {
    int again = pthread_mutex_trylock(&guarded.mutex);
    if (kind.type == PTHREAD_MUTEX_RECURSIVE) {
      require_zero(again, "pthread_mutex_trylock of a recursive mutex by its holder");
      require_zero(pthread_mutex_lock(&guarded.mutex),
                   "pthread_mutex_lock of a recursive mutex by its holder");
      require_zero(pthread_mutex_unlock(&guarded.mutex), "pthread_mutex_unlock");
      require_zero(pthread_mutex_unlock(&guarded.mutex), "pthread_mutex_unlock");
    } else {
      require(again == EBUSY, "mutex: trylock by the holder gives {}", std::strerror(again));
    }
    if (kind.type == PTHREAD_MUTEX_ERRORCHECK) {
      again = pthread_mutex_lock(&guarded.mutex);
      require(again == EDEADLK, "mutex: locking an error-checking mutex twice gives {}",
              std::strerror(again));
    }
  }
  require(guarded.holder == static_cast<int>(t) && guarded.turns == turns,
          "mutex: thread {} came in while thread {} held it", guarded.holder, t);
  guarded.turns = turns + 1;
  ++guarded.done[t];
  guarded.holder = -1;
  require_zero(pthread_mutex_unlock(&guarded.mutex), "pthread_mutex_unlock");
  if (kind.type == PTHREAD_MUTEX_ERRORCHECK && random.below(16) == 0) {
    int wrong = pthread_mutex_unlock(&guarded.mutex);
    require(wrong == EPERM, "mutex: unlocking a mutex of others gives {}", std::strerror(wrong));
  }
}

}  // namespace

std::string mutexes(const MutexKind& kind, uint64_t iterations) {
  Guarded* guarded = make_guarded(kind);
  run_threads(kThreads, [&](unsigned t) {
    Random random(600 + t);
    for (uint64_t n = 0; n < iterations; ++n) {
      take_turn(*guarded, kind, t, random);
      if (random.below(50) == 0) std::this_thread::yield();
    }
  });
  require(guarded->turns == kThreads * iterations, "mutex: {} turns instead of {}", guarded->turns,
          kThreads * iterations);
  require_zero(pthread_mutex_destroy(&guarded->mutex), "pthread_mutex_destroy");
  uint64_t turns = guarded->turns;
  munmap(guarded, kPage);
  return fmt::format("{} turns", turns);
}

std::string owner_dies(uint64_t iterations) {
  Guarded* guarded[2] = {make_guarded({PTHREAD_MUTEX_NORMAL, true, false, true}),
                         make_guarded({PTHREAD_MUTEX_NORMAL, true, true, true})};
  for (uint64_t n = 0; n < iterations; ++n) {
    Guarded& g = *guarded[n % 2];
    std::thread owner([&] {
      int error = pthread_mutex_lock(&g.mutex);
      require_zero(error, "ownerdies: the owner's lock");
      g.holder = static_cast<int>(n);
      if (n % 64 < 2) usleep(500);
      // Ends here and takes the lock along.
    });
    std::thread next([&] {
      int error;
      // Before the owner has it, we do: then the owner comes after us.
      for (;;) {
        error = pthread_mutex_lock(&g.mutex);
        if (error == EOWNERDEAD) break;
        require_zero(error, "ownerdies: lock");
        require(g.holder == -1, "ownerdies: no EOWNERDEAD after owner {}", g.holder);
        require_zero(pthread_mutex_unlock(&g.mutex), "ownerdies: unlock");
        std::this_thread::yield();
      }
      require(g.holder == static_cast<int>(n), "ownerdies: owner {} instead of {}", g.holder, n);
      g.holder = -1;
      require_zero(pthread_mutex_consistent(&g.mutex), "pthread_mutex_consistent");
      require_zero(pthread_mutex_unlock(&g.mutex), "ownerdies: unlock");
    });
    owner.join();
    next.join();
  }
  return fmt::format("{} owners ended, {} mutexes repaired", iterations, iterations);
}

}  // namespace locks
