/* ckpt_rt: the C interface for programs that know they are checkpointed.
 *
 * No program needs it. One that wants to say when a checkpoint is good, keep a scratch buffer out
 * of the image, or know that it came back, includes this header, in one of two ways:
 *
 *   1. link with -lckpt_rt: the functions are those of the library, which is then always loaded;
 *   2. #define CKPT_RT_OPTIONAL before the include, and link with nothing: the functions below
 *      become inline wrappers that look the library up with dlsym(3) when first called. Started
 *      plainly the program runs as if they did nothing (see each one); started with
 *      `ckpt run -- prog` or LD_PRELOAD=libckpt_rt.so they work.
 *
 * Unless said otherwise a function returns 0, or a positive code of docs/exit_codes.md
 * (CKPT_RT_*, below). None of them changes errno. C11 and C++11 or later.
 */
#ifndef CKPT_RT_H
#define CKPT_RT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_RT_API_VERSION 1

enum {
  CKPT_RT_OK = 0,
  CKPT_RT_USAGE = 64,         /* a wrong argument */
  CKPT_RT_NOT_LOADED = 67,    /* the library is not loaded, or loaded with CKPT_DISABLE=1 */
  CKPT_RT_UNAVAILABLE = 69,   /* another checkpoint is being taken; a table is full */
  CKPT_RT_GIVEN_UP = 70,      /* the checkpoint was given up; the program and older images are whole */
  CKPT_RT_CANNOT_CREATE = 73, /* the image directory or file cannot be created */
  CKPT_RT_IO = 74,            /* write error, disk full, file size limit */
  CKPT_RT_TIMEOUT = 75,       /* a thread did not stop in time */
  CKPT_RT_UNSUPPORTED = 78    /* the process has state that cannot be saved */
};

/* What a checkpoint cost. Set `size` to sizeof(struct ckpt_rt_result) before the call: the library
 * fills in no more than that, so that a program built against an older header goes on working.
 * In a restarted process `restarted` alone has a value: the image was fixed before the rest was known.
 * Times in nanoseconds, sizes in bytes. */
struct ckpt_rt_result {
  size_t size;
  uint32_t restarted;         /* 0: the call returns in the process that asked; n > 0: it returns in
                                 the n-th restart, from this very image */
  uint32_t attempts;          /* 1, more if a checkpoint had to be given up and taken again */
  uint64_t sequence;          /* number of the image, from 1 */
  int64_t pause_ns;           /* how long the threads that worked stood; if none did, all */
  int64_t longest_wait_ns;    /* longest wait of a thread on a protected page */
  int64_t durable_ns;         /* from request until the image was durable */
  uint64_t forced_copies;     /* segments copied because a thread wanted to write them */
  uint64_t sequential_copies; /* segments copied in order */
  uint64_t faults;            /* writes that met a protected page */
  uint64_t bytes_memory;      /* memory in the image */
  uint64_t bytes_written;     /* bytes in the file */
  uint32_t threads;
  uint32_t reserved;
  char mode[16];    /* "realtime", "sequential", "fork" */
  char image[1024]; /* path of the image */
  char error[320];  /* one line when the call does not return 0, else empty */
};

enum ckpt_rt_callback_kind {
  CKPT_RT_BEFORE_CHECKPOINT = 1, /* all threads stand, nothing is saved yet: what it does is in the image */
  CKPT_RT_AFTER_CHECKPOINT = 2,  /* the image is fixed, the threads are about to be released */
  CKPT_RT_AFTER_RESTART = 3      /* in a restarted process, before any thread goes on */
};

/* `context` is the pointer given to ckpt_rt_add_callback(). Called on some thread of the program in
 * the context of a signal handler: only what signal-safety(7) allows, and no ckpt_rt function but
 * ckpt_rt_restarted() and ckpt_rt_is_active(). No other checkpoint begins while it runs. */
typedef void (*ckpt_rt_callback)(enum ckpt_rt_callback_kind kind, void* context);

#ifndef CKPT_RT_OPTIONAL

/* 1 if the library is loaded and takes checkpoints, else 0. Async-signal-safe. */
int ckpt_rt_is_active(void);

/* How often this process has been restarted: 0 in the original run, 1 after the first restart, and
 * so on. Async-signal-safe. */
uint32_t ckpt_rt_restarted(void);

/* Takes a checkpoint and returns when it is durable. `result` may be NULL. Like fork(2) it returns
 * more than once: in the process that asked, and, with result->restarted > 0, in every process
 * restarted from the image. Never call it inside a critical section (CKPT_RT_USAGE). */
int ckpt_rt_checkpoint(struct ckpt_rt_result* result);

/* The process goes back, in place, to its newest checkpoint (image NULL) or to that of `image`, an image of
 * this very process (docs/back.md). Of a job all processes go back to its newest checkpoint. When that works the call does not return: the program goes on where the
 * checkpoint found it, and ckpt_rt_restarted() is one more. It returns when nothing was changed: with a code
 * of enum ckpt_rt_code, and, in `error` of `error_size` bytes if that is not NULL, one line. Runs the command
 * `ckpt` that belongs to the library. Never call it inside a critical section (CKPT_RT_USAGE). */
