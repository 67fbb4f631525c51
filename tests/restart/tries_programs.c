// Threads try to execute a program that is not there, without rest. Each line of input is answered by
// "there".
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { kThreads = 8 };

static void* try_it(void* none) {
  char* words[] = {"none", NULL};
  for (;;) execv("/none", words);
  return none;
}

int main(void) {
  for (int i = 0; i < kThreads; ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, try_it, NULL) != 0) return 1;
  }
  puts("up");
  fflush(stdout);
  for (char line[16]; fgets(line, sizeof(line), stdin) != NULL;) {
    puts("there");
    fflush(stdout);
  }
  return 0;
}
