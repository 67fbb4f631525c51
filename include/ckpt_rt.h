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
  CKPT_RT_USAGE = 64,           /* a wrong argument */
  CKPT_RT_NOT_LOADED = 67,      /* the library is not loaded, or loaded with CKPT_DISABLE=1 */
  CKPT_RT_UNAVAILABLE = 69,     /* another checkpoint is being taken; a table is full */
  CKPT_RT_GIVEN_UP = 70,        /* the checkpoint was given up; the program and older images are whole */
  CKPT_RT_CANNOT_CREATE = 73,   /* the image directory or file cannot be created */
  CKPT_RT_IO = 74,              /* write error, disk full, file size limit */
  CKPT_RT_TIMEOUT = 75,         /* a thread did not stop in time */
  CKPT_RT_NOT_RESTARTABLE = 76, /* the checkpoint is durable, but no restart of it can be */
  CKPT_RT_PERMISSION = 77,      /* not allowed, as for the key file */
  CKPT_RT_UNSUPPORTED = 78      /* the process has state that cannot be saved */
};

/* What a checkpoint cost. Set `size` to sizeof(struct ckpt_rt_result) before the call: the library
 * fills in no more than that, so that a program built against an older header goes on working.
 * In a restarted process `restarted` alone has a value: the image was fixed before the rest was known.
 * With CKPT_RT_NOT_RESTARTABLE all have values, and `error` says why no restart can be.
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
  char mode[16];    /* "realtime", "realtime-large", "standing", "concurrent", "sequential", "fork" */
  char image[1024]; /* path of the image */
  char error[320];  /* one line when the call does not return 0, else empty */
};

enum ckpt_rt_callback_kind {
  CKPT_RT_BEFORE_CHECKPOINT = 1, /* all threads stand, nothing is saved yet: what it does is in the image */
  CKPT_RT_AFTER_CHECKPOINT = 2,  /* the image is fixed, the threads are about to be released */
  CKPT_RT_AFTER_RESTART = 3,     /* in a restarted process, before any thread goes on */

  /* On the thread that ckpt_rt_serve() was given: any function of libc may be called. */
  CKPT_RT_PREPARE = 4,   /* a checkpoint was asked for, and waits; the program runs. See ckpt_rt_refuse() */
  CKPT_RT_DURABLE = 5,   /* later: it is durable */
  CKPT_RT_ABANDONED = 6, /* or it was given up, after PREPARE was called */
  CKPT_RT_CAME_BACK = 7  /* or this is a restarted process, and its threads go on */
};

/* `context` is the pointer given to ckpt_rt_add_callback(). The first three are called on some thread of the
 * program in the context of a signal handler: only what signal-safety(7) allows, and no ckpt_rt function but
 * ckpt_rt_restarted(), ckpt_rt_is_active() and ckpt_rt_next_message(). No other checkpoint begins while one
 * runs. */
typedef void (*ckpt_rt_callback)(enum ckpt_rt_callback_kind kind, void* context);

/* What a process of the job has posted to this one with ckpt_rt_post(). Set `size` to sizeof(struct
 * ckpt_rt_message). */
struct ckpt_rt_message {
  size_t size;
  const void* bytes; /* aligned to 8; until the next checkpoint begins */
  uint32_t length;
  int32_t pid;   /* of the sender, as its host counts */
  char host[64]; /* of the sender, in a job over several hosts; else empty */
};
enum { CKPT_RT_MOST_MESSAGE_BYTES = 4096 };

#ifndef CKPT_RT_OPTIONAL

/* 1 if the library is loaded and takes checkpoints, else 0. Async-signal-safe. */
int ckpt_rt_is_active(void);

/* How often this process has been restarted: 0 in the original run, 1 after the first restart, and
 * so on. Async-signal-safe. */
uint32_t ckpt_rt_restarted(void);

/* Takes a checkpoint and returns when it is durable. `result` may be NULL. Like fork(2) it returns
 * more than once: in the process that asked, and, with result->restarted > 0, in every process
 * restarted from the image. CKPT_RT_NOT_RESTARTABLE: the image is durable, and something in it (of a job: in
 * the image of one of its processes) keeps every restart from working; it replaces no older image.
 * Never call it inside a critical section (CKPT_RT_USAGE). */
int ckpt_rt_checkpoint(struct ckpt_rt_result* result);

/* The process goes back, in place, to its newest checkpoint (image NULL) or to that of `image`, an image of
 * this very process (docs/back.md). Of a job all processes go back to its newest checkpoint. When that works
 * the call does not return: the program goes on where the checkpoint found it, and ckpt_rt_restarted() is one
 * more. It returns when nothing was changed: with a code CKPT_RT_*, and, in `error` of `error_size` bytes if
 * that is not NULL, one line. Runs the command `ckpt` that belongs to the library. Never call it inside a
 * critical section (CKPT_RT_USAGE). */
int ckpt_rt_back(const char* image, char* error, size_t error_size);

/* Between enter and leave the calling thread is inside a critical section: no checkpoint stops the
 * threads while any thread is inside one. Sections nest; the same thread leaves that entered. A
 * checkpoint waits for them at most CKPT_STOP_TIMEOUT, then it is given up and says so. leave
 * returns CKPT_RT_USAGE when the thread is in no section. Both are cheap and async-signal-safe. */
