"""ckpt back of a job: all its processes go back to one instant, or nothing is changed and one line says why."""

import ctypes
import json
import os
import re
import subprocess
import sys
import time
import unittest

from support import CKPT, LIBRARY, ToldJob, UNAVAILABLE, UNSUPPORTED, clean_environment

# A parent and a child, which do what a line says. The child is told by a pipe, and answers by another.
JOB = r"""
import json, mmap, os, select, signal, socket, sys, threading, time
memory = mmap.mmap(-1, 1 << 20)
state = {"n": 0}
pipe = os.pipe()
def serve(read, write):
    while True:
        line = read()
        if not line: break
        try:
            result = eval(line)
        except Exception as error:
            result = repr(error)
        write(repr(result) + "\n")
ask, answer = os.pipe(), os.pipe()
BEFORE
child = os.fork()
if child == 0:
    os.close(ask[1]); os.close(answer[0])
    commands = os.fdopen(ask[0], "r", buffering=1)
    serve(commands.readline, lambda text: os.write(answer[1], text.encode()))
    os._exit(0)
os.close(ask[0]); os.close(answer[1])
answers = os.fdopen(answer[0], "r")
def tell(line):
    os.write(ask[1], (line + "\n").encode())
    return eval(answers.readline())
AFTER
serve(sys.stdin.readline, lambda text: os.write(1, text.encode()))
"""


