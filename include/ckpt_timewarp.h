/* Optimistic simulation: models written as event handlers with a state, run one event after another, on
 * threads that go back when they were too early (Time Warp), or on several processes over MPI.
 *
 * A model is a set of logical processes (LPs). Each has a state, receives events in the order of their time
 * stamps, and schedules events by sending messages. The result is the same, to the last bit, for every
 * engine, number of threads, way of going back, queue and window.
 *
 * What a handler must keep to, so that it can be undone and repeated:
 *   - it reads and writes its LP's state, which is one block of bytes without pointers into itself, and
 *     nothing else that changes;
 *   - it draws random numbers from ckpt_tw_random() and its like only;
 *   - it prints, counts and writes files in `commit`, which is called once for each event, never undone.
 *
 * Threads: handlers of one LP are called by one thread at a time; those of different LPs at the same time.
 * Errors: ckpt_tw_run() returns a code of ckpt_tw_code and leaves one line in result->error. */
#ifndef CKPT_TIMEWARP_H_
#define CKPT_TIMEWARP_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ckpt_tw_code {
  CKPT_TW_OK = 0,
  CKPT_TW_USAGE = 64,       /* wrong options */
  CKPT_TW_UNAVAILABLE = 69, /* asked for what this machine does not have: MPI, Intel DSA */
  CKPT_TW_SYSTEM = 71,      /* a system call failed */
  CKPT_TW_MODEL = 76,       /* the model broke a rule: the line names the LP and the event */
  CKPT_TW_MEMORY = 79       /* the memory limit is below what the simulation needs at one instant */
};

enum ckpt_tw_engine { CKPT_TW_SEQUENTIAL = 0, CKPT_TW_OPTIMISTIC = 1 };

/* How an LP goes back. */
enum ckpt_tw_way {
  CKPT_TW_COPY = 0,        /* the state is copied before each event, or before each `every`-th */
  CKPT_TW_INCREMENTAL = 1, /* the model names what it will overwrite: ckpt_tw_save() */
  CKPT_TW_REVERSE = 2,     /* the model has an inverse for each event */
  CKPT_TW_CCL = 3          /* non-blocking copies (Santoro and Quaglia, CCL v3.0) */
};

enum ckpt_tw_queue { CKPT_TW_LADDER = 0, CKPT_TW_HEAP = 1, CKPT_TW_CALENDAR = 2, CKPT_TW_SPLAY = 3 };

/* Who makes the non-blocking copies of CKPT_TW_CCL. */
enum ckpt_tw_copier {
  CKPT_TW_DEVICE = 0, /* the emulated DMA device, in real time, its work done by the thread that asks */
  CKPT_TW_DEVICE_THREAD = 1, /* the emulated DMA device on a thread of its own */
  CKPT_TW_HELPER = 2,        /* a thread of its own that copies as fast as it can */
  CKPT_TW_DSA = 3            /* Intel DSA */
};

/* An LP as its handlers see it. Only the engine writes these fields. */
typedef struct ckpt_tw_lp {
  uint64_t random; /* position in the LP's stream of random numbers; saved and restored with the LP */
  double now;      /* time stamp of the event */
  uint32_t id;     /* 0 to lps - 1 */
  uint32_t flags;  /* the engine's */
} ckpt_tw_lp;

typedef struct ckpt_tw_saving {
  enum ckpt_tw_way way;
  uint32_t every; /* COPY: a copy before each n-th event; 0: adapted while it runs; 1 is the default */
  int check;      /* REVERSE: run forward, back, compare, and forward again */
} ckpt_tw_saving;

