// System V and POSIX objects of one process, asynchronous I/O, io_uring.
#include <aio.h>
#include <liburing.h>
#include <linux/aio_abi.h>
#include <mqueue.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include "battery.h"

static void semaphores_sysv(void) {
  int s = semget(IPC_PRIVATE, 3, 0600), x;
  MUST(s >= 0 && semctl(s, 1, SETVAL, 9) == 0);
  struct sembuf undo = {2, 4, SEM_UNDO};
  MUST(semop(s, &undo, 1) == 0);
  EACH_STEP(n) {
    struct sembuf up = {0, 2, 0}, down[2] = {{0, -1, 0}, {1, 0, IPC_NOWAIT}};
    MUST(semop(s, &up, 1) == 0 && semop(s, down, 1) == 0);
    x = semctl(s, 0, GETVAL);
    MUST(x == n + 1 && semctl(s, 1, GETVAL) == 9 && semctl(s, 2, GETVAL) == 4 &&
         semctl(s, 0, GETPID) == getpid());
    MUST(semop(s, down, 2) < 0 && errno == EAGAIN);
    struct timespec t = {0, 1000000};
    MUST(semtimedop(s, down + 1, 1, &t) < 0);
  }
  semctl(s, 0, IPC_RMID);
}

static void shared_sysv(void) {
  int m = shmget(IPC_PRIVATE, 100000, 0640), gone = shmget(IPC_PRIVATE, 8192, 0600);
  uint32_t *a = shmat(m, NULL, 0), *b = shmat(m, NULL, SHM_RDONLY), *g = shmat(gone, NULL, 0);
  MUST(shmctl(gone, IPC_RMID, NULL) == 0);
  EACH_STEP(n) {
    a[n * 300] = mixed(n), g[n] = mixed(n);
    for (int i = 0; i <= n; i++) MUST(b[i * 300] == mixed(i) && g[i] == mixed(i));
    struct shmid_ds d;
    MUST(shmctl(m, IPC_STAT, &d) == 0 && d.shm_nattch == 2 && (d.shm_perm.mode & 0777) == 0640 &&
         d.shm_segsz == 100000);
    MUST(shmctl(gone, IPC_STAT, &d) == 0 && d.shm_nattch == 1 && (d.shm_perm.mode & SHM_DEST));
  }
  shmctl(m, IPC_RMID, NULL);
}

static void messages_sysv(void) {
  int q = msgget(IPC_PRIVATE, 0600);
  struct {
    long type;
    char text[200];
  } m, r;
  for (int i = 0; i < 5; i++) m.type = i % 3 + 1, memset(m.text, i, 200), MUST(msgsnd(q, &m, 10 + i, 0) == 0);
  EACH_STEP(n) {
    m.type = (n + 5) % 3 + 1, memset(m.text, n + 5, 200);
    MUST(msgsnd(q, &m, 10 + (n + 5) % 150, 0) == 0);
    MUST(msgrcv(q, &r, 200, n % 3 + 1, IPC_NOWAIT) == 10 + n % 150 && r.text[0] == (char)n &&
         r.type == n % 3 + 1);
    struct msqid_ds d;
    MUST(msgctl(q, IPC_STAT, &d) == 0 && d.msg_qnum == 5 && d.msg_lspid == getpid());
  }
  msgctl(q, IPC_RMID, NULL);
}

static mqd_t queue_of(const char* text, int flags) {
  char name[64];
  snprintf(name, sizeof name, "/battery-%s-%d", text, getpid());
  struct mq_attr a = {.mq_maxmsg = 8, .mq_msgsize = 64};
  mqd_t q = mq_open(name, O_RDWR | O_CREAT | O_EXCL | flags, 0600, &a);
  MUST(q >= 0);
  mq_unlink(name);
  return q;
}

static void messages_posix(void) {
  mqd_t q = queue_of("mq", O_NONBLOCK);
  char in[64];
  EACH_STEP(n) {
    unsigned priority;
    struct mq_attr a;
    MUST(mq_send(q, (char*)&n, 4, 3) == 0 && mq_send(q, "urgent", 6, 9) == 0);
    MUST(mq_receive(q, in, 64, &priority) == 6 && priority == 9 && mq_receive(q, in, 64, &priority) == 4 &&
         priority == 3);
    MUST(mq_receive(q, in, 64, NULL) < 0 && errno == EAGAIN);
    MUST(mq_getattr(q, &a) == 0 && a.mq_maxmsg == 8 && a.mq_msgsize == 64 && a.mq_flags == O_NONBLOCK &&
         a.mq_curmsgs == 0);
  }
}

static void messages_waiting(void) {
  mqd_t q = queue_of("mw", 0);
  char in[64];
  for (int i = 0; i < 3; i++) MUST(mq_send(q, (char*)&i, 4, 1) == 0);
  EACH_STEP(n) {
    int i = n + 3;
    MUST(mq_send(q, (char*)&i, 4, 1) == 0 && mq_receive(q, in, 64, NULL) == 4 && *(int*)(void*)in == n);
  }
}

static void named_semaphore(void) {
  char name[64];
  snprintf(name, sizeof name, "/battery-sem-%d", getpid());
  sem_t *s = sem_open(name, O_CREAT | O_EXCL, 0600, 3), *t = sem_open(name, 0);
  MUST(s != SEM_FAILED && s == t);
  EACH_STEP(n) {
    int v;
    MUST(sem_post(s) == 0 && sem_getvalue(t, &v) == 0 && v == n + 4);
  }
  sem_unlink(name);
}

