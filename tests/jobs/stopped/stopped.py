#!/usr/bin/env python3
"""Members that are stopped (SIGSTOP, a terminal's stop): saved as they are, by nobody noticed, and stopped again after a
restart. Each program counts what it must not notice: steps of a stopped process, SIGCHLDs, wait statuses."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from job_tree import CKPT, NOBODY, PATIENCE, RESTART, Tree, adopt_orphans, environment, handles_requests, root_of, state_of, wait_for

adopt_orphans()

# Threads that compute, that wait in several ways, and that have blocked signals; stopped by its parent, which then counts
# what it hears of the child. `steps` changes only when a thread of the child runs.
THREADS = r"""
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct shared { _Atomic unsigned long steps[8]; _Atomic int conts, terms, interrupted, slept, go; };
static struct shared* s;
static int pipe_fds[2];

static void* compute(void* a) { unsigned long n = (unsigned long)a; for (;;) s->steps[n]++; }
static void* blocked(void* a) {
  sigset_t all; sigfillset(&all); pthread_sigmask(SIG_BLOCK, &all, 0);
  unsigned long n = (unsigned long)a;
  for (;;) s->steps[n]++;
}
static void* reader(void* a) {
  char c; unsigned long n = (unsigned long)a;
  for (;;) { if (read(pipe_fds[0], &c, 1) == 1) s->steps[n]++; else if (errno == EINTR) s->interrupted++; }
}
static void* sleeper(void* a) {
  unsigned long n = (unsigned long)a;
  for (;;) { struct timespec t = {0, 3000000}; if (nanosleep(&t, 0)) s->slept++; s->steps[n]++; }
}
static void* poller(void* a) {
  unsigned long n = (unsigned long)a;
  for (;;) { struct pollfd p = {-1, 0, 0}; if (poll(&p, 1, 2)) s->interrupted++; s->steps[n]++; }
}
static void on_cont(int x) { (void)x; s->conts++; }
static void on_term(int x) { (void)x; s->terms++; }
static _Atomic int chlds;
static void on_chld(int x) { (void)x; chlds++; }

static void child(void) {
  struct sigaction c = {.sa_handler = on_cont, .sa_flags = SA_RESTART}; sigaction(SIGCONT, &c, 0);
  struct sigaction t = {.sa_handler = on_term, .sa_flags = SA_RESTART}; sigaction(SIGTERM, &t, 0);
  if (pipe(pipe_fds)) _exit(9);
  // Handlers run in the first thread, where they end no call that is counted.
  sigset_t handled; sigemptyset(&handled); sigaddset(&handled, SIGCONT); sigaddset(&handled, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &handled, 0);
  pthread_t p;
  pthread_create(&p, 0, compute, (void*)0);
  pthread_create(&p, 0, compute, (void*)1);
  pthread_create(&p, 0, blocked, (void*)2);
  pthread_create(&p, 0, reader, (void*)3);
  pthread_create(&p, 0, sleeper, (void*)4);
  pthread_create(&p, 0, poller, (void*)5);
  pthread_sigmask(SIG_UNBLOCK, &handled, 0);
  for (;;) { usleep(1000); s->steps[6]++; if (write(pipe_fds[1], "x", 1) != 1) s->interrupted++; }
}
static void snapshot(unsigned long* to) { for (int i = 0; i < 7; i++) to[i] = s->steps[i]; }

