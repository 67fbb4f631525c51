#!/usr/bin/env python3
"""What a program is besides its memory, threads and descriptors: its place among processes, its priorities, its
capabilities, what it has told the kernel about memory to come. All of it is as it was after a restart, or a checkpoint says
that it will not be."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import tty
import unittest

from stepped_program import CKPT, RESTART, Program

# The tests may themselves run with a nice value.
OWN_NICE = os.getpriority(os.PRIO_PROCESS, 0)

# Each line of input is an expression, answered by its value in a line.
PROGRAM = """
import ctypes, mmap, os, queue, re, resource, signal, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def status(name): return re.search('^%s:\\\\s*(.*)$' % name, open('/proc/self/status').read(), re.M).group(1)
def text(path): return open(path).read().strip()
def write(path, what):
    with open(path, 'w') as f: f.write(what)
def locked_by_mapping():
    # KiB that are locked because 64 pages are mapped, and because one of these is touched.
    before = int(status('VmLck').split()[0])
    at = libc.mmap(None, 64 << 12, 3, 0x22, -1, 0)
    there = ctypes.create_string_buffer(64)
    libc.mincore(ctypes.c_void_p(at), 64 << 12, there)
    return int(status('VmLck').split()[0]) - before, there.raw.count(b'\\1')
class Timer:
    # Of the processor time of a thread that works when it is told to.
    def __init__(self):
        self.expired, self.work, self.ready = 0, threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        self.ready.acquire()
    def burn(self, seconds):
        end = time.thread_time() + seconds
        while time.thread_time() < end and not self.expired: pass  # seen at a clock tick
    def run(self):
        # For the first thread, which runs handlers: if this one gets the signal, the first waits on until the work is over.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        event = struct.pack('QiI48x', 0, signal.SIGUSR1, 0)
        timer = ctypes.c_void_p()
        # More than a stop uses of it, also where the host takes the processor away meanwhile and the kernel counts that.
        assert libc.timer_create(3, event, ctypes.byref(timer)) == 0
        assert libc.timer_settime(timer, 0, struct.pack('qqqq', 0, 0, 0, 200000000), None) == 0
        self.ready.release()
        self.work.acquire()
        self.burn(5)
        self.ready.release()
    def of_others(self):
        self.burn(0.3)
        return self.expired
    def of_its_thread(self):
        self.work.release()
        self.ready.acquire()
        return self.expired
    def until_its_thread_is_gone(self):
        while os.path.exists('/proc/self/task/%d' % self.thread.native_id): pass
class Used:
    # Processor time, as each call tells it.
    def __init__(self):
        self.asks, self.answers = queue.Queue(), queue.Queue()
        threading.Thread(target=self.run, daemon=True).start()
        for call in (self.burn, self.burn): call()
        self.in_thread(self.burn)
        subprocess.run([sys.executable, '-c', 'import time' + chr(10) + 'while time.process_time() < 0.2: pass'])
    def burn(self):
        end = time.thread_time() + 0.15
        while time.thread_time() < end: pass
    def run(self):
        while True: self.answers.put(self.asks.get()())
    def in_thread(self, call):
        self.asks.put(call)
        return self.answers.get()
    def of_thread(self):
        used = resource.getrusage(resource.RUSAGE_THREAD)
        return [time.thread_time(), used.ru_utime + used.ru_stime, used.ru_minflt]
    def all(self):
        used = resource.getrusage(resource.RUSAGE_SELF)
        libc.clock.restype = ctypes.c_long
        raw = struct.pack('qq', 0, 0)
        libc.syscall(228, 2, raw)
        return [time.process_time(), libc.clock(), used.ru_utime, used.ru_stime, used.ru_minflt, used.ru_nvcsw, used.ru_maxrss, os.times()[0],
                struct.unpack('qq', raw), time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident)),
                *self.of_thread(), *self.in_thread(self.of_thread)]
    def note(self): self.before = self.all()
    def gone_back(self): return [(i, *pair) for i, pair in enumerate(zip(self.before, self.all())) if pair[1] < pair[0]]
    def of_children(self):
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime > 0.1, used.ru_utime, used.ru_stime, used.ru_minflt, used.ru_maxrss, os.times()[2:4]
    def of_child(self):
        r, w = os.pipe()
        if os.fork() == 0:
            os.write(w, str(time.process_time()).encode())
            os._exit(0)
        os.wait()
        return float(os.read(r, 100))
    def of_new_thread(self):
        times = []
        thread = threading.Thread(target=lambda: times.append(time.thread_time()))
        thread.start()
        thread.join()
        return times[0]
    def sleep_until(self, more):
        # Of the clock of processor time, which another thread moves on.
        until = int((time.process_time() + more) * 1e9)
        self.asks.put(self.burn)
        slept = libc.clock_nanosleep(2, 1, struct.pack('qq', until // 10**9, until % 10**9), None)
        self.answers.get()
        return slept if time.process_time() * 1e9 >= until else -1
def forbid_nothing():
    libc.prctl(38, 1, 0, 0, 0)
    allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
    return libc.prctl(22, 2, struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow)), 0, 0)