static volatile int completed;
static void completes(union sigval v) { __sync_fetch_and_add(&completed, v.sival_int); }

static void aio_of_libc(void) {
  int fd = open("aio", O_RDWR | O_CREAT, 0600);
  EACH_STEP(n) {
    char out[4][512], in[512];
    struct aiocb c[4] = {0}, *list[4];
    for (int i = 0; i < 4; i++) {
      memset(out[i], n + i, 512);
      c[i] = (struct aiocb){.aio_fildes = fd,
                            .aio_buf = out[i],
                            .aio_nbytes = 512,
                            .aio_offset = (n * 4 + i) * 512,
                            .aio_lio_opcode = LIO_WRITE};
      list[i] = &c[i];
    }
    c[3].aio_sigevent = (struct sigevent){
        .sigev_notify = SIGEV_THREAD, .sigev_notify_function = completes, .sigev_value.sival_int = 1};
    MUST(lio_listio(LIO_WAIT, list, 4, NULL) == 0);
    for (int i = 0; i < 4; i++) MUST(aio_error(&c[i]) == 0 && aio_return(&c[i]) == 512);
    struct aiocb r = {.aio_fildes = fd, .aio_buf = in, .aio_nbytes = 512, .aio_offset = n / 2 * 4 * 512};
    MUST(aio_read(&r) == 0);
    const struct aiocb* one[] = {&r};
    while (aio_suspend(one, 1, NULL) != 0) MUST(errno == EINTR);
    MUST(aio_return(&r) == 512 && in[511] == (char)(n / 2));
    for (int i = 0; i < 5000 && completed != n + 1; i++) usleep(1000);
    MUST(completed == n + 1);
  }
}

static void aio_of_kernel(void) {
  aio_context_t context = 0;
  MUST(syscall(SYS_io_setup, 16, &context) == 0);
  int fd = open("kaio", O_RDWR | O_CREAT, 0600), e = eventfd(0, 0);
  char* block = aligned_alloc(4096, 4096);
  EACH_STEP(n) {
    memset(block, n, 4096);
    struct iocb c = {.aio_lio_opcode = IOCB_CMD_PWRITE,
                     .aio_fildes = (uint32_t)fd,
                     .aio_buf = (uintptr_t)block,
                     .aio_nbytes = 4096,
                     .aio_offset = n * 4096L,
                     .aio_data = (uint64_t)n + 7,
                     .aio_flags = IOCB_FLAG_RESFD,
                     .aio_resfd = (uint32_t)e},
                *list[] = {&c};
    MUST(syscall(SYS_io_submit, context, 1, list) == 1);
    if (n % 2) rest_ms(4);
    uint64_t count;
    MUST(read(e, &count, 8) == 8 && count == 1);
    struct io_event v;
    MUST(syscall(SYS_io_getevents, context, 1, 1, &v, NULL) == 1 && v.data == (uint64_t)n + 7 &&
         v.res == 4096);
    char in[10];
    MUST(pread(fd, in, 10, n * 4096L) == 10 && in[3] == (char)n);
  }
}

static void ring(void) {
  struct io_uring r;
  MUST(io_uring_queue_init(16, &r, 0) == 0);
  int fd = open("ring", O_RDWR | O_CREAT, 0600), p[2], files[1] = {fd};
  MUST(pipe(p) == 0 && io_uring_register_files(&r, files, 1) == 0);
  static char buffers[2][4096] __attribute__((aligned(4096)));
  struct iovec v[2] = {{buffers[0], 4096}, {buffers[1], 4096}};
  MUST(io_uring_register_buffers(&r, v, 2) == 0);
  struct io_uring_cqe* c;
  EACH_STEP(n) {
    memset(buffers[0], n + 1, 4096);
    struct io_uring_sqe* s = io_uring_get_sqe(&r);
    io_uring_prep_write_fixed(s, 0, buffers[0], 4096, n * 4096, 0);
    s->flags |= IOSQE_FIXED_FILE | IOSQE_IO_LINK, s->user_data = 1000 + (uint64_t)n;
    s = io_uring_get_sqe(&r);
    io_uring_prep_read_fixed(s, fd, buffers[1], 4096, n * 4096, 1), s->user_data = 2000 + (uint64_t)n;
    struct __kernel_timespec t = {0, 2000000};
    s = io_uring_get_sqe(&r);
    io_uring_prep_timeout(s, &t, 0, 0), s->user_data = 3000;
    MUST(io_uring_submit(&r) == 3);
    if (n % 2) rest_ms(3);
    int seen = 0;
    for (int i = 0; i < 3; i++) {
      int e;
      while ((e = io_uring_wait_cqe(&r, &c)) == -EINTR) {
      }
      MUST(e == 0);
      if (c->user_data == 1000 + (uint64_t)n) MUST(c->res == 4096), seen |= 1;
      if (c->user_data == 2000 + (uint64_t)n) MUST(c->res == 4096), seen |= 2;
      if (c->user_data == 3000) MUST(c->res == -ETIME), seen |= 4;
      io_uring_cqe_seen(&r, c);
    }
    MUST(seen == 7 && buffers[1][4095] == (char)(n + 1));
  }
}

PROGRAMS(P(semaphores_sysv), P(shared_sysv), P(messages_sysv), P(messages_posix), P(messages_waiting),
         P(named_semaphore), P(aio_of_libc), P(aio_of_kernel), P(ring))
