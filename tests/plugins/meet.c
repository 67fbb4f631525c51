/* A plug-in for the tests: its instances in the members of a job greet each other, and write down in
 * CKPT_MEET what happens. CKPT_MEET/refuse: prepare refuses, with the words in that file. CKPT_MEET/hang: it
 * waits until the file is gone. CKPT_MEET/chatter: it posts without end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CKPT_RT_OPTIONAL
#include "ckpt_plugin.h"

static char directory[512], own_host[64];
static uint32_t met; /* how many have greeted us; in the image */
static long sum;     /* of their answers */

static FILE* file(const char* name, const char* how) {
  char path[600];
  snprintf(path, sizeof(path), "%s/%s", directory, name);
  return fopen(path, how);
}

static void note(const char* what) {
  FILE* log = file("log", "a");
  if (log == NULL) return;
  fprintf(log, "%s%s%d %s\n", own_host, own_host[0] != '\0' ? " " : "", (int)getpid(), what);
  fclose(log);
}

static int load(char* error, size_t size) {
  const char* where = getenv("CKPT_MEET");
  const char* host = getenv("CKPT_HOSTS"); /* JOB:HOST */
  if (where == NULL) {
    snprintf(error, size, "CKPT_MEET names no directory");
    return 1;
  }
  snprintf(directory, sizeof(directory), "%s", where);
  if (host != NULL && strchr(host, ':') != NULL)
    snprintf(own_host, sizeof(own_host), "%s", strchr(host, ':') + 1);
  return 0;
}

static int prepare(uint32_t round, char* error, size_t size) {
  struct ckpt_rt_message m = {.size = sizeof(m)};
  char text[64];
  FILE* f = file("refuse", "r");
  if (f != NULL) {
    if (fgets(error, (int)size, f) == NULL) error[0] = '\0';
    fclose(f);
    return 1;
  }
  while ((f = file("hang", "r")) != NULL) {
    fclose(f);
    note("hangs");
    nanosleep(&(struct timespec){0, 50000000}, NULL);
  }
  if ((f = file("chatter", "r")) != NULL) {
    fclose(f);
    return ckpt_rt_post("meet", NULL, 0, "x", 1);
  }
  if (round == 0) {
    met = 0;
    sum = 0;
    snprintf(text, sizeof(text), "hello %d", (int)getpid());
    if (ckpt_rt_post("other", NULL, 0, "not for us", 10) != 0) return 1;
    return ckpt_rt_post("meet", NULL, 0, text, strlen(text) + 1);
  }
  for (uint32_t at = 0; ckpt_rt_next_message("meet", &at, &m) == 0;) {
    int pid = 0, seen = 0;
    long number = 0;
    if (round == 1 && sscanf(m.bytes, "hello %d", &pid) == 1) {
      ++met;
      if (pid != m.pid) return 1;
      /* To that one alone. */
      snprintf(text, sizeof(text), "number %d", pid);
      if (ckpt_rt_post("meet", m.host[0] != '\0' ? m.host : NULL, m.pid, text, strlen(text) + 1) != 0)
        return 1;
    }
    if (round == 2 && sscanf(m.bytes, "number %ld%n", &number, &seen) == 1) sum += number;
  }
  return 0;
}

static void say(const char* text) {
  const ssize_t n = write(2, text, strlen(text));
  (void)n;
}

/* Mail can be read here too, and it is in the image. */
static uint32_t read_in_stop;
static void stopped(void) {
  struct ckpt_rt_message m = {.size = sizeof(m)};
  read_in_stop = 0;
  for (uint32_t at = 0; ckpt_rt_next_message("meet", &at, &m) == 0;) ++read_in_stop;
}

static void restarted(void) {
  struct ckpt_rt_message m = {.size = sizeof(m)};
  uint32_t now = 0;
  for (uint32_t at = 0; ckpt_rt_next_message("meet", &at, &m) == 0;) ++now;
  if (now != read_in_stop) say("meet: mail is lost\n");
}

static void concluded(enum ckpt_rt_callback_kind how) {
  char text[100];
  snprintf(text, sizeof(text), "%s met %u sum %s mail %u",
           how == CKPT_RT_DURABLE     ? "durable"
           : how == CKPT_RT_ABANDONED ? "abandoned"
                                      : "back",
           met, sum == (long)getpid() * met ? "right" : "wrong", read_in_stop);
  note(text);
}

const struct ckpt_plugin ckpt_plugin = {.size = sizeof(ckpt_plugin),
                                        .api_version = CKPT_PLUGIN_API_VERSION,
                                        .name = "meet",
                                        .load = load,
                                        .stopped = stopped,
                                        .restarted = restarted,
                                        .prepare = prepare,
                                        .concluded = concluded};