typedef struct ckpt_tw_model {
  uint32_t lps;
  size_t state_bytes;   /* of one LP, at most; all zero before init */
  size_t message_bytes; /* of one message, at most 65535 */
  /* Time 0: sends the LP's first events. */
  void (*init)(ckpt_tw_lp* lp, void* state);
  void (*event)(ckpt_tw_lp* lp, void* state, const void* message, size_t bytes);
  /* Undoes the event: leaves the state as it was before it. Random numbers and messages are the engine's
   * to undo. What the event left in *ckpt_tw_bits() is there. NULL: the model has no inverse. */
  void (*reverse)(ckpt_tw_lp* lp, void* state, const void* message, size_t bytes);
  /* The event is final; NULL if nothing has to be done. In the order of time for each LP. */
  void (*commit)(ckpt_tw_lp* lp, double time, const void* message, size_t bytes);
  /* After the end, one LP after another, with the final state; NULL if not needed. */
  void (*finish)(ckpt_tw_lp* lp, const void* state);
  /* NULL: options->saving for all. */
  ckpt_tw_saving (*saving_of)(uint32_t lp, void* context);
  /* Which of the threads an LP runs on; NULL: in blocks. */
  uint32_t (*place_of)(uint32_t lp, uint32_t threads, void* context);
  void* context; /* ckpt_tw_context() */
} ckpt_tw_model;

typedef struct ckpt_tw_options {
  enum ckpt_tw_engine engine;
  uint32_t threads; /* OPTIMISTIC: 1 to 256 */
  uint64_t seed;
  double end; /* events before this time are executed */
  ckpt_tw_saving saving;
  enum ckpt_tw_queue queue;
  double window;         /* how far ahead of the slowest thread; 0: adapted, infinity: not bounded */
  uint64_t memory_bytes; /* of events and history, all threads; 0: not limited */
  uint32_t gvt_events;   /* a thread asks for a new GVT after so many events; 0: 1024 or less (timewarp.md) */
  uint32_t batch;        /* events between two looks at the other threads; 0: the default */
  uint32_t page_kib;     /* memory of events and states: 4, 2048 (default) or 1048576 KiB pages */
  int colocate;          /* 1: the copy of a state lies behind its event; 0 (default): in a pool of its own */
  int prefetch;          /* 1 (default): fetch events and states into the cache ahead of time */
  int digest;            /* 1: result->events_digest is computed, which costs a little */
  enum ckpt_tw_copier copier;       /* for CKPT_TW_CCL */
  double threshold;                 /* CKPT_TW_CCL: 0 to 1; less of a copy done than that: it is given up */
  int monoprogrammed;               /* CKPT_TW_CCL: 1: one copy at a time, as in CCL v2.4 */
  uint64_t device_bytes_per_second; /* CKPT_TW_CCL: of the emulated device; 0: not limited */
  uint64_t finish_bytes_per_second; /* CKPT_TW_CCL: of the processor that finishes a copy; 0: not limited */
  uint32_t burst_bytes;             /* CKPT_TW_CCL: of one transfer; 0: 1024 */
  const char* trace;                /* a file for a Chrome trace of events, rollbacks and GVT, or NULL */
  double progress;                  /* seconds between two lines on standard error; 0: none */
  const char* mpi;                  /* NULL: one process; "openmpi", "mpich" or the path of a transport */
} ckpt_tw_options;

typedef struct ckpt_tw_result {
  int code; /* ckpt_tw_code */
  char error[400];
  double seconds; /* of the run, without setting up */
  uint64_t committed, executed, rolled_back, rollbacks, stragglers, cancelled,
      repeated; /* events but rollbacks */
  uint64_t gvt_rounds, saves, save_bytes, restores, stalls, cancelbacks;
  uint64_t copies_committed, copies_aborted, copies_finished, copies_forced; /* CKPT_TW_CCL */
  uint64_t remote_messages;                                                  /* to other threads */
  uint64_t peak_bytes;    /* of events and history, the sum of the threads' peaks */
  uint64_t bytes_an_lp;   /* fixed memory of an LP: state, engine's part */
  uint64_t state_digest;  /* of all states, random streams and counts, at the end */
  uint64_t events_digest; /* of all committed events; 0 without options->digest */
  double window;          /* at the end, the smallest of the threads */
  uint32_t processes, process;
} ckpt_tw_result;

void ckpt_tw_defaults(ckpt_tw_options* options);
/* Runs the model to the end. Returns result->code. */
int ckpt_tw_run(const ckpt_tw_model* model, const ckpt_tw_options* options, ckpt_tw_result* result);

