/* A program that has forbidden itself something: tsc (to read the time stamp counter), strict (all system
 * calls but four), beside (a second thread has, strictly). Answers each line with their number. */
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static void* sleep_strictly(void* pipe) {
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
  char byte;
  ssize_t n = write(((int*)pipe)[1], "x", 1);
  while (n >= 0) n = read(((int*)pipe)[0], &byte, 1);
  return NULL;
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  int pipes[2][2];
  if (pipe(pipes[0]) != 0 || pipe(pipes[1]) != 0) return 1;
  if (strcmp(what, "tsc") == 0 && prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) != 0) return 1;
  if (strcmp(what, "beside") == 0) {
    static int ends[2];
    ends[0] = pipes[1][0];
    ends[1] = pipes[0][1];
    pthread_t thread;
    char byte;
    if (pthread_create(&thread, NULL, sleep_strictly, ends) != 0 || read(pipes[0][0], &byte, 1) != 1)
      return 1;
  }
  if (strcmp(what, "strict") == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0) != 0) return 1;
  if (write(1, "up\n", 3) != 3) return 1;
  char lines = '0', byte;
  for (;;) {
    struct pollfd in = {0, POLLIN, 0};
    if (strcmp(what, "strict") != 0) poll(&in, 1, 60000);
    if (read(0, &byte, 1) != 1) break;
    char answer[2] = {++lines, '\n'};
    if (write(1, answer, 2) != 2) break;
  }
  syscall(SYS_exit, 0);
}
