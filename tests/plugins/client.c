/* A client of a server outside of the job: client PORT COUNT GO. Asks COUNT times for a square, and adds the
 * answers up. Each request with its answer is a critical section. It goes past the half of them when there is
 * a file GO. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CKPT_RT_OPTIONAL
#include "include/ckpt_rt.h"

static long ask(int fd, long number) {
  char text[64];
  size_t n = 0;
  const int length = snprintf(text, sizeof(text), "%ld\n", number);
  if (write(fd, text, (size_t)length) != length) return -1;
  do {
    const ssize_t got = read(fd, text + n, sizeof(text) - 1 - n);
    if (got <= 0) return -1;
    n += (size_t)got;
  } while (text[n - 1] != '\n');
  text[n] = '\0';
  return atol(text);
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  struct sockaddr_in at = {.sin_family = AF_INET,
                           .sin_port = htons((uint16_t)atoi(argv[1])),
                           .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  const long count = atol(argv[2]);
  const int fd = socket(AF_INET, SOCK_STREAM, 0), other = dup(fd);
  if (connect(fd, (const struct sockaddr*)&at, sizeof(at)) != 0) return 3;
  long sum = 0;
  for (long i = 0; i < count; ++i) {
    ckpt_rt_enter_critical();
    const long answer = ask(i % 2 != 0 ? fd : other, i);
    ckpt_rt_leave_critical();
    if (answer < 0) {
      perror("client: the connection");
      return 4;
    }
    sum += answer;
    if (i == 1) {
      puts("asks");
      fflush(stdout);
    }
    while (i >= count / 2 && access(argv[3], F_OK) != 0) {
      ckpt_rt_enter_critical();
      if (ask(fd, 0) < 0) return 4;
      ckpt_rt_leave_critical();
    }
  }
  printf("sum %ld\n", sum);
  return 0;
}
