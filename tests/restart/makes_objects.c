// Threads make System V semaphore sets and message queues, use them and remove them, without rest. A line of
// input is answered by "there" when each kind was made some more times; what fails is printed instead.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 3, kMore = 20 };

static atomic_long sets, queues;

static void fail(const char* what) {
  perror(what);
  puts(what);
  fflush(stdout);
  _exit(1);
}

static void* make_sets(void* none) {
  for (;; ++sets) {
    const int set = semget(IPC_PRIVATE, 1, 0600);
    struct sembuf up = {0, 2, 0};
    if (set < 0) fail("semget");
    if (semop(set, &up, 1) != 0) fail("semop");
    if (semctl(set, 0, GETVAL) != 2) fail("GETVAL");
    if (semctl(set, 0, IPC_RMID) != 0) fail("IPC_RMID of a set");
  }
  return none;
}

static void* make_queues(void* none) {
  for (;; ++queues) {
    const int queue = msgget(IPC_PRIVATE, 0600);
    struct {
      long type;
      char text[4];
    } message = {1, "abc"};
    if (queue < 0) fail("msgget");
    if (msgsnd(queue, &message, sizeof(message.text), 0) != 0) fail("msgsnd");
    memset(&message, 0, sizeof(message));
    if (msgrcv(queue, &message, sizeof(message.text), 0, 0) != 4) fail("msgrcv");
    if (strcmp(message.text, "abc") != 0) fail("the message");
    if (msgctl(queue, IPC_RMID, NULL) != 0) fail("IPC_RMID of a queue");
  }
  return none;
}

int main(void) {
  for (int i = 0; i < 2 * kThreads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, i % 2 == 0 ? make_sets : make_queues, NULL) != 0) return 1;
  }
  puts("up");
  fflush(stdout);
  for (char line[16]; fgets(line, sizeof(line), stdin) != NULL;) {
    const long sets_now = sets, queues_now = queues;
    const struct timespec moment = {0, 1000000};
    while (sets < sets_now + kMore || queues < queues_now + kMore) nanosleep(&moment, NULL);
    puts("there");
    fflush(stdout);
  }
  return 0;
}
