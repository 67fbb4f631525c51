#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/programs/locks/locks.h"

namespace locks {

using namespace victim;

namespace {

// Zeroed memory that other processes could share.
template <typename T>
T* shared_memory() {
  void* p = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require_call(p != MAP_FAILED, "mmap");
  return static_cast<T*>(p);
}

}  // namespace

// Two producers and two consumers on a short queue, once with private and once with shared objects.
std::string conditions(uint64_t iterations) {
  struct Queue {
    pthread_mutex_t mutex;
    pthread_cond_t not_full, not_empty;
    uint64_t items[5];
    uint64_t put, taken, sum;
  };
  uint64_t total = 0;
  for (int pshared : {PTHREAD_PROCESS_PRIVATE, PTHREAD_PROCESS_SHARED}) {
    auto* q = shared_memory<Queue>();
    pthread_mutexattr_t mutex_attributes;
    pthread_mutexattr_init(&mutex_attributes);
    pthread_mutexattr_setpshared(&mutex_attributes, pshared);
    pthread_mutex_init(&q->mutex, &mutex_attributes);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setpshared(&attributes, pshared);
    pthread_cond_init(&q->not_full, &attributes);
    pthread_cond_init(&q->not_empty, &attributes);
    uint64_t each = iterations / 2;
    run_threads(4, [&](unsigned t) {
      for (uint64_t n = 0; n < each; ++n) {
        require_zero(pthread_mutex_lock(&q->mutex), "pthread_mutex_lock");
        if (t < 2) {
          while (q->put - q->taken == 5)
            require_zero(pthread_cond_wait(&q->not_full, &q->mutex), "pthread_cond_wait");
          q->items[q->put++ % 5] = n;
          pthread_cond_signal(&q->not_empty);
        } else {
          while (q->put == q->taken)
            require_zero(pthread_cond_wait(&q->not_empty, &q->mutex), "pthread_cond_wait");
          q->sum += q->items[q->taken++ % 5];
          pthread_cond_signal(&q->not_full);
        }
        require(q->put - q->taken <= 5, "conditions: {} put, {} taken", q->put, q->taken);
        require_zero(pthread_mutex_unlock(&q->mutex), "pthread_mutex_unlock");
      }
    });
    require(q->put == 2 * each && q->taken == 2 * each && q->sum == each * (each - 1),
            "conditions: {} put, {} taken, sum {}", q->put, q->taken, q->sum);
    total += q->taken;
  }
  return fmt::format("{} items", total);
}

std::string barriers(uint64_t iterations) {
  constexpr unsigned kThreads = 4;
  pthread_barrier_t barrier;
  require_zero(pthread_barrier_init(&barrier, nullptr, kThreads), "pthread_barrier_init");
  std::atomic<uint64_t> rounds[kThreads] = {};
  std::atomic<uint64_t> serial{0};
  run_threads(kThreads, [&](unsigned t) {
    for (uint64_t n = 1; n <= iterations; ++n) {
      rounds[t].store(n);
      int got = pthread_barrier_wait(&barrier);
      if (got == PTHREAD_BARRIER_SERIAL_THREAD)
        serial.fetch_add(1);
      else
        require_zero(got, "pthread_barrier_wait");
      for (auto& r : rounds)
        require(r.load() >= n, "barriers: a thread is at {} after round {}", r.load(), n);
      pthread_barrier_wait(&barrier);
    }
  });
  require(serial.load() == iterations, "barriers: {} serial threads in {} rounds", serial.load(), iterations);
  pthread_barrier_destroy(&barrier);
  return fmt::format("{} rounds", iterations);
}

std::string rwlocks(uint64_t iterations) {
  pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
  uint64_t first = 0, second = 0;
  std::atomic<int> readers{0};
  std::atomic<bool> writing{false};
  run_threads(4, [&](unsigned t) {
    Random random(700 + t);
    for (uint64_t n = 0; n < iterations; ++n) {
      if (t < 2) {
        require_zero(pthread_rwlock_wrlock(&lock), "pthread_rwlock_wrlock");
        require(!writing.exchange(true) && readers.load() == 0, "rwlocks: a writer is not alone");
        ++first;
        if (random.below(200) == 0) usleep(100);
        ++second;
        writing.store(false);
      } else {
        require_zero(pthread_rwlock_rdlock(&lock), "pthread_rwlock_rdlock");
        readers.fetch_add(1);
        require(!writing.load() && first == second, "rwlocks: a reader sees {} and {}", first, second);
        if (random.below(200) == 0) usleep(100);
        readers.fetch_sub(1);
      }
      require_zero(pthread_rwlock_unlock(&lock), "pthread_rwlock_unlock");
    }
  });
  require(first == 2 * iterations, "rwlocks: {} writes", first);
  return fmt::format("{} writes, {} reads", first, 2 * iterations);
}

// A token goes back and forth, and a second semaphore counts to 3.
std::string semaphores(uint64_t iterations) {
  struct Semaphores {
    sem_t ping, pong, three;
    std::atomic<int> inside;
    uint64_t token;
  };
  for (int pshared : {0, 1}) {
    auto* s = shared_memory<Semaphores>();
    sem_init(&s->ping, pshared, 1);
    sem_init(&s->pong, pshared, 0);
    sem_init(&s->three, pshared, 3);
    run_threads(6, [&](unsigned t) {
      for (uint64_t n = 0; n < iterations / 4; ++n) {
        if (t < 2) {
          require_call(sem_wait(t == 0 ? &s->ping : &s->pong) == 0, "sem_wait");
          require(s->token == 2 * n + t, "semaphores: token {} in step {}", s->token, n);
          ++s->token;
          require_call(sem_post(t == 0 ? &s->pong : &s->ping) == 0, "sem_post");
        } else {
          require_call(sem_wait(&s->three) == 0, "sem_wait");
          int inside = s->inside.fetch_add(1) + 1;
          require(inside <= 3, "semaphores: {} threads inside", inside);
          if (n % 256 == 0) usleep(100);
          s->inside.fetch_sub(1);
          require_call(sem_post(&s->three) == 0, "sem_post");
        }
      }
    });
    int value = -1;
    sem_getvalue(&s->three, &value);
    require(value == 3, "semaphores: value {} at the end", value);
  }
  return fmt::format("{} steps of the token", iterations);
}

std::string spinlocks(uint64_t iterations) {
  pthread_spinlock_t lock;
  pthread_spin_init(&lock, PTHREAD_PROCESS_PRIVATE);
  uint64_t a = 0, b = 0;
  run_threads(2, [&](unsigned) {
    for (uint64_t n = 0; n < iterations; ++n) {
      pthread_spin_lock(&lock);
      require(a == b, "spinlocks: {} and {}", a, b);
      a = a + 1;
      b = b + 1;
      pthread_spin_unlock(&lock);
    }
  });
  require(a == 2 * iterations, "spinlocks: {} turns", a);
  return fmt::format("{} turns", a);
}

std::string once(uint64_t iterations) {
  static std::atomic<uint64_t> calls;
  auto initialize = [] {
    if (calls.load() % 128 == 0) usleep(300);
    calls.fetch_add(1);
  };
  for (uint64_t n = 0; n < iterations; ++n) {
    pthread_once_t control = PTHREAD_ONCE_INIT;
    run_threads(3, [&](unsigned) {
      require_zero(pthread_once(&control, initialize), "pthread_once");
      require(calls.load() == n + 1, "once: {} calls after {} rounds", calls.load(), n + 1);
    });
  }
  return fmt::format("{} calls", calls.load());
}

}  // namespace locks