int main(int argc, char** argv) {
  int reported = argc > 1 && !strcmp(argv[1], "reported");
  s = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  struct sigaction c = {.sa_handler = on_chld, .sa_flags = SA_RESTART}; sigaction(SIGCHLD, &c, 0);
  pid_t pid = fork();
  if (pid == 0) { signal(SIGCHLD, SIG_DFL); child(); }
  for (int i = 0; i < 7; i++) while (s->steps[i] < 3) usleep(1000);
  kill(pid, SIGSTOP);
  siginfo_t info;
  while (waitid(P_PID, pid, &info, WSTOPPED | WNOWAIT) && errno == EINTR) {}
  if (reported) { int st; waitpid(pid, &st, WUNTRACED); }
  kill(pid, SIGTERM);  // waits for SIGCONT
  while (chlds < 1) usleep(1000);
  unsigned long before[7], after[7];
  snapshot(before);
  int heard = chlds;
  FILE* f = fopen("ready.tmp", "w"); fclose(f); rename("ready.tmp", "ready");
  while (access("go", F_OK)) usleep(1000);
  snapshot(after);
  int ran = memcmp(before, after, sizeof(before)) != 0;
  // Of a stop that was not waited for the parent may be told again after a restart.
  int more = chlds - heard, status = 0;
  pid_t got = waitpid(pid, &status, WUNTRACED | WCONTINUED | WNOHANG);
  int told = got == pid && WIFSTOPPED(status) ? WSTOPSIG(status) : got == pid ? -1 : 0;
  printf("ran %d told %d terms %d conts %d\n", ran, told, s->terms, s->conts);
  if (access("restarted", F_OK)) printf("chlds %d\n", more); else printf("chlds %s\n", more <= 1 ? "ok" : "many");
  kill(pid, SIGCONT);
  for (int i = 0; i < 7; i++) { unsigned long n = s->steps[i]; for (int k = 0; s->steps[i] == n && k < 20000; k++) usleep(1000); if (s->steps[i] == n) printf("thread %d does not go on\n", i); }
  while ((got = waitpid(pid, &status, WUNTRACED | WCONTINUED)) < 0 && errno == EINTR) {}
  printf("continued %d\n", got == pid && WIFCONTINUED(status));
  // In the thread that has the handlers: what is pending comes to it before it goes on.
  while (s->terms < 1 || s->conts < 1) usleep(1000);
  for (unsigned long n = s->steps[6]; s->steps[6] < n + 2;) usleep(1000);
  printf("terms %d conts %d interrupted %d slept %d\n", s->terms, s->conts, s->interrupted, s->slept);
  kill(pid, SIGKILL);
  while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR) {}
  printf("killed %d\n", WTERMSIG(status));
  return 0;
}
"""

# A shell with job control, in which a job is stopped with all of its processes.
SHELL = r"""
set -m
(trap '' TERM; for i in $(seq 1 300); do echo $i; sleep 0.005; [ $i != 200 ] || until [ -e go ]; do sleep 0.01; done; done > count) &
while [ ! -s count ]; do sleep 0.01; done
kill -STOP %1
while ! jobs -s | grep -q Stopped; do sleep 0.01; done
jobs | tr -s ' '
before=$(wc -l < count)
touch ready
while [ ! -e go ]; do sleep 0.01; done
[ "$before" = "$(wc -l < count)" ] && echo stood
jobs | tr -s ' '
kill -CONT %1
wait %1
echo "status $?"
wc -l < count
jobs
"""

# More children than one message had room for, each stopped, and the parent was told of none.
MANY = r"""
import os, signal, time
children = []
for _ in range(40):
    pid = os.fork()
    if pid == 0:
        while True:
            signal.pause()
    children.append(pid)
for pid in children:
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
open('ready', 'w').close()
while not os.path.exists('go'):
    time.sleep(0.01)
told = [os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED | os.WNOHANG)[1]) for pid in children]
print(sum(told), flush=True)
for pid in children:
    os.kill(pid, signal.SIGKILL)
"""

# On a terminal: what Ctrl-Z does to a foreground job, and fg. The program that is stopped catches neither.
TERMINAL = r"""
import os, pty, select, sys, time
pid, master = pty.fork()
if pid == 0:
    os.execvpe('bash', ['bash', '--norc', '--noprofile', '-i'], dict(os.environ, PS1='prompt> ', TERM='dumb', HISTFILE='/dev/null'))