/* For handlers. ------------------------------------------------------------------------------------- */

/* Schedules an event for LP `to` at now + delay; delay 0 is allowed. `bytes` of `message` are copied. */
void ckpt_tw_send(ckpt_tw_lp* lp, uint32_t to, double delay, const void* message, size_t bytes);
void* ckpt_tw_context(const ckpt_tw_lp* lp);
/* 64 bits of the event, 0 before it: for its inverse. */
uint64_t* ckpt_tw_bits(ckpt_tw_lp* lp);
/* CKPT_TW_INCREMENTAL: the event is about to overwrite these bytes of the state. Free for other ways. */
void ckpt_tw_save(ckpt_tw_lp* lp, const void* at, size_t bytes);
/* The part of the state that is used, all of it at first; at most state_bytes. What grows is zero. */
void ckpt_tw_resize(ckpt_tw_lp* lp, size_t bytes);
size_t ckpt_tw_size(const ckpt_tw_lp* lp);
/* The model has found an error: the run ends with CKPT_TW_MODEL if this event is ever committed. */
void ckpt_tw_fail(ckpt_tw_lp* lp, const char* what);

/* SplitMix64: a counter and a hash of it, so that going back costs nothing. */
static inline uint64_t ckpt_tw_random(ckpt_tw_lp* lp) {
  uint64_t z = (lp->random += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
/* 0 <= x < 1 */
static inline double ckpt_tw_uniform(ckpt_tw_lp* lp) {
  return (double)(ckpt_tw_random(lp) >> 11) * 0x1.0p-53;
}
/* 0 <= x < n, n at most 2^32 - 1 */
static inline uint32_t ckpt_tw_below(ckpt_tw_lp* lp, uint32_t n) {
  return (uint32_t)(((ckpt_tw_random(lp) >> 32) * n) >> 32);
}
static inline double ckpt_tw_exponential(ckpt_tw_lp* lp, double mean) {
  return -mean * log(1.0 - ckpt_tw_uniform(lp));
}

/* CCL v3.0 by its own names, for other engines (Santoro and Quaglia, sections 2.2, 3.3, 3.4). --------- */
/* One thread, as a process of CCL has one. LP ids are 0 to lps - 1. The caller passes threshold 0 when a
 * checkpoint may not be given up: the paper does after 40 events without one. Functions that return int
 * return 0 or a ckpt_tw_code, and leave a line in ccl_error(). */

/* Uses copier, monoprogrammed, device_bytes_per_second, finish_bytes_per_second and burst_bytes. */
int ccl_init(const ckpt_tw_options* options, int lps, size_t largest_state);
/* The LP's state, which stays where it is. */
int ccl_register(int LP_id, void* state, size_t bytes);
/* Queues a copy of the state onto the LP's stack of checkpoints and returns. Monoprogrammed: the
 * checkpoint requested last, whichever LP's, is re-synchronised first, with the threshold last used.
 * If one of this LP is still under way, it is re-synchronised with that threshold as well. */
int non_block_ckpt(int LP_id, double simulation_clock);
enum ccl_outcome { CCL_NOTHING = 0, CCL_COMMITTED = 1, CCL_ABORTED = 2 };
/* Before the LP runs again: gives its checkpoint up if less than the threshold (0 to 1) of it is done, else
 * completes it. Returns a ccl_outcome, or -1 with ccl_error(). */
int ckpt_cond_abort(int LP_id, float threshold);
/* Puts the newest checkpoint at or before `clock` back, drops those after it, and returns its clock; NAN
 * with ccl_error() if there is none. The caller repeats the events in between. */
double state_restore(int LP_id, double clock);
/* Drops the checkpoints that no rollback to gvt or later needs. Returns how many there are still. */
int fossil_collection(int LP_id, double gvt);
const char* ccl_error(void);
void ccl_finalize(void);

#ifdef __cplusplus
}
#endif
#endif /* CKPT_TIMEWARP_H_ */
