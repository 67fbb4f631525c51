/* A plug-in that hands the saving of processes to CRIU: children in which libckpt_rt.so is not (static
 * programs, those that clear their environment), with their own children. They are in the job's checkpoint,
 * and come back with it.
 *
 *   cc -shared -fPIC -I /usr/include -o criu.so criu.c
 *   ckpt run --plugins $PWD/criu.so -- ./script-that-starts-static-programs         CKPT_CRIU=PATH if criu is not in PATH
 *
 * Ahead of the stop `criu dump` writes each of them into a directory of the checkpoint, and leaves it stopped
 * until the others have been saved. In a restart `criu restore` makes it again, as a child of this process,
 * before the program goes on. A process that has pipes or sockets is refused, and so is what CRIU refuses:
 * then the checkpoint is given up, in its words. CRIU needs root, and the images must be where they were
 * made. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CKPT_RT_OPTIONAL
#include "ckpt_plugin.h"

enum { MOST = 64, PATH_SIZE = 1600 };

static char criu[PATH_SIZE];

/* Of the newest checkpoint; in the image. */
static struct {
  int pid;
  char directory[PATH_SIZE];
} saved[MOST];
static int saved_count;

static int load(char* error, size_t size) {
  const char* path = getenv("CKPT_CRIU");
  if (path != NULL) {
    snprintf(criu, sizeof(criu), "%s", path);
  } else {
    for (const char* at = getenv("PATH"); at != NULL && *at != '\0';) {
      const size_t length = strcspn(at, ":");
      snprintf(criu, sizeof(criu), "%.*s/criu", (int)length, at);
      if (access(criu, X_OK) == 0) break;
      at += length;
      if (*at == ':') ++at;
    }
  }
  if (access(criu, X_OK) == 0) return 0;
  snprintf(error, size, "there is no criu: install it, or name it with CKPT_CRIU");
  return 1;
}

/* Runs CRIU, also in the stop: only system calls. apart: in the running program, whose own wait(2) must not
 * get to see CRIU's end: a process between them has no exit signal, so that only __WALL finds it. (A process
 * that executes a program gets SIGCHLD for one.) */
static int run_criu(const char* const* words, int apart) {
  static const char* const environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
  int status = -1;
  long pid = syscall(SYS_clone, apart ? 0L : (long)SIGCHLD, 0L, 0L, 0L, 0L);
  if (pid == 0 && apart) {
    pid = syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
    if (pid != 0) {
      while (pid > 0 && syscall(SYS_wait4, pid, &status, 0L, 0L) < 0 && errno == EINTR) {
      }
      syscall(SYS_exit_group, pid > 0 && WIFEXITED(status) ? (long)WEXITSTATUS(status) : 127L);
    }
  }
  if (pid == 0) {
    const unsigned long long none = 0;
    syscall(SYS_rt_sigprocmask, (long)SIG_SETMASK, &none, 0L, 8L);
    syscall(SYS_close_range, 3L, ~0U, 0L);
    syscall(SYS_execve, criu, words, environment);
    syscall(SYS_exit_group, 127L);
  }
  while (pid > 0 && syscall(SYS_wait4, pid, &status, (long)__WALL, 0L) < 0 && errno == EINTR) {
  }
  return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 127;
}

static void continue_all(void) {
  for (int i = 0; i < saved_count; ++i) kill(saved[i].pid, SIGCONT);
}

/* 1: it runs, and the library is not in it. */
static int is_without_library(int pid) {
  char path[64], line[4096];
  int found = 0, any = 0;
  snprintf(path, sizeof(path), "/proc/%d/maps", pid);
  FILE* maps = fopen(path, "r");
  if (maps == NULL) return 0;
  while (fgets(line, sizeof(line), maps) != NULL) {
    any = 1;
    if (strstr(line, "libckpt_rt.so") != NULL) found = 1;
  }
  fclose(maps);
  return any && !found;
}

/* CRIU would make another pipe, with nobody at its other end. */
static int has_channel(int pid) {
  char path[64], target[64];
  int found = 0;
  snprintf(path, sizeof(path), "/proc/%d/fd", pid);
  DIR* descriptors = opendir(path);
  if (descriptors == NULL) return 1;
  for (struct dirent* d; (d = readdir(descriptors)) != NULL;) {
    const ssize_t n = readlinkat(dirfd(descriptors), d->d_name, target, sizeof(target) - 1);
    target[n > 0 ? n : 0] = '\0';
    if (strncmp(target, "pipe:", 5) == 0 || strncmp(target, "socket:", 7) == 0) found = 1;
  }
  closedir(descriptors);
  return found;
}