said = b''
def until(*words):
    global said
    deadline = time.monotonic() + 80
    while not all(w in said for w in words):
        if not select.select([master], [], [], max(0, deadline - time.monotonic()))[0]:
            print('in vain for', words, 'after', said, flush=True)
            sys.exit(1)
        said += os.read(master, 4096)
    answer, said = said, b''
    return answer
until(b'prompt> ')
os.write(master, b'bash -c \'echo run"ning"; read x; echo got $x\'\n')
until(b'running')
def waits_for_input():
    with open(f'/proc/{os.tcgetpgrp(master)}/stat') as f: return f.read().rsplit(')', 1)[1].split()[0] == 'S'
while not waits_for_input(): time.sleep(0.005)
os.write(master, b'\x1a')
until(b'Stopped', b'prompt> ')
open('ready', 'w').close()
while not os.path.exists('go'): time.sleep(0.01)
os.write(master, b'jobs\n')
print(b'Stopped' in until(b'Stopped', b'prompt> '))
os.write(master, b'fg\n')
until(b'read x')
os.write(master, b'word\n')
print(b'got word' in until(b'got word', b'prompt> '))
os.write(master, b'exit\n')
print(os.waitpid(pid, 0)[1], flush=True)
"""

# One process, stopped: it has no other that could lead its checkpoint.
ALONE = r"""
import os, time
open('ready', 'w').close()
while not os.path.exists('go'): time.sleep(0.001)
print('done', flush=True)
"""

# Computes until the test has had all of its checkpoints, however long they take; and says whether the sum is right.
SUMS = r"""
import os
total = upto = 0
while upto < 2_000_000 or not os.path.exists('go'):
    total += sum(i * i % 7 for i in range(upto, upto + 70_000))
    upto += 70_000
