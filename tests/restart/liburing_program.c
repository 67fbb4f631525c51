/* Uses io_uring by liburing, as it is told by lines of its standard input. Its argument says how the ring is
 * made. */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kBytes = 16 };

static int file;
static int taken_by_kernel; /* from memory, by a thread of its own */
static char expected[kBytes], got[kBytes];

static void fail(const char* what, int result) {
  printf("%s: %d\n", what, result);
  fflush(stdout);
  exit(1);
}

static void submit_read(struct io_uring* ring, unsigned long number) {
  struct io_uring_sqe* request = io_uring_get_sqe(ring);
  if (request == NULL) fail("no room", 0);
  memset(got, 0, sizeof(got));
  io_uring_prep_read(request, file, got, kBytes, 0);
  io_uring_sqe_set_data64(request, number);
  const int r = io_uring_submit(ring);
  /* Where a thread of the kernel takes them: what it has not taken yet, or nothing. */
  if (r < (taken_by_kernel ? 0 : 1)) fail("io_uring_submit", r);
}

static unsigned long take_one(struct io_uring* ring) {
  struct io_uring_cqe* completion;
  int r;
  do r = io_uring_wait_cqe(ring, &completion);
  while (r == -EINTR);
  if (r != 0) fail("io_uring_wait_cqe", r);
  if (completion->res != kBytes) fail("result", completion->res);
  const unsigned long number = io_uring_cqe_get_data64(completion);
  io_uring_cqe_seen(ring, completion);
  if (memcmp(got, expected, kBytes) != 0) fail("bytes", 0);
  return number;
}

static pthread_t waiter;

static atomic_int waiter_id;

static void* wait_for_one(void* ring) {
  struct io_uring_cqe* completion;
  waiter_id = (int)syscall(SYS_gettid);
  const int r = io_uring_wait_cqe(ring, &completion);
  if (r == 0) io_uring_cqe_seen(ring, completion);
  return (void*)(long)r;
}

/* Another thread waits in the kernel, in an idle ring. */
static void begin_wait(struct io_uring* ring) {
  if (pthread_create(&waiter, NULL, wait_for_one, ring) != 0) fail("pthread_create", 0);
  for (long call = 0; call != SYS_io_uring_enter;) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", waiter_id);
    FILE* in = fopen(path, "r");
    if (in == NULL || fscanf(in, "%ld", &call) != 1) call = 0;
    if (in != NULL) fclose(in);
  }
}

static void serve(struct io_uring* ring) {
  char line[64];
  while (fgets(line, sizeof(line), stdin) != NULL) {
    if (strcmp(line, "read\n") == 0) {
      for (unsigned long i = 0; i < 500; ++i) {
        submit_read(ring, i);
        if (take_one(ring) != i) fail("number", (int)i);
      }
      printf("read 500 times\n");
    } else if (strcmp(line, "wait\n") == 0) {
      begin_wait(ring);
      printf("waits\n");
    } else if (strcmp(line, "wake\n") == 0) {
      struct io_uring_sqe* request = io_uring_get_sqe(ring);
      io_uring_prep_nop(request);
      io_uring_submit(ring);
      void* result;
      pthread_join(waiter, &result);
      printf("woke: %ld\n", (long)result);
    } else if (strcmp(line, "leave\n") == 0) {
      for (unsigned long i = 0; i < 5; ++i) submit_read(ring, i);
      printf("left 5\n");
    } else {
      printf("took 5:");
      for (int i = 0; i < 5; ++i) printf(" %lu", take_one(ring));
      printf("\n");
    }
    fflush(stdout);
  }
}

static void* run(void* how) {
  static struct io_uring ring;
  struct io_uring_params parameters = {0};
  int r;
  if (strcmp(how, "plain") == 0) {
    r = io_uring_queue_init(8, &ring, 0);
  } else {
    taken_by_kernel = strcmp(how, "poll") == 0;
    parameters.flags =
        taken_by_kernel ? IORING_SETUP_SQPOLL : IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    parameters.sq_thread_idle = 50;
    r = io_uring_queue_init_params(8, &ring, &parameters);
  }
  if (r != 0) {
    printf("no rings here: %d\n", r);
    exit(0);
  }
  /* A number of this thread's own, by which no other may wait. Of a kernel that cannot, the ring goes on
   * without. */
  if (strcmp(how, "plain") != 0) io_uring_register_ring_fd(&ring);
  printf("up\n");
  fflush(stdout);
  serve(&ring);
  io_uring_queue_exit(&ring);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  file = open("/proc/self/exe", O_RDONLY);
  if (file < 0 || pread(file, expected, kBytes, 0) != kBytes) return 1;
  pthread_t thread;
  if (pthread_create(&thread, NULL, run, argv[1]) != 0) return 1;
  pthread_join(thread, NULL);
  return 0;
}