def voluntary_switches(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        return int(re.search(r"^voluntary_ctxt_switches:\s+(\d+)", status.read(), re.MULTILINE)[1])


class BackOfJob(ToldJob):
    def start(self, before="", after="", **settings):
        env = clean_environment(LD_PRELOAD=LIBRARY, CKPT_DIR=self.path("images"), **settings)
        source = JOB.replace("BEFORE", before).replace("AFTER", after)
        program = subprocess.Popen([sys.executable, "-u", "-c", source], env=env, cwd=self.directory, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.program = program
        self.addCleanup(self.end)
        self.assertEqual(self.do("1 + 1"), 2)
        self.child = self.do("child")
        self.assertEqual(self.tell("2 + 1"), 3)
        return program.pid

    def now(self):
        answer = self.ckpt("now", "--json", self.program.pid)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)["job"]

    def back(self, *more, of=None):
        answer = self.ckpt("back", "--json", *more, of or self.program.pid)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)

    @staticmethod
    def name_of(pid):
        with open(f"/proc/{pid}/comm", encoding="ascii") as f:
            return f.read().strip()

    def wait_until(self, condition):
        end = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)  # between two looks

    def descriptors(self):
        return {pid: {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
                for pid in (self.program.pid, self.child)}

    def test_memory_and_pipe_of_two(self):
        for settings in ({}, {"CKPT_INCREMENTS": "8"}, {"CKPT_FAULTS": "in-thread"}, {"CKPT_FAULTS": "mprotect"},
                         {"CKPT_MODE": "fork"}):
            with self.subTest(settings=settings):
                self.start(**settings)
                self.do("state.update(n=1)")
                self.tell("state.update(n=2)")
                self.tell("memory.__setitem__(slice(0, 5), b'first')")
                self.tell("os.write(pipe[1], b'in the pipe')")
                before = self.descriptors()
                job = self.now()
                self.do("state.update(n=10, more=bytearray(20_000_000))")
                self.tell("state.update(n=20, more=bytearray(20_000_000))")
                self.do("memory.__setitem__(slice(0, 5), b'later')")
                self.tell("memory.__setitem__(slice(70000, 70005), b'later')")
                self.assertEqual(self.do("os.read(pipe[0], 6)"), b"in the")
                self.tell("os.write(pipe[1], b' and more')")
                said = self.back()
                self.assertEqual((said["members"], said["ended"], said["directory"]), (2, 0, job))
                self.assertEqual(self.do("state['n'], 'more' in state"), (1, False))
                self.assertEqual(self.tell("state['n'], 'more' in state"), (2, False))
                self.assertEqual(self.do("memory[0:5]"), b"first")
                self.assertEqual(self.tell("memory[0:5], memory[70000:70005]"), (b"first", bytes(5)))
                self.assertEqual(self.do("os.read(pipe[0], 100)"), b"in the pipe")
                self.assertEqual(self.descriptors(), before)
                # Again, and by the directory.
                self.do("state.update(n=3)")
                self.back(of=job)
                self.assertEqual(self.do("state['n'], os.read(pipe[0], 100)"), (1, b"in the pipe"))
                self.assertEqual(self.tell("state['n']"), 2)

    def test_a_hundred_times_nothing_grows(self):
        def counts():
            found = []
            for pid in (self.program.pid, self.child):
                with open(f"/proc/{pid}/status", encoding="ascii") as status:
                    size = next(line for line in status if line.startswith("VmSize"))
                with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
                    found.append((size, len(maps.readlines()), len(os.listdir(f"/proc/{pid}/fd"))))
            return found
        for settings in ({}, {"CKPT_INCREMENTS": "8"}):
            with self.subTest(settings=settings):
                self.start(**settings)
                self.now()
                self.back()
                # An agent that has nothing to do leaves a moment after its answer; where it watches what is written, it stays.
                self.wait_until(lambda: settings or all(os.listdir(f"/proc/{pid}/task") == [str(pid)] for pid in (self.program.pid, self.child)))
                before = counts()
                for n in range(100):
                    self.assertEqual(self.do(f"state['n'], state.update(n={n}), os.write(pipe[1], b'x')"), (0, None, 1))
                    self.back()
                end = time.monotonic() + 120
                while counts() != before and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertEqual(counts(), before)

    def test_what_a_process_born_since_has_written(self):
        """Nobody else has seen that: neither parent nor child have written to that memory."""
        for settings in ({}, {"CKPT_INCREMENTS": "8"}):
            with self.subTest(settings=settings):
                self.start(before="def other(): memory[9000:9002] = b'no'; memory[0:2] = b'no'; os.write(pipe[1], b'no'); time.sleep(1000)",
                           after="def bear():\n    pid = os.fork()\n    if pid == 0: other()\n    return pid", **settings)
                self.do("memory.__setitem__(slice(0, 2), b'ok')")
                self.now()
                self.do("bear()")
                self.wait_until(lambda: self.do("memory[9000:9002]") == b"no" and self.do("memory[0:2]") == b"no")
                self.assertEqual(self.back()["ended"], 1)
                self.assertEqual(self.tell("memory[9000:9002], memory[0:2]"), (bytes(2), b"ok"))
                self.do("os.set_blocking(pipe[0], False)")
                self.assertIn("BlockingIOError", self.do("os.read(pipe[0], 9)"))

    def test_a_pipe_whose_writer_has_ended(self):
        self.start(after="gone = os.pipe(); os.write(gone[1], b'of one who has ended'); os.close(gone[1])")
        self.now()
        for _ in range(2):
            self.assertEqual(self.do("os.read(gone[0], 6)"), b"of one")
            self.back()
        self.assertEqual(self.do("os.read(gone[0], 100), os.read(gone[0], 100)"), (b"of one who has ended", b""))

    def test_a_terminal_of_its_own(self):
        """The parent has the master, the child the other end: what went through it since is gone from both ends, and its settings are as
        they were; in packet mode nobody is told."""
        ready = """import fcntl, select, struct, termios, tty; master, slave = os.openpty()
def echoed():
    # An echo comes in pieces, and in packet mode each has a byte ahead of it.
    said = b''
    while not said.endswith(b'\\n'): said += os.read(master, 100).lstrip(b'\\0')
    return said
"""
        size = "struct.unpack('HHHH', fcntl.ioctl(slave, termios.TIOCGWINSZ, bytes(8)))[:2]"
        waiting = "bool(select.select([master], [], [master], 0)[0])"
        for packets in (0, 1):
            with self.subTest(packets=packets):
                self.start(before=ready + f"fcntl.ioctl(master, termios.TIOCPKT, struct.pack('i', {packets}))")
                self.tell("os.write(slave, b'before')")
                self.do("os.read(master, 100)")
                settings = self.do("termios.tcgetattr(slave)")
                self.now()
                for _ in range(2):
                    self.tell("tty.setraw(slave)")
                    self.tell("fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 30, 100, 0, 0))")
                    self.tell("os.write(slave, b'to the master')")
                    self.do("os.write(master, b'to the child')")
                    self.wait_until(lambda: self.do(waiting))
                    self.assertEqual(self.do(size), (30, 100))
                    self.back()
                    self.assertEqual(self.do("termios.tcgetattr(slave)"), settings)
                    self.assertEqual(self.do(size), (0, 0))
                    self.assertFalse(self.do(waiting))
                    # Nothing is in it but what is written now.
                    self.do("os.write(master, b'typed\\n')")
                    self.assertEqual(self.tell("os.read(slave, 100)"), b"typed\n")
                    self.assertEqual(self.do("echoed()"), b"typed\r\n")

    def test_an_end_of_input_that_waits(self):
        """Typed into the terminal before the checkpoint, and read since (Ctrl-D)."""
        self.start(before="master, slave = os.openpty()")
        self.do(r"os.write(master, b'\4')")
        self.now()
        for _ in range(2):
            self.assertEqual(self.tell("os.read(slave, 100)"), b"")
            self.do(r"os.write(master, b'typed\n')")
            self.back()
        self.assertEqual(self.tell("os.read(slave, 100)"), b"")

    def test_beside_checkpoints(self):
        """Who takes a checkpoint meanwhile has it, or is told to ask again; neither waits for the other for long."""
        self.start(CKPT_KEEP="0")
        job = self.now()
        now = [CKPT, "now", str(self.program.pid)]
        for _ in range(10):
            others = [subprocess.Popen(now, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True) for _ in range(2)]
            answer = self.ckpt("back", "--json", job)
            for other in others:
                _, said = other.communicate(timeout=60)
                self.assertIn(other.returncode, (0, UNAVAILABLE), said)
                if other.returncode != 0:
                    self.assertIn("about to go back", said)
            self.assertEqual(answer.returncode, 0, answer.stderr)
            self.assertEqual((self.do("state['n']"), self.tell("state['n']")), (0, 0))

    def pair_goes_back(self, make, takes=100):
        """pair: two ends, bytes both ways that are received since, and others that are sent."""
        self.start(before=make)
        self.do("pair[0].setblocking(False), pair[1].setblocking(False)")
        self.tell("pair[1].send(b'to the parent')")
        self.do("pair[0].send(b'to the child')")
        # What is sent by TCP may arrive a little later.
        self.do("len([select.select([end], [], []) for end in pair])")
        self.now()
        for _ in range(2):
            self.assertEqual(self.do(f"pair[0].recv({takes})")[:6], b"to the")
            self.assertEqual(self.tell("pair[1].recv(2)"), b"to")
            self.tell("pair[1].send(b' and more')")
            self.do("pair[0].send(b' and more')")
            self.back()
        self.assertEqual(self.do("pair[0].recv(1000)"), b"to the parent")
        self.assertEqual(self.tell("pair[1].recv(1000)"), b"to the child")
        self.assertIn("BlockingIOError", self.do("pair[0].recv(1000)"))
        self.do("pair[0].send(b'on')")
        self.assertEqual(self.tell("(select.select([pair[1]], [], []), pair[1].recv(1000))[1]"), b"on")

    def test_unix_stream(self):
        self.pair_goes_back("pair = socket.socketpair()")

    def test_unix_messages(self):
        for kind in ("SEQPACKET", "DGRAM"):
            with self.subTest(kind=kind):
                self.pair_goes_back(f"pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_{kind})")

    def test_a_pidfd_that_waits(self):
        """It still waits: it stays, with what is before and behind it. More has come, or it was received: refused."""
        self.start(before="pair = socket.socketpair()")
        self.do("pair[0].send(b'1'), socket.send_fds(pair[0], [b'2'], [os.pidfd_open(child)]), pair[0].send(b'3')")
        self.now()
        self.do("state.update(n=5)")
        self.back()
        self.assertEqual(self.do("state['n']"), 0)
        self.do("pair[0].send(b'4')")
        self.refuse_back("held descriptors")
        self.assertEqual(self.tell("pair[1].recv(1)"), b"1")
        self.assertIsNone(self.tell("signal.pidfd_send_signal(socket.recv_fds(pair[1], 1, 1)[1][0], 0)"))
        self.assertEqual(self.tell("pair[1].recv(9)"), b"34")
        self.refuse_back("held descriptors")

    def test_a_pipe_of_which_one_end_waits(self):
        """Its other end would be made anew: refused, and both ends stay one pipe."""
        self.start(before="pair = socket.socketpair()")
        self.do("state.update(p=os.pipe()), socket.send_fds(pair[0], [b'x'], [state['p'][0]]), os.close(state['p'][0])")
        self.now()
        self.refuse_back("held descriptors")
        self.assertEqual(self.do("os.write(state['p'][1], b'through')"), 7)
        self.assertEqual(self.tell("os.read(socket.recv_fds(pair[1], 1, 1)[1][0], 9)"), b"through")

    TCP = ("listener = socket.create_server(('127.0.0.1', 0)); first = socket.create_connection(listener.getsockname());"
           "pair = (first, listener.accept()[0]); listener.close()")

    def test_tcp(self):
        self.pair_goes_back(self.TCP, takes=6)

    def test_tcp_that_is_full(self):
        """More than the receiver's room, then and now: what has not arrived is taken out and sent again as well."""
        self.start(before=self.TCP + "\ndef fill(end, byte):\n    end.setblocking(False)\n    n = 0\n    try:\n"
                   "        while True: n += end.send(byte * 65536)\n    except BlockingIOError:\n        return n\n"
                   "def empty(end, n):\n    end.setblocking(True)\n    end.settimeout(20)\n    got = b''\n"
                   "    while len(got) < n: got += end.recv(min(1 << 20, n - len(got)))\n    return got == b'a' * n\n")
        there = self.do("fill(pair[0], b'a')")
        self.now()
        self.assertTrue(self.tell(f"empty(pair[1], {there // 2})"))
        self.do("fill(pair[0], b'b')")
        self.back()
        self.assertTrue(self.tell(f"empty(pair[1], {there})"))
        self.do("pair[0].setblocking(True), pair[0].sendall(b'end')")
        self.assertEqual(self.tell("pair[1].recv(100)"), b"end")

    def test_files_and_counters_in_common(self):
        path = self.path("file")
        self.start(before=f"""
import fcntl
file = open({path!r}, 'w+b', buffering=0); file.write(b'0123456789'); file.seek(4)
counter = os.eventfd(3, os.EFD_NONBLOCK)
anonymous = os.memfd_create('x'); os.write(anonymous, b'then'); view = mmap.mmap(anonymous, 4)
def lock(how): fcntl.lockf(file, how | fcntl.LOCK_NB, 1, 0)
""")
        self.tell("lock(fcntl.LOCK_EX)")
        before = self.descriptors()
        self.now()
        self.tell("lock(fcntl.LOCK_UN)")
        self.do("lock(fcntl.LOCK_EX)")
        self.tell("file.seek(0, 2), file.write(b' and more')")
        self.assertEqual(self.do("os.eventfd_read(counter), os.write(anonymous, b' now')")[0], 3)
        self.tell("os.eventfd_write(counter, 9)")
        self.tell("view.__setitem__(slice(0, 4), b'else')")
        self.back()
        self.assertEqual(self.descriptors(), before)
        self.assertEqual(self.do("file.tell(), os.fstat(file.fileno()).st_size"), (4, 10))
        self.assertEqual(self.tell("file.read(2), file.tell()"), (b"45", 6))
        self.assertEqual(self.do("file.tell()"), 6)
        self.assertIn("rror", self.do("lock(fcntl.LOCK_EX)"))
        self.assertEqual(self.do("os.eventfd_read(counter)"), 3)
        self.assertIn("BlockingIOError", self.tell("os.eventfd_read(counter)"))
        self.assertEqual(self.do("view[0:4], os.fstat(anonymous).st_size"), (b"then", 4))

    @unittest.skipUnless(os.environ.get("CKPT_LONG"), "six seconds of waiting: CKPT_LONG=1")
    def test_who_was_born_since_and_has_not_started_is_waited_for(self):
        """It has executed a program, and is not in the library yet when the others are held for longer than a busy machine takes."""
        seize, detach, trace_exec = 0x4206, 17, 0x10
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.start(before="go = os.pipe()\ndef execute(): os.read(go[0], 1); os.execv('/bin/sleep', ['sleep', '1000'])",
                   after="def bear():\n    pid = os.fork()\n    if pid == 0: execute()\n    return pid")
        self.now()
        late = self.do("bear()")
        self.assertEqual(libc.ptrace(seize, late, None, trace_exec), 0)
        self.do("os.write(go[1], b'x')")
        self.assertTrue(os.WIFSTOPPED(os.waitpid(late, 0x40000000)[1]))  # __WALL
        asked = subprocess.Popen([CKPT, "back", "--json", str(self.program.pid)], env=clean_environment(), stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        # ckpt back sleeps for 5 ms after each look at the process: 1,200 looks are 6 seconds, more than a process gets that may just be about to end.
        while voluntary_switches(asked.pid) < 1200:
            self.assertIsNone(asked.poll())
            time.sleep(0.02)
        self.assertEqual(libc.ptrace(detach, late, None, None), 0)
        out, err = asked.communicate(timeout=120)
        self.assertEqual(asked.returncode, 0, err)
        self.assertEqual(json.loads(out)["ended"], 1)
        self.assertEqual(self.do("1 + 1"), 2)

    def test_who_was_born_since_is_ended(self):
        self.start(after="import subprocess")
        self.now()
        first = self.do("state.setdefault('new', subprocess.Popen(['sleep', '1000'])).pid")
        orphan = self.tell("state.setdefault('new', __import__('subprocess').Popen(['sh', '-c', 'sleep 1000 & echo $!; "
                           "read x'], stdout=-1, stdin=-1)).pid")
        self.do("state.setdefault('dead', subprocess.Popen(['true'])).pid")
        said = self.back()
        self.assertGreaterEqual(said["ended"], 2)
        for pid in (first, orphan):
            self.assertFalse(os.path.exists(f"/proc/{pid}"), pid)
        for who in (self.do, self.tell):
            self.assertEqual(who("state"), {"n": 0})
            self.assertIn("ChildProcessError" if who == self.tell else "(0, 0)", repr(who("os.waitpid(-1, os.WNOHANG)")))

    def refuse_back(self, *words):
        self.do("state.update(n=77)")
        self.refuse(UNSUPPORTED, [*words], "back", self.program.pid)
        self.assertEqual(self.do("state['n']"), 77)

    def test_refusals_change_nothing(self):
        for change, word in (("os.close(other[0])", "was closed since"),
                             ("os.dup2(os.open('/dev/null', 0), other[0])", "was closed since"),
                             ("second[0].shutdown(socket.SHUT_WR)", "shut down"),
                             ("os.setsid()", "session"),
                             ("file.seek(0), os.dup2(os.open(path, os.O_RDWR), file.fileno())", "no more open together"),
                             ("first.close()", "shared with other processes")):
            with self.subTest(change=change):
                self.start(before=f"""
path = {self.path("file")!r}
file = open(path, 'w+b', buffering=0)
other, first, second = os.pipe(), mmap.mmap(-1, 4096), socket.socketpair()
""")
                self.now()
                self.tell("state.update(n=5)")
                self.tell(change)
                self.refuse_back(word)
                self.assertEqual(self.tell("state['n']"), 5)
                self.program.kill()

    def test_a_client_that_was_gone_before_it_was_accepted(self):
        self.start(before="""
listener = socket.create_server(('127.0.0.1', 0))
socket.create_connection(listener.getsockname()).close()
""")
        self.now()
        self.refuse_back("whose client is gone")

    def test_a_member_that_has_ended_is_named(self):
        self.start()
        self.now()
        child = self.child
        self.child = None
        os.kill(child, 9)
        self.refuse_back(str(child), "has ended since")
        self.do("os.waitpid(child, 0)")
        self.refuse_back(str(child), "has ended since")

    def test_a_member_that_has_executed_another_program_is_named(self):
        self.start()
        self.now()
        child, self.child = self.child, None
        self.program.stdin.write("os.write(ask[1], b\"os.execvp('sleep', ['sleep', '1000'])\\n\")\n")
        self.program.stdin.flush()
        self.program.stdout.readline()
        self.wait_until(lambda: self.name_of(child) == "sleep")
        self.refuse_back(str(child), "executed another program")

    def test_groups(self):
        self.start()
        self.now()
        self.tell("os.setpgid(0, 0)")
        self.back()
        self.assertEqual(self.tell("os.getpgid(0)"), self.program.pid)


if __name__ == "__main__":
    unittest.main()