print(total == upto // 7 * 14, flush=True)
"""


def status_of(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as f:
        return dict(line.split(":\t", 1) for line in f.read().splitlines() if ":\t" in line)


def is_stopped(pid):
    """With all of its threads: the parent is told when the last of them has stopped."""
    states = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/stat", encoding="utf-8") as f:
                states.append(f.read().rpartition(")")[2].split()[0])
        except OSError:
            continue  # it has ended
    return set(states) == {"T"}


def thread_names(pid):
    names = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{tid}/comm", encoding="utf-8") as f:
                names.append(f.read().strip())
        except OSError:
            continue  # it has ended
    return names


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as f:
        return [int(c) for c in f.read().split()]


def touch(tree, name):
    open(os.path.join(tree.work, name), "w", encoding="utf-8").close()


_built = {}


def threads_program():
    if "path" not in _built:
        _built["dir"] = tempfile.mkdtemp(prefix="ckpt-stopped-")
        os.chmod(_built["dir"], 0o755)
        source = os.path.join(_built["dir"], "threads.c")
        with open(source, "w", encoding="utf-8") as f:
            f.write(THREADS)
        _built["path"] = os.path.join(_built["dir"], "threads")
        subprocess.run(["gcc", "-O1", "-pthread", "-o", _built["path"], source], check=True)
    return _built["path"]


def tearDownModule():
    if "dir" in _built:
        shutil.rmtree(_built["dir"])


class Stopped(unittest.TestCase):
    def still_stopped(self, pid):
        """Nobody traces it any more. Each thread goes back into the stop itself, as soon as it has a processor; whether one did more than
        that the program says at its end."""
        self.assertEqual(status_of(pid)["TracerPid"], "0")
        # It ends when it has answered, or as soon as it has a processor.
        wait_for(lambda: "ckpt_rt" not in thread_names(pid), "the end of our thread")
        wait_for(lambda: is_stopped(pid), "its stop")

    def run_threads(self, how, uid, generations, ask="parent"):
        tree = Tree("stopped", [threads_program(), how], uid=uid)
        failed = True
        try:
            tree.run()
            wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")), "the child to be stopped")
            root = tree.child.pid
            child, = children_of(root)
            for generation in range(max(generations, 1)):
                image = tree.checkpoint(child if ask == "child" else root)
                self.assertTrue(image.endswith(".job"), image)
                self.still_stopped(child)
                with open(os.path.join(image, "manifest.json"), encoding="utf-8") as f:
                    manifest = json.load(f)
                member, = (m for m in manifest["members"] if m["pid"] != manifest["root"])  # a new pid namespace gives it another number here
                self.assertEqual((member["state"], member["stop_signal"]), ("stopped", signal.SIGSTOP))
                if generation == 0:
                    self.assertEqual(member["stop_reported"], how == "reported")
                if generations:
                    tree.kill()
                    root = root_of(tree.restart(image))
                    child, = children_of(root)
                    wait_for(lambda: is_stopped(child), "the child to be stopped again")
            if generations:
                touch(tree, "restarted")
            touch(tree, "go")
            code, output = tree.finish()
            told = 0 if how == "reported" else signal.SIGSTOP
            self.assertEqual(output.decode(), f"ran 0 told {told} terms 0 conts 0\nchlds {'ok' if generations else 0}\n"
                             "continued 1\nterms 1 conts 1 interrupted 0 slept 0\nkilled 9\n")
            self.assertEqual(code, 0)
            failed = False
        finally:
            tree.close(failed)

    def test_running_on(self):
        self.run_threads("reported", 0, 0)

    def test_running_on_unreported(self):
        self.run_threads("unreported", 0, 0)

    def test_restarted(self):
        self.run_threads("reported", 0, 2)

    def test_restarted_unreported(self):
        self.run_threads("unreported", 0, 1)

    def test_child_is_asked(self):
        self.run_threads("reported", 0, 1, "child")

    def test_as_user(self):
        if os.geteuid() != 0:
            self.skipTest("is that user already")
        self.run_threads("reported", NOBODY, 1)

    def run_script(self, name, command, generations, uid=0):
        """The same output as without a checkpoint."""
        outputs = []
        for restarts in (0, generations):
            tree = Tree(f"stopped-{name}", command, uid=uid)
            failed = True
            try:
                if restarts:
                    tree.run()
                else:
                    tree.start(command, False)
                wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")) or tree.child.poll() is not None, "the stop")
                root = tree.child.pid
                for _ in range(restarts):
                    image = tree.checkpoint(root)
                    self.assertTrue(image.endswith(".job"), image)
                    tree.kill()
                    root = root_of(tree.restart(image))
                touch(tree, "go")
                outputs.append(tree.finish())
                failed = outputs[0] != outputs[-1]
            finally:
                tree.close(failed)
        self.assertEqual(outputs[0][0], 0, outputs)
        self.assertEqual(outputs[0], outputs[1])

    def test_shell(self):
        self.run_script("shell", ["bash", "-c", SHELL], 2)

    def test_shell_as_user(self):
        if os.geteuid() != 0:
            self.skipTest("is that user already")
        self.run_script("shell", ["bash", "-c", SHELL], 1, NOBODY)

    def test_many_unreported(self):
        self.run_script("many", ["python3", "-c", MANY], 1)

    def test_terminal(self):
        self.run_script("terminal", ["python3", "-c", TERMINAL], 2)

    def test_stopped_and_continued_meanwhile(self):
        """By somebody outside, at any instant: it computes what it would have, and no checkpoint hangs."""
        tree = Tree("stopped-toggled", ["bash", "-c", 'python3 -c "$1" & wait; echo $?', "bash", SUMS])
        failed = True
        ends = threading.Event()
        try:
            tree.run()
            root = tree.child.pid
            wait_for(lambda: [c for c in children_of(root) if handles_requests(c)], "python")
            child, = children_of(root)

            def toggle():
                chance = random.Random(5)
                while not ends.wait(chance.random() * 0.02):
                    os.kill(child, signal.SIGSTOP)
                    ends.wait(chance.random() * 0.05)
                    os.kill(child, signal.SIGCONT)

            toggler = threading.Thread(target=toggle)
            toggler.start()
            try:
                for _ in range(12):
                    image = tree.checkpoint(root)
            finally:
                ends.set()
                toggler.join()
            os.kill(child, signal.SIGCONT)
            tree.kill()
            root = root_of(tree.restart(image))
            touch(tree, "go")
            for child in children_of(root):
                os.kill(child, signal.SIGCONT)
            self.assertEqual(tree.finish(), (0, b"True\n0\n"))
            failed = False
        finally:
            tree.close(failed)

    def test_is_stopped_when_the_restart_is_done(self):
        """Who is told that the restart is done continues it: before it stopped that would be lost."""
        tree = Tree("stopped-done", ["bash", "-c", "sleep 1000 & wait; echo $?"])
        failed = True
        try:
            tree.run()
            root = tree.child.pid
            wait_for(lambda: [c for c in children_of(root) if handles_requests(c)], "the child")
            child, = children_of(root)
            os.kill(child, signal.SIGSTOP)
            wait_for(lambda: state_of(child) == "T", "the stop")
            image = tree.checkpoint(root)
            for _ in range(20):
                tree.kill()
                root = root_of(tree.restart(image))
                self.assertEqual([state_of(c) for c in children_of(root)], ["T"])
            child, = children_of(root)
            os.kill(child, signal.SIGTERM)
            os.kill(child, signal.SIGCONT)
            self.assertEqual(tree.finish(), (0, b"0\n"))
            failed = False
        finally:
            tree.close(failed)

    def test_tracer_is_killed(self):
        """All is as it was before, and the checkpoint is taken again."""
        tree = Tree("stopped-untraced", ["env", "CKPT_TEST_POINT=coordinator.standing=stop", threads_program(), "reported"])
        failed = True
        try:
            tree.run()
            wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")), "the child to be stopped")
            root = tree.child.pid
            child, = children_of(root)
            asker = subprocess.Popen([CKPT, "now", "--json", str(root)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
            wait_for(lambda: status_of(root)["State"] == "T (stopped)", "the point")
            os.kill(int(status_of(child)["TracerPid"]), signal.SIGKILL)
            wait_for(lambda: status_of(child)["TracerPid"] == "0", "the end of the tracing")
            os.kill(root, signal.SIGCONT)
            said = asker.communicate(timeout=PATIENCE)[0]
            self.assertEqual(asker.returncode, 0, said)
            self.assertEqual(json.loads(said)["job_attempts"], 2)
            self.still_stopped(child)
            touch(tree, "go")
            code, output = tree.finish()
            self.assertEqual(code, 0)
            self.assertIn("interrupted 0 slept 0", output.decode())
            failed = False
        finally:
            tree.close(failed)

    def test_alone(self):
        tree = Tree("stopped-alone", ["python3", "-c", ALONE])
        failed = True
        try:
            tree.run()
            pid = tree.child.pid
            wait_for(lambda: os.path.exists(os.path.join(tree.work, "ready")), "the program")
            os.kill(pid, signal.SIGSTOP)
            wait_for(lambda: status_of(pid)["State"] == "T (stopped)", "its stop")
            image = tree.checkpoint(pid)
            self.still_stopped(pid)
            asked = subprocess.run([CKPT, "stat", str(pid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertEqual(asked.returncode, 0, asked.stdout)
            self.still_stopped(pid)
            tree.kill()
            # ckpt-restart stops with the program, as a shell's job does.
            again = root_of(tree.restart(image, "--detach"))
            wait_for(lambda: status_of(again)["State"] == "T (stopped)", "its stop after the restart")
            touch(tree, "go")
            os.kill(again, signal.SIGCONT)
            # The program's word is at the beginning of the file. ckpt-restart appends the process id to it: sooner, and then the word is
            # written over it, or later.
            wait_for(lambda: tree.output().startswith(b"done\n"), "the program's end")
            failed = False
        finally:
            tree.close(failed)


if __name__ == "__main__":
    unittest.main()