int ckpt_rt_enter_critical(void);
int ckpt_rt_leave_critical(void);

/* Gives the calling thread to callbacks of the kinds from CKPT_RT_PREPARE on, and does not return. One thread
 * of a process; CKPT_RT_UNAVAILABLE: there is one already. While such a callback is registered no checkpoint
 * begins in a process without that thread: after CKPT_PREPARE_TIMEOUT it is given up. So a forked child needs
 * one of its own (pthread_atfork(3)). */
int ckpt_rt_serve(void);

/* In CKPT_RT_PREPARE: the checkpoint is given up, of the whole job, and says why in these words. */
void ckpt_rt_refuse(const char* why);

/* In CKPT_RT_PREPARE: posts a message to another process of the job. host NULL: on this host; pid 0: to all
 * but this one, with host NULL on all hosts. The processes of a job prepare in rounds. When all have come
 * back from CKPT_RT_PREPARE, what they have posted is handed out, and CKPT_RT_PREPARE is called again
 * everywhere, until a round in which nobody posts anything. What is posted to a process that is not there is
 * dropped. subject: who is to read it, at most 31 characters. CKPT_RT_USAGE: too long, or not in
 * CKPT_RT_PREPARE; CKPT_RT_UNAVAILABLE: more than 64 KiB in one round. */
int ckpt_rt_post(const char* subject, const char* host, int pid, const void* bytes, size_t length);

/* In CKPT_RT_PREPARE: the process `pid` of this host, a descendant of the job's in which the library is not
 * (a static program...), is saved and brought back by the caller, named `who` in the manifest. Without it the
 * checkpoint of such a job is refused. The caller sees to it that the process does nothing from now until
 * CKPT_RT_AFTER_CHECKPOINT, CKPT_RT_DURABLE or CKPT_RT_ABANDONED, and makes it again in
 * CKPT_RT_AFTER_RESTART. CKPT_RT_USAGE: not in CKPT_RT_PREPARE, or pid is none. */
int ckpt_rt_take_over(int pid, const char* who);

/* In CKPT_RT_PREPARE, of a job's checkpoint: the directory in which it is made, and the one that it is when
 * it counts; absolute paths, of at most `size` bytes each. A directory of the caller's in it, and files in
 * that, are pruned with the checkpoint. The caller makes them durable (fsync). CKPT_RT_UNAVAILABLE: this is a
 * checkpoint of one process alone, which is a file. */
int ckpt_rt_directory(char* now, char* later, size_t size);

/* The next message with that subject. *position: 0 for the first one since CKPT_RT_PREPARE was called first
 * for this checkpoint. CKPT_RT_UNAVAILABLE: no more. In CKPT_RT_PREPARE, and later in any callback: messages
 * are in the image. Async-signal-safe. */
int ckpt_rt_next_message(const char* subject, uint32_t* position, struct ckpt_rt_message* message);

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
 * nothing and return 0, ckpt_rt_refuse() does nothing, ckpt_rt_next_message() finds none, ckpt_rt_directory()
 * returns CKPT_RT_UNAVAILABLE, and ckpt_rt_checkpoint(), ckpt_rt_back(), ckpt_rt_serve(), ckpt_rt_post() and
 * ckpt_rt_take_over() return CKPT_RT_NOT_LOADED. */
CKPT_RT_WRAP_(int, ckpt_rt_is_active, (void), (), 0)
CKPT_RT_WRAP_(uint32_t, ckpt_rt_restarted, (void), (), 0)
CKPT_RT_WRAP_(int, ckpt_rt_checkpoint, (struct ckpt_rt_result * result), (result), CKPT_RT_NOT_LOADED)
CKPT_RT_WRAP_(int, ckpt_rt_back, (const char* image, char* error, size_t error_size),
              (image, error, error_size), CKPT_RT_NOT_LOADED)
CKPT_RT_WRAP_(int, ckpt_rt_enter_critical, (void), (), CKPT_RT_OK)
CKPT_RT_WRAP_(int, ckpt_rt_leave_critical, (void), (), CKPT_RT_OK)
CKPT_RT_WRAP_(int, ckpt_rt_serve, (void), (), CKPT_RT_NOT_LOADED)
CKPT_RT_WRAP_(int, ckpt_rt_post,
              (const char* subject, const char* host, int pid, const void* bytes, size_t length),
              (subject, host, pid, bytes, length), CKPT_RT_NOT_LOADED)
CKPT_RT_WRAP_(int, ckpt_rt_take_over, (int pid, const char* who), (pid, who), CKPT_RT_NOT_LOADED)
CKPT_RT_WRAP_(int, ckpt_rt_directory, (char* now, char* later, size_t size), (now, later, size),
              CKPT_RT_UNAVAILABLE)
CKPT_RT_WRAP_(int, ckpt_rt_next_message,
              (const char* subject, uint32_t* position, struct ckpt_rt_message* message),
              (subject, position, message), CKPT_RT_UNAVAILABLE)
static inline void ckpt_rt_refuse(const char* why) {
  static void* cache_;
  void (*function_)(const char*);
  void* found_ = ckpt_rt_lookup_(&cache_, "ckpt_rt_refuse");
  if (found_ == (void*)0) return;
  __builtin_memcpy(&function_, &found_, sizeof(function_));
  function_(why);
}
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
