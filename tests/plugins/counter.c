/* A static program, which no library is preloaded into: counts until SIGTERM, and writes how far it is into
 * FILE, which has always the same length (CRIU wants that of open files); at the end what it has come to into
 * END: counter FILE END. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t ended;
static void end(int signal) { ended = signal; }

int main(int argc, char** argv) {
  unsigned long n = 0, sum = 0;
  char text[32];
  if (argc != 3) return 64;
  const int progress = open(argv[1], O_WRONLY | O_CREAT, 0600);
  signal(SIGTERM, end);
  while (!ended) {
    sum += ++n;
    if (n % 1000 != 0) continue;
    if (pwrite(progress, text, (size_t)snprintf(text, sizeof(text), "%020lu\n", n), 0) != 21) return 73;
    nanosleep(&(struct timespec){0, 2000000}, NULL);
  }
  FILE* file = fopen(argv[2], "w");
  if (file == NULL) return 73;
  fprintf(file, "%lu %s %d\n", n, sum == n * (n + 1) / 2 ? "right" : "wrong", (int)getpid());
  fclose(file);
  return 7;
}