def be_killed_by_writing_to_processes():
    libc.prctl(38, 1, 0, 0, 0)
    number, if_equal, kill, allow = (0x20, 0, 0, 0), (0x15, 0, 1, 311), (6, 0, 0, 0x80000000), (6, 0, 0, 0x7fff0000)
    program = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in (number, if_equal, kill, allow)))
    return libc.prctl(22, 2, struct.pack('HxxxxxxQ', 4, ctypes.addressof(program)), 0, 0)
def interrupted(*_): os.write(1, b'interrupted\\n')
def resized(*_): os.write(1, b'resized\\n')
def expired(*_): timer.expired += 1
signal.signal(signal.SIGUSR1, expired)
print('up', flush=True)
for line in sys.stdin:
    try: answer = eval(line)
    except Exception as e: answer = repr(e)
    print(answer, flush=True)
"""

needs_root = unittest.skipIf(os.geteuid() != 0, "needs root")
ANOTHER_USER = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


class Surroundings(unittest.TestCase):
    def setUp(self):
        signal.signal(signal.SIGALRM, lambda *_: self.fail("hangs"))
        signal.alarm(240)
        self.addCleanup(signal.alarm, 0)
        self.directory = tempfile.mkdtemp(prefix="ckpt-surroundings-")
        self.addCleanup(shutil.rmtree, self.directory)
        os.chmod(self.directory, 0o777)
        self.images = os.path.join(self.directory, "images")

    def start(self, *how):
        self.program = Program([*how, CKPT, "run", "--dir", self.images, "--", "/usr/bin/python3", "-c", PROGRAM])
        self.addCleanup(self.program.child.kill)
        self.assertEqual(self.program.child.stdout.readline(), b"up\n")
        self.pid = self.program.child.pid
        return self.program

    def checkpoint(self):
        """Returns what the checkpoint had to say."""
        now = subprocess.run([CKPT, "now", "--json", str(self.pid)], capture_output=True, check=True, timeout=60)
        return json.loads(now.stdout).get("notes", [])

    def kill_program(self):
        os.kill(self.pid, signal.SIGKILL)
        self.end()

    def end(self):
        if not self.program.child.stdin.closed:
            self.program.end()

    def come_back(self, *options, how=()):
        self.checkpoint()
        self.kill_program()
        return self.restart(*options, how=how)

    def restart(self, *options, how=()):
        self.program = Program([*how, RESTART, "--json", *options, self.images])
        self.addCleanup(self.program.child.kill)
        said = self.program.said()
        self.assertTrue(said["ok"], said)
        self.addCleanup(self.end)
        self.notes = said["notes"]
        self.pid = said["outer_pid"]
        return self.program

    def stays(self, program, question, *options, how=()):
        before = program.ask(question)
        self.assertNotIn("Error", before)
        after = self.come_back(*options, how=how)
        self.assertEqual(after.ask(question), before)

    def test_session(self):
        leads = "os.getsid(0) == os.getpid() == os.getpgrp()"
        for options in ([], ["--namespaces", "always"]):
            program = self.start("setsid")
            self.assertEqual(program.ask(leads), "True")
            self.assertEqual(self.come_back(*options).ask(leads), "True")
            self.end()

    def test_process_group(self):
        program = self.start()
        self.assertEqual(program.ask("os.setpgid(0, 0)"), "None")
        # Without a terminal.
        self.assertEqual(self.come_back(how=["setsid"]).ask("os.getpgrp() == os.getpid()"), "True")

    def test_member_of_a_group(self):
        self.start()
        self.assertEqual(self.come_back().ask("os.getpgrp()"), str(os.getpgrp()))

    def test_interrupted_at_the_terminal_though_in_another_session(self):
        program = self.start("setsid")
        self.assertEqual(program.ask("signal.signal(signal.SIGINT, interrupted) and None"), "None")
        self.checkpoint()
        self.kill_program()
        pid, terminal = self.run_on_terminal(RESTART, "--json", self.images)
        self.read_until(terminal, b'"ok":true')
        os.write(terminal, b"\x03")
        self.read_until(terminal, b"interrupted")
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)

    @staticmethod
    def on_terminal(*argv):
        pid, terminal = pty.fork()
        if pid == 0:
            os.execvp(argv[0], argv)
        return pid, terminal

    @staticmethod
    def read_until(terminal, pattern):
        got = b""
        while not re.search(pattern, got):
            got += os.read(terminal, 1000)
        return got

    @staticmethod
    def settings(terminal):
        """Input, output and local modes, control characters."""
        all_of_them = termios.tcgetattr(terminal)
        return all_of_them[:2] + [all_of_them[3], all_of_them[6]]

    def settings_of_a_new_one(self):
        """Of a terminal that nobody uses."""
        ends = pty.openpty()
        try:
            return self.settings(ends[0])
        finally:
            for end in ends:
                os.close(end)

    def run_on_terminal(self, *argv):
        pid, terminal = self.on_terminal(*argv)
        self.addCleanup(os.close, terminal)
        return pid, terminal

    @staticmethod
    def kill(pid):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def test_terminal(self):
        pid, first = self.run_on_terminal(CKPT, "run", "--dir", self.images, "--", "/usr/bin/python3", "-c", PROGRAM)
        self.read_until(first, b"up")
        fcntl.ioctl(first, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        os.write(first, b"'set' if signal.signal(signal.SIGWINCH, resized) == 0 else 'no'\n")
        self.read_until(first, b"\nset")
        os.write(first, b"__import__('tty').setraw(0)\n")
        while self.settings(first)[2] & termios.ICANON:
            pass
        raw = self.settings(first)
        subprocess.run([CKPT, "now", str(pid)], check=True, stdout=subprocess.DEVNULL, timeout=60)
        self.kill(pid)
        self.assertNotEqual(self.settings_of_a_new_one(), raw)
        pid, second = self.run_on_terminal(RESTART, "--json", self.images)
        self.read_until(second, b"resized")
        self.assertEqual(self.settings(second), raw)
        os.write(second, b"'it goes' + ' on'\n")
        self.read_until(second, b"it goes on")
        self.kill(pid)

    def test_terminal_that_the_shell_has_for_itself(self):
        # The program is in the background, and the shell edits its next line.
        pid, first = self.run_on_terminal("sh", "-c", "set -m; \"$@\" & echo pid $!; wait", "sh", CKPT, "run", "--dir", self.images,
                                          "--", "/usr/bin/python3", "-c", "import time; print('up', flush=True); time.sleep(1000)")
        said = self.read_until(first, rb"(?s)(?=.*pid \d+\r)(?=.*up\r)")
        program = int(re.search(rb"pid (\d+)", said).group(1))
        tty.setraw(first)
        subprocess.run([CKPT, "now", str(program)], check=True, stdout=subprocess.DEVNULL, timeout=60)
        os.kill(program, signal.SIGKILL)
        os.waitpid(pid, 0)
        pid, second = self.run_on_terminal(RESTART, "--json", self.images)
        self.read_until(second, b'"ok":true')
        self.assertEqual(self.settings(second), self.settings_of_a_new_one())
        os.write(second, b"\x03")
        os.waitpid(pid, 0)

    @needs_root
    def test_priorities_of_another_user(self):
        # Less likely to be killed is only for those with CAP_SYS_RESOURCE.
        program = self.start("sh", "-c", "for n in 300 -300; do echo $n > /proc/self/oom_score_adj; done 2> /dev/null; exec \"$@\"", "sh",
                             "nice", "-n", "-5", *ANOTHER_USER)
        question = "os.getuid(), os.getpriority(os.PRIO_PROCESS, 0), text('/proc/self/oom_score_adj'), status('CapPrm')"
        self.assertRegex(program.ask(question), rf"\(65534, {OWN_NICE - 5}, '-?300', '0000000000000000'\)")
        self.stays(program, question, "--trust")
        self.assertEqual(self.notes, [])

    @needs_root
    def test_what_cannot_be_had_is_said(self):
        self.start("nice", "-n", "-5")
        self.checkpoint()
        self.kill_program()
        for path, directories, files in os.walk(self.images):
            for name in [path, *(os.path.join(path, f) for f in files)]:
                os.chown(name, 65534, 65534, follow_symlinks=False)
        self.restart(how=ANOTHER_USER)
        self.assertEqual(self.program.ask("os.getpriority(os.PRIO_PROCESS, 0)"), str(OWN_NICE))
        self.assertTrue([n for n in self.notes if "nice value" in n], self.notes)

    def test_settings_of_the_process(self):
        program = self.start()
        for step in ("write('/proc/self/coredump_filter', '0x7')", "write('/proc/self/oom_score_adj', '321')",
                     "libc.syscall(251, 1, 0, 2 << 13 | 7) or None"):
            self.assertEqual(program.ask(step), "None")
        self.stays(program, "text('/proc/self/coredump_filter'), text('/proc/self/oom_score_adj'), libc.syscall(252, 1, 0)")

    @needs_root
    def test_capabilities_of_another_user(self):
        own = int(re.search(r"CapPrm:\s*(\w+)", open("/proc/self/status").read()).group(1), 16)
        for which in ("+net_raw", ",".join("+cap_%d" % n for n in range(64) if own >> n & 1)):
            program = self.start(*ANOTHER_USER, "--inh-caps=" + which, "--ambient-caps=" + which)
            self.assertEqual(program.ask("threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"), "None")
            question = "os.getuid(), [status('Cap' + c) for c in ('Inh', 'Prm', 'Eff', 'Bnd', 'Amb')]"
            self.assertNotIn("'0000000000000000'", program.ask(question))
            self.stays(program, question, "--trust")
            self.end()
            shutil.rmtree(self.images)

    @needs_root
    def test_memory_to_come_is_locked(self):
        for flags, expected in ((2, "(256, 64)"), (2 | 4, "(256, 0)"), (0, "(0, 0)")):
            program = self.start()
            self.assertEqual(program.ask("libc.mlockall(%d) if %d else 0" % (flags, flags)), "0")
            self.assertEqual(program.ask("locked_by_mapping()"), expected)
            for _ in range(2):
                self.assertEqual(self.come_back().ask("locked_by_mapping()"), expected)
            self.end()
            shutil.rmtree(self.images)

    def test_timer_of_a_threads_time(self):
        program = self.start()
        self.assertEqual(program.ask("globals().update(timer=Timer())"), "None")
        program = self.come_back()
        self.assertEqual(program.ask("timer.of_others()"), "0")
        self.assertEqual(program.ask("timer.of_its_thread()"), "1")

    def test_processor_time(self):
        program = self.start()
        self.assertEqual(program.ask("globals().update(used=Used())"), "None")
        for _ in range(2):
            children = program.ask("used.of_children()")
            self.assertEqual(program.ask("used.note()"), "None")
            program = self.come_back()
            self.assertEqual(program.ask("used.of_children()"), children)
            # Each clock of the process, of its first thread and of another one goes on from there.
            self.assertEqual(program.ask("used.gone_back()"), "[]")
            # A child begins with nothing; so does a thread, and what both use is added.
            self.assertEqual(program.ask("used.of_child() < 0.2, used.of_new_thread() < 0.2"), "(True, True)")
            self.assertEqual(program.ask("used.sleep_until(0.02)"), "0")

    def test_timer_of_a_thread_that_has_ended(self):
        program = self.start()
        for step, answer in (("globals().update(timer=Timer())", "None"), ("timer.of_its_thread()", "1"),
                             ("timer.until_its_thread_is_gone()", "None"), ("'signal' in text('/proc/self/timers')", "True")):
            self.assertEqual(program.ask(step), answer)
        for _ in range(2):
            self.assertEqual(self.come_back().ask("timer.expired, 'signal' in text('/proc/self/timers')"), "(1, True)")

    def test_what_is_lost_is_said(self):
        program = self.start()
        self.assertEqual(self.checkpoint(), [])
        self.assertIn("Popen", program.ask("globals().update(child=subprocess.Popen(['sleep', '1000'])) or child"))
        # With a child it is a job, of which nothing is lost.
        self.assertEqual(self.checkpoint(), [])
        self.assertEqual(program.ask("child.kill() or child.wait()"), "-9")
        self.assertEqual(self.checkpoint(), [])
        self.assertEqual(program.ask("libc.prctl(1, 15)"), "0")
        self.assertEqual(["PR_SET_PDEATHSIG" in n for n in self.checkpoint()], [True])
        # A filter of one thread of two.
        self.assertEqual(program.ask("threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"), "None")
        self.assertEqual(program.ask("libc.prctl(1, 0) or forbid_nothing()"), "0")
        self.assertEqual(["seccomp" in n for n in self.checkpoint()], [True])
        self.restart_again()

    def test_a_filter_that_kills(self):
        # process_vm_writev(2), one of two calls that copy memory: whose filter knows only the other lives on.
        program = self.start()
        self.assertEqual(program.ask("globals().update(memory=os.urandom(16 << 20)) or be_killed_by_writing_to_processes()"), "0")
        self.assertEqual(self.checkpoint(), [])
        self.assertEqual(program.ask("len(memory)"), str(16 << 20))
        self.assertEqual(self.come_back().ask("len(memory)"), str(16 << 20))
        self.assertEqual(self.checkpoint(), [])

    def restart_again(self):
        # What surrounds ckpt-restart is not the program's doing.
        self.come_back()
        self.assertEqual(["seccomp" in n for n in self.notes], [True])
        self.assertEqual(self.checkpoint(), [])


if __name__ == "__main__":
    sys.exit(unittest.main())