int ckpt_rt_back(const char* image, char* error, size_t error_size);

/* Between enter and leave the calling thread is inside a critical section: no checkpoint stops the
 * threads while any thread is inside one. Sections nest; the same thread leaves that entered. A
 * checkpoint waits for them at most CKPT_STOP_TIMEOUT, then it is given up and says so. leave
 * returns CKPT_RT_USAGE when the thread is in no section. Both are cheap and async-signal-safe. */
int ckpt_rt_enter_critical(void);
int ckpt_rt_leave_critical(void);

/* Registers a function, called each time, in the order of registration (CKPT_RT_AFTER_CHECKPOINT:
 * in reverse). CKPT_RT_UNAVAILABLE when 64 are registered. Registrations outlive a restart. */
int ckpt_rt_add_callback(enum ckpt_rt_callback_kind kind, ckpt_rt_callback function, void* context);
/* Removes one registration that was made with the same three values; CKPT_RT_USAGE if there is none. */
int ckpt_rt_remove_callback(enum ckpt_rt_callback_kind kind, ckpt_rt_callback function, void* context);

/* Keeps the whole pages inside [start, start + length) out of the images taken from now on: after a
 * restart they are mapped and read as zeros. Memory that other processes or the kernel rely on (stacks,
 * shared memory) must stay in. CKPT_RT_UNAVAILABLE when 1024 ranges are excluded. */
int ckpt_rt_exclude(const void* start, size_t length);
/* Undoes ckpt_rt_exclude() for these pages, also in part. Unmapping memory does not undo it. */
int ckpt_rt_include(const void* start, size_t length);

#else /* CKPT_RT_OPTIONAL */

/* dlsym is declared here so that <dlfcn.h> with its feature macros is not needed; RTLD_DEFAULT is a
 * null pointer in glibc. A lookup that found nothing is remembered as well. */
extern void* dlsym(void* handle, const char* name)
#ifdef __cplusplus
    noexcept(true)
#endif
        ;

static inline void* ckpt_rt_lookup_(void** cache, const char* name) {
  void* found = __atomic_load_n(cache, __ATOMIC_ACQUIRE);
  if (found == 0) {
    found = dlsym((void*)0, name);
    if (found == 0) found = (void*)cache;
    __atomic_store_n(cache, found, __ATOMIC_RELEASE);
  }
  return found == (void*)cache ? (void*)0 : found;
}

#define CKPT_RT_WRAP_(type, name, params, args, without)      \
  static inline type name params {                            \
    static void* cache_;                                      \
    type(*function_) params;                                  \
    void* found_ = ckpt_rt_lookup_(&cache_, #name);           \
    if (found_ == (void*)0) return without;                   \
    __builtin_memcpy(&function_, &found_, sizeof(function_)); \
    return function_ args;                                    \
  }

/* Without the library: not active, never restarted, critical sections and callbacks and exclusions do
 * nothing and return 0, and ckpt_rt_checkpoint() and
 * ckpt_rt_back() return CKPT_RT_NOT_LOADED. */
CKPT_RT_WRAP_(int, ckpt_rt_is_active, (void), (), 0)
CKPT_RT_WRAP_(uint32_t, ckpt_rt_restarted, (void), (), 0)
CKPT_RT_WRAP_(int, ckpt_rt_checkpoint, (struct ckpt_rt_result * result), (result), CKPT_RT_NOT_LOADED)
CKPT_RT_WRAP_(int, ckpt_rt_back, (const char* image, char* error, size_t error_size),
              (image, error, error_size), CKPT_RT_NOT_LOADED)
CKPT_RT_WRAP_(int, ckpt_rt_enter_critical, (void), (), CKPT_RT_OK)
CKPT_RT_WRAP_(int, ckpt_rt_leave_critical, (void), (), CKPT_RT_OK)
CKPT_RT_WRAP_(int, ckpt_rt_add_callback,
              (enum ckpt_rt_callback_kind kind, ckpt_rt_callback function, void* context),
              (kind, function, context), CKPT_RT_OK)
CKPT_RT_WRAP_(int, ckpt_rt_remove_callback,
              (enum ckpt_rt_callback_kind kind, ckpt_rt_callback function, void* context),
              (kind, function, context), CKPT_RT_OK)
CKPT_RT_WRAP_(int, ckpt_rt_exclude, (const void* start, size_t length), (start, length), CKPT_RT_OK)
CKPT_RT_WRAP_(int, ckpt_rt_include, (const void* start, size_t length), (start, length), CKPT_RT_OK)
#undef CKPT_RT_WRAP_

#endif /* CKPT_RT_OPTIONAL */

#ifdef __cplusplus
}
#endif

#endif /* CKPT_RT_H */