/* Calls `each` with each child; stops when it returns not 0. */
static int for_children(int pid, int (*each)(int child)) {
  char path[64];
  int stopped = 0;
  snprintf(path, sizeof(path), "/proc/%d/task", pid);
  DIR* tasks = opendir(path);
  if (tasks == NULL) return 0;
  for (struct dirent* task; !stopped && (task = readdir(tasks)) != NULL;) {
    char name[400];
    int child;
    snprintf(name, sizeof(name), "%s/%s/children", path, task->d_name);
    FILE* children = task->d_name[0] != '.' ? fopen(name, "r") : NULL;
    while (children != NULL && !stopped && fscanf(children, "%d", &child) == 1) stopped = each(child);
    if (children != NULL) fclose(children);
  }
  closedir(tasks);
  return stopped;
}

static int claim(int pid) { return ckpt_rt_take_over(pid, "criu") != 0 || for_children(pid, claim); }

static void last_line(const char* file, char* out, size_t size) {
  char line[512];
  FILE* log = fopen(file, "r");
  if (log == NULL) return;
  while (fgets(line, sizeof(line), log) != NULL) {
    if (strstr(line, "Error") == NULL) continue;
    line[strcspn(line, "\n")] = '\0';
    const size_t length = strlen(line) < size ? strlen(line) : size - 1;
    memcpy(out, line, length);
    out[length] = '\0';
  }
  fclose(log);
}

/* Every file, then the directory. */
static int make_durable(const char* directory) {
  DIR* files = opendir(directory);
  int good = files != NULL;
  for (struct dirent* file; good && (file = readdir(files)) != NULL;) {
    const int fd = openat(dirfd(files), file->d_name, O_RDONLY | O_NOFOLLOW);
    good = fd >= 0 && fsync(fd) == 0;
    close(fd);
  }
  if (files != NULL) closedir(files);
  return good;
}

static char now[PATH_SIZE], later[PATH_SIZE - 32], words[200];

static int save(int pid) {
  char directory[PATH_SIZE + 32], log[PATH_SIZE + 64], number[16], line[160] = "see its log";
  if (!is_without_library(pid)) return 0;
  if (has_channel(pid)) {
    snprintf(words, sizeof(words), "process %d has a pipe or socket, which others may have", pid);
    return 1;
  }
  if (saved_count == MOST) {
    snprintf(words, sizeof(words), "more than %d processes", MOST);
    return 1;
  }
  if (now[0] == '\0' && ckpt_rt_directory(now, later, sizeof(later)) != 0) {
    snprintf(words, sizeof(words), "the checkpoint has no directory");
    return 1;
  }
  snprintf(directory, sizeof(directory), "%s/%d.criu", now, pid);
  snprintf(log, sizeof(log), "%s/dump.log", directory);
  snprintf(number, sizeof(number), "%d", pid);
  if (mkdir(directory, 0700) != 0) {
    snprintf(words, sizeof(words), "%d.criu: %s", pid, strerror(errno));
    return 1;
  }
  const char* const dump[] = {
      criu, "dump", "-t", number, "-D", directory, "-o", "dump.log", "--leave-stopped", "--shell-job", NULL};
  if (run_criu(dump, 1) != 0) {
    kill(pid, SIGCONT);
    last_line(log, line, sizeof(line));
    snprintf(words, sizeof(words), "criu dump of %d: %s", pid, line);
    return 1;
  }
  saved[saved_count].pid = pid;
  snprintf(saved[saved_count].directory, PATH_SIZE, "%s/%d.criu", later, pid);
  ++saved_count;
  if (claim(pid) != 0 || !make_durable(directory)) {
    snprintf(words, sizeof(words), "%d.criu cannot be made durable", pid);
    return 1;
  }
  return 0;
}

static int prepare(uint32_t round, char* error, size_t size) {
  if (round != 0) return 0;
  saved_count = 0;
  now[0] = words[0] = '\0';
  if (for_children(getpid(), save) == 0) return 0;
  continue_all();
  saved_count = 0;
  snprintf(error, size, "%s", words);
  return 1;
}

static void restarted(void) {
  for (int i = 0; i < saved_count; ++i) {
    const char* const restore[] = {criu,
                                   "restore",
                                   "-D",
                                   saved[i].directory,
                                   "-o",
                                   "restore.log",
                                   "--shell-job",
                                   "--restore-detached",
                                   "--restore-sibling",
                                   NULL};
    if (run_criu(restore, 0) == 0) continue;
    static const char text[] =
        "ckpt: plug-in criu: a process could not be restored: see restore.log in its directory of the "
        "checkpoint\n";
    const ssize_t n = write(2, text, sizeof(text) - 1);
    (void)n;
    /* The program would wait for a child that it does not have. */
    _exit(69);
  }
}

static void concluded(enum ckpt_rt_callback_kind how) {
  if (how == CKPT_RT_ABANDONED) continue_all();
}

const struct ckpt_plugin ckpt_plugin = {.size = sizeof(ckpt_plugin),
                                        .api_version = CKPT_PLUGIN_API_VERSION,
                                        .name = "criu",
                                        .load = load,
                                        .go_on = continue_all,
                                        .restarted = restarted,
                                        .prepare = prepare,
                                        .concluded = concluded};
