#!/usr/bin/env python3
"""Kernel objects of one process: each comes back as it was, or the checkpoint says that it will not and no restart is
promised."""

import ctypes
import json
import os
import select
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from own_network import enter_own_ipc, enter_own_network  # noqa: E402
from stepped_program import CKPT, RESTART, Program, environment
from stepped_test import LOOP, NOT_RESTARTABLE, PRELUDE, SteppedTest, needs_root


class Verdicts(SteppedTest):
    """What no restart can bring back is said by the checkpoint, by the list, and by the restart."""

    def says_no(self, word):
        code, said = self.now()
        self.assertEqual(code, NOT_RESTARTABLE, said)
        self.assertEqual(said["restartable"], False)
        self.assertIn(word, " ".join(said["why_not_restartable"]))
        listed = json.loads(subprocess.run([CKPT, "ls", "--json", self.images], capture_output=True, check=True).stdout)
        self.assertEqual([(i["state"], i["restartable"]) for i in listed][-1], ("no restart", False))
        shown = json.loads(subprocess.run([CKPT, "show", "--json", self.images], capture_output=True, check=True).stdout)
        self.assertEqual(shown["restartable"], False)
        code, verdict = self.verify_restartable()
        self.assertEqual((code, verdict["ok"], verdict["restartable"]), (NOT_RESTARTABLE, True, False))
        code, text = self.refused()
        self.assertEqual(code, NOT_RESTARTABLE)
        self.assertIn(word, text)

    def test_one_that_can_be(self):
        self.start(CKPT_FILES="none")
        self.assertEqual(self.checkpoint(), [])
        self.assertEqual(self.verify_restartable()[1]["restartable"], True)
        # What the image cannot know.
        self.do("f = open('file', 'w+b')")
        self.checkpoint()
        os.unlink(self.path("file"))
        code, verdict = self.verify_restartable()
        self.assertEqual((code, verdict["restartable"]), (72, False))
        self.assertIn("file", verdict["problem"])
        self.assertEqual(os.path.exists(self.path("file")), False)

    def test_io_uring(self):
        """One that is made past the library: rings.py has the others."""
        self.start()
        self.do("past = ctypes.CDLL('libc.so.6').syscall")
        ring = self.ask("past(425, 4, ctypes.create_string_buffer(120))")
        if not ring.isdigit():
            self.skipTest("no io_uring here: " + ring)
        self.says_no("io_uring")
        self.do("m = libc.mmap(None, 4096, 3, 1, %s, 0)" % ring)
        self.says_no("io_uring")
        # No longer, and older images are still there.
        self.do("call(11, m, 4096)", "os.close(%s)" % ring)
        self.assertEqual(self.come_back(), [])

    def test_memory_of_a_socket(self):
        """Where a TCP socket maps what it receives (TCP_ZEROCOPY_RECEIVE): had again as long as nothing is there, of a socket that is there."""
        self.start()
        self.do("s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); c = socket.create_connection(s.getsockname()); a = s.accept()[0]",
                "fd = c.fileno()", "m = libc.mmap(None, 8192, 1, 1, fd, 0)", "n = libc.mmap(None, 4096, 1, 2, s.fileno(), 0)",
                "mapped = lambda: sorted((int(l.split('-')[0], 16) in (m, n), l.split()[1], l.split()[4] in [str(os.fstat(f).st_ino) for f in (fd, s.fileno())])"
                " for l in open('/proc/self/maps') if 'socket:[' in l)")
        self.assertEqual(self.ask("mapped()"), "[(True, 'r--p', True), (True, 'r--s', True)]")
        for _ in range(2):
            self.stays("mapped()")
        self.assertEqual(self.ask("a.send(b'works') and c.recv(5)"), "b'works'")
        self.do("fd = os.dup(c.fileno())", "c.close()")
        self.stays("mapped()")
        self.do("os.close(fd)")
        code, said = self.now()
        self.assertEqual(code, NOT_RESTARTABLE, said)
        self.assertIn("memory of a socket", str(said))

    def test_what_cannot_be_restarted_does_not_replace_what_can(self):
        self.start(CKPT_KEEP="1")
        self.checkpoint()
        ring = self.ask("ctypes.CDLL('libc.so.6').syscall(425, 4, ctypes.create_string_buffer(120))")
        if not ring.isdigit():
            self.skipTest("no io_uring here: " + ring)
        self.assertEqual(self.now()[0], NOT_RESTARTABLE)
        self.assertEqual(len([f for f in os.listdir(self.images) if f.endswith(".ckpt")]), 2)


class ProcFiles(SteppedTest):
    def test_of_itself(self):
        self.start()
        self.do("a = open('/proc/self/status'); b = open('/proc/%d/maps' % os.getpid()); c = os.open('/proc/self', os.O_RDONLY)",
                "d = os.open('/proc/self/task', os.O_RDONLY); e = open('/proc/self/mem', 'r+b'); a.readline()")
        for options in ([], ["--namespaces", "always"]):
            self.assertEqual(self.come_back(*options), [])
            pid = self.ask("os.getpid()")
            self.assertEqual(self.ask("a.seek(0) or [l for l in a if l.startswith('Pid')]"), "['Pid:\\t%s\\n']" % pid)
            self.assertEqual(self.ask("b.seek(0) or 'python' in b.read()"), "True")
            self.assertEqual(self.ask("'status' in os.listdir(c) and os.listdir(d)"), "['%s']" % pid)
            self.do("x = ctypes.create_string_buffer(b'before'); e.seek(ctypes.addressof(x)); e.write(b'after!'); e.flush()")
            self.assertEqual(self.ask("x.value"), "b'after!'")

    def test_of_a_descriptor_of_itself(self):
        self.start()
        self.do("z = open('file', 'w')", "info = open('/proc/self/fdinfo/%d' % z.fileno())")
        self.assertEqual(self.come_back(), [])
        self.do("z.write('12345'); z.flush()")
        self.assertEqual(self.ask("info.seek(0) or info.readline().split()"), "['pos:', '5']")

    def test_of_a_thread(self):
        self.start()
        self.do("t = threading.Thread(target=lambda: select.select([], [], []), daemon=True); t.start()",
                "f = open('/proc/self/task/%d/comm' % t.native_id)")
        self.assertIn("thread", " ".join(self.come_back()))
        self.assertEqual(self.ask("len(f.read())"), "0")

    def test_of_another_process(self):
        self.start()
        with subprocess.Popen(["sleep", "1000"]) as other:
            self.do("f = open('/proc/%d/stat')" % other.pid)
            notes = self.checkpoint()
            other.kill()
        self.assertIn(str(other.pid), " ".join(notes))
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("len(f.read())"), "0")


class Addresses(SteppedTest):
    LISTENS = "x = socket.create_connection(s.getsockname()[:2]); y = s.accept()[0]; x.sendall(b'hello')"

    def test_port_that_waits(self):
        # The connection may share the port, which the kernel allows only if the new socket may too.
        self.start()
        reuse = "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, %d)"
        self.do("s = socket.socket(); %s; s.bind(('127.0.0.1', 0)); s.listen()" % (reuse % 1),
                "c = socket.create_connection(s.getsockname()); a = s.accept()[0]; a.close(); c.recv(1); c.close()", reuse % 0)
        self.stays("s.getsockname(), s.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)")
        self.do(self.LISTENS)
        self.assertEqual(self.ask("y.recv(10)"), "b'hello'")

    # Its end of the connection was closed first: it waits, for a minute, and nobody has ever said SO_REUSEADDR.
    WAITS = ("s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()",
             "c = socket.create_connection(s.getsockname()); a = s.accept()[0]; a.close(); c.recv(1); c.close(); del a, c")

    @needs_root
    def test_port_that_waits_and_is_not_shared(self):
        self.start()
        self.do(*self.WAITS)
        self.stays("s.getsockname(), s.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)")
        self.do(self.LISTENS)
        self.assertEqual(self.ask("y.recv(10)"), "b'hello'")

    @needs_root
    def test_port_that_is_waited_for(self):
        """Who may not end the connection waits for it, and says so while it waits."""
        self.start()
        self.do(*self.WAITS)
        before = self.ask("s.getsockname()")
        self.checkpoint()
        self.kill_program()
        self.program = Program(["setpriv", "--bounding-set=-net_admin", RESTART, self.images])
        self.addCleanup(self.program.child.kill)
        self.assertIn(b"waiting for it", self.program.child.stderr.readline())
        of_port = ["state", "time-wait", "sport", "=", before.rstrip(")").split()[1]]
        self.assertNotEqual(subprocess.run(["ss", "-tnH", *of_port], capture_output=True, check=True).stdout, b"")
        subprocess.run(["ss", "-K", "-tnH", *of_port], capture_output=True, check=True)
        self.assertEqual(self.ask("s.getsockname()"), before)
        self.end()

    def test_port_that_somebody_listens_on_is_refused(self):
        self.start()
        self.do("s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()")
        port = int(self.ask("s.getsockname()[1]"))
        self.checkpoint()
        self.kill_program()
        with subprocess.Popen([sys.executable, "-c", "import socket, sys; s = socket.socket(); s.bind(('127.0.0.1', %d)); s.listen(); "
                               "print('up', flush=True); sys.stdin.read()" % port], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            other.stdout.readline()
            code, text = self.refused()
            other.stdin.close()
        self.assertEqual(code, 69)
        self.assertIn("port %d" % port, text)

    @needs_root
    def test_ended_connections_of_an_address_that_is_not_here(self):
        # Clients of another host have closed theirs: nobody waits for ports of that host, a second and a half each.
        self.start("unshare", "--net")
        self.do("[subprocess.run(['ip', *words.split()], check=True) for words in ('link set lo up', 'addr add 10.77.0.1/32 dev lo')]",
                "s = socket.create_server(('127.0.0.1', 0), backlog=100); a = []",
                "for i in range(60):\\n c = socket.create_connection(s.getsockname(), source_address=('10.77.0.1', 0)); a.append(s.accept()[0]); c.close(); a[-1].recv(1, socket.MSG_PEEK)")
        self.checkpoint()
        self.kill_program()
        # Elsewhere: a network without that address.
        done = subprocess.run(["unshare", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh", RESTART, "--json", self.images],
                              input=b"len(a), {c.recv(1) for c in a}\n", capture_output=True, timeout=60, check=False, env=environment())
        self.assertEqual(done.stdout, b"(60, {b''})\n", done.stderr)

    def test_address_that_is_not_here(self):
        self.start()
        if self.ask("attempt(lambda: socket.socket(socket.AF_INET6).bind(('::1', 0)))") != "None":
            self.skipTest("no IPv6 here")
        self.do("s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM); s.setsockopt(41, 78, 1); s.bind(('2001:db8::17', 0)); s.listen()")
        self.stays("s.getsockname(), s.getsockopt(41, 78)")

    def test_name_whose_directory_is_gone(self):
        self.start()
        for listens in ("True", "False"):
            self.do("os.mkdir('d'); s = socket.socket(socket.AF_UNIX); s.bind(os.path.abspath('d/name')); %s and s.listen()" % listens,
                    "os.unlink('d/name'); os.rmdir('d')")
            self.come_back()
            self.assertIn("d/name", " ".join(self.notes))
            self.assertEqual(self.ask("s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == %s" % listens), "True")


class Children(SteppedTest):
    """Of a program that is saved alone."""

    # Which ends with its parent, so that none is left behind.
    CHILD = ("c = subprocess.Popen(['/usr/bin/sleep', '1000'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, "
             "stderr=subprocess.DEVNULL, preexec_fn=lambda: libc.prctl(1, 9))")

    def checkpoint(self, *options):
        return super().checkpoint(*options, "--only")

    def test_that_lived_have_been_killed(self):
        self.start()
        self.do("caught = []; signal.signal(signal.SIGCHLD, lambda *_: caught.append(1))", self.CHILD)
        for options in ([], ["--namespaces", "always"]):
            self.assertEqual(["child processes" in n for n in self.checkpoint()], [True])
            self.kill_program()
            self.restart(*options)
            # Waited for by another call each time, so that the next restart finds it ended but not waited for.
            self.assertEqual(self.ask("os.waitid(os.P_PID, c.pid, os.WEXITED | os.WNOWAIT).si_status, len(caught)"), "(9, 1)")
            self.do(self.CHILD, "caught.clear()")
        self.assertEqual(self.ask("c.poll()"), "None")
        self.do("c.kill()")
        self.assertEqual(self.ask("c.wait()"), "-9")

    def test_that_had_ended_have_ended_so(self):
        self.start()
        self.do("a = subprocess.Popen(['/bin/sh', '-c', 'exit 7']); b = subprocess.Popen(['/bin/sh', '-c', 'kill -15 $$'])",
                "[os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT) for p in (a, b)]",
                "caught = []; signal.signal(signal.SIGCHLD, lambda *_: caught.append(1))")
        self.assertEqual(self.checkpoint(), [])
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("a.wait(), b.wait(), len(caught)"), "(7, -15, 0)")
        self.assertEqual(self.ask("attempt(os.wait)"), "ECHILD")

    def test_that_had_ended_with_a_signal_of_their_own(self):
        # Made by a bare clone(2). The program had the signal before the checkpoint.
        self.start()
        self.do("caught = []; signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))",
                "b = subprocess.Popen(['/bin/true']); os.waitid(os.P_PID, b.pid, os.WEXITED | os.WNOWAIT)",
                "c = call(56, int(signal.SIGUSR1), 0, 0, 0, 0) or os._exit(7)", "os.waitid(os.P_PID, c, os.WEXITED | os.WNOWAIT | 0x40000000)")
        self.assertEqual(self.ask("len(caught)"), "1")
        self.come_back()
        self.assertEqual(self.ask("os.waitpid(c, 0x40000000)[1] >> 8, len(caught)"), "(7, 1)")

    def test_of_who_does_not_wait(self):
        self.start()
        self.do("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", self.CHILD)
        self.come_back()
        self.assertEqual(self.ask("attempt(os.wait)"), "ECHILD")

    def test_pidfds(self):
        self.start()
        self.do(self.CHILD, "mine = os.pidfd_open(os.getpid()); its = os.pidfd_open(c.pid); other = os.pidfd_open(%d)" % os.getpid(),
                "poll = lambda fd: bool(select.select([fd], [], [], 0)[0])")
        self.assertEqual(self.ask("[poll(fd) for fd in (mine, its, other)]"), "[False, False, False]")
        notes = self.checkpoint()
        self.assertEqual(sum("pidfd" in n for n in notes), 2)
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("[poll(fd) for fd in (mine, its, other)]"), "[False, True, True]")
        self.assertEqual(self.ask("os.waitid(os.P_PIDFD, its, os.WEXITED).si_status"), "9")
        self.assertEqual(self.ask("attempt(signal.pidfd_send_signal, other, 0)"), "ESRCH")
        self.assertEqual(self.ask("attempt(signal.pidfd_send_signal, mine, 0)"), "None")


class Others(SteppedTest):
    def test_deleted_working_directory(self):
        self.start()
        self.do("os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')")
        for _ in range(2):
            self.come_back()
            self.assertEqual(self.ask("attempt(os.getcwd), os.listdir('.'), attempt(os.open, 'x', os.O_CREAT)"), "('ENOENT', [], 'ENOENT')")

    def test_symbolic_link_itself(self):
        self.start()
        self.do("os.symlink('nowhere', 'link'); f = os.open('link', os.O_PATH | os.O_NOFOLLOW)")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("os.readlink('', dir_fd=f), stat.S_ISLNK(os.fstat(f).st_mode)"), "('nowhere', True)")

    def test_memfds(self):
        self.start()
        self.do("m = os.memfd_create('sealed', os.MFD_ALLOW_SEALING); os.write(m, b'contents'); fcntl.fcntl(m, 1033, 2 | 4 | 8)",
                "x = call(319, b'code', 0x10); n = call(319, b'not', 8)")
        self.stays("fcntl.fcntl(m, 1034), os.pread(m, 20, 0), attempt(os.write, m, b'x'), fcntl.fcntl(n, 1034), oct(os.fstat(n).st_mode), oct(os.fstat(x).st_mode), "
                   "attempt(os.fchmod, n, 0o777)")

    def test_epolls_in_epolls(self):
        self.start()
        self.do("r, w = os.pipe(); inner = select.epoll(); inner.register(r, select.EPOLLIN); outer = select.epoll(); outer.register(inner.fileno(), select.EPOLLIN)",
                "os.write(w, b'x')")
        self.stays("outer.poll(0) == [(inner.fileno(), 1)], inner.poll(0) == [(r, 1)]")

    def test_epoll_of_a_number_used_again(self):
        # Watches the open file, whatever has its number now.
        self.start()
        self.do("r, w = os.pipe(); e = select.epoll(); kept = os.dup(r); e.register(r, select.EPOLLIN)", "n = r; os.close(r); z = os.open('/dev/null', os.O_RDONLY); assert z == n",
                "os.write(w, b'x')")
        self.assertEqual(self.ask("e.poll(0) == [(n, 1)]"), "True")
        notes = self.come_back()
        self.assertEqual(self.ask("e.poll(0) == [(n, 1)]"), "True", notes)
        self.do("os.read(kept, 1)")
        self.assertEqual(self.ask("e.poll(0)"), "[]")

    def test_epoll_that_has_the_number_of_what_it_watches(self):
        self.start()
        self.do("r, w = os.pipe(); first = select.epoll(); kept = os.dup(r); first.register(r, select.EPOLLIN)", "n = r; os.dup2(first.fileno(), n); first.close()",
                "e = select.epoll.fromfd(n); os.write(w, b'x')")
        self.assertEqual(self.ask("e.poll(0) == [(n, 1)]"), "True")
        notes = self.come_back()
        self.assertEqual(self.ask("e.poll(0) == [(n, 1)]"), "True", notes)
        self.do("os.read(kept, 1)")
        self.assertEqual(self.ask("e.poll(0)"), "[]")

    def test_a_fifo_in_the_place_of_a_file(self):
        self.start(CKPT_FILES="none")
        self.do("f = open('file', 'w+'); d = os.mkdir('room') or os.open('room', os.O_RDONLY)")
        self.checkpoint()
        self.kill_program()
        for name, what in ("file", "a regular file"), ("room", "a directory"):
            os.rename(self.path(name), self.path("away"))
            os.mkfifo(self.path(name))
            code, text = self.refused()
            self.assertEqual(code, 72)
            self.assertIn("is a FIFO now, it was " + what, text)
            os.unlink(self.path(name))
            os.rename(self.path("away"), self.path(name))

    def test_timerfd_waits_while_memory_is_loaded(self):
        self.start()
        self.do("big = os.urandom(1 << 20) * 64", "t = call(283, 1, 0); due = time.monotonic() + 0.3",
                "call(286, t, 0, struct.pack('4q', 0, 0, 0, 300_000_000), None)")
        self.come_back("--eager")
        self.assertEqual(self.ask("(struct.unpack('q', os.read(t, 8)), time.monotonic() >= due)"), "((1,), True)")

    @needs_root
    def test_shared_memory_without_a_key_that_is_somebody_elses_now(self):
        # As after a reboot, when numbers begin anew: one of the same size and number, which is in use.
        shared = ("libc.shmat.restype = ctypes.c_void_p", "at = lambda: libc.shmat(m, None, 0)")
        self.start()
        self.do(*shared, "m = libc.shmget(0, 4096, 0o600)", "a = at(); ctypes.memset(a, 120, 4)")
        number = int(self.ask("m"))
        self.addCleanup(lambda: subprocess.run(["ipcrm", "-m", str(number)], capture_output=True, check=False))
        self.checkpoint()
        until = time.time() + 1  # the kernel tells whole seconds
        self.kill_program()
        subprocess.run(["ipcrm", "-m", str(number)], check=True)
        while time.time() < until:
            time.sleep(0.01)
        other = Program(["/usr/bin/python3", "-c", PRELUDE + LOOP])
        self.addCleanup(other.end)
        self.assertEqual(other.child.stdout.readline(), b"up\n")
        for step in (*shared, f"open('/proc/sys/kernel/shm_next_id', 'w').write('{number}')", "m = libc.shmget(0, 4096, 0o600)", "a = at(); ctypes.memset(a, 121, 4)"):
            self.assertEqual(other.ask("do " + step), "None")
        self.assertEqual(int(other.ask("m")), number)
        self.restart()
        self.assertEqual(other.ask("ctypes.string_at(a, 4)"), "b'yyyy'")
        self.assertEqual(self.ask("ctypes.string_at(a, 4)"), "b'xxxx'")
        self.assertIn("comes back with id", " ".join(self.notes))

    @needs_root
    def test_another_is_given_the_number_that_is_wished_for(self):
        """The kernel gives it to whoever is first. That one goes, and the number is wished for again."""
        libc = ctypes.CDLL(None)
        self.start()
        self.do("libc.shmat.restype = ctypes.c_void_p", "m = libc.shmget(77, 4096, 0o1600)", "a = libc.shmat(m, None, 0)", "ctypes.memset(a, 120, 4)")
        number = int(self.ask("m"))
        self.checkpoint()
        self.kill_program()
        libc.shmctl(number, 0, None)

        def stopped():
            with open("/proc/%d/stat" % restart.child.pid, encoding="ascii") as stat:
                return stat.read().rpartition(") ")[2][0] == "T"

        restart = Program([RESTART, "--json", self.images], CKPT_TEST_POINT="restart.segment=stop:0")
        self.addCleanup(restart.child.kill)
        while not stopped():
            self.assertIsNone(restart.child.poll())
            time.sleep(0.005)
        self.assertEqual(libc.shmget(0, 4096, 0o600), number)
        libc.shmctl(number, 0, None)
        # Again and again: it comes to the point once more for each other program that happens to be given the number.
        while not select.select([restart.child.stderr], [], [], 0.01)[0]:
            with open("/proc/%d/task/%d/children" % (restart.child.pid, restart.child.pid), encoding="ascii") as children:
                # Some of them live for a moment only.
                subprocess.run(["kill", "-CONT", str(restart.child.pid), *children.read().split()], stderr=subprocess.DEVNULL, check=False)
        self.program, said = restart, restart.said()
        self.addCleanup(self.end)
        self.assertEqual([note for note in said["notes"] if "comes back with id" in note], [])
        self.assertEqual(self.ask("m == libc.shmget(77, 4096, 0), ctypes.string_at(a, 4)"), "(True, b'xxxx')")
        self.do("libc.shmctl(m, 0, None)")

    @needs_root
    def test_locked_memory_that_nobody_may_touch(self):
        self.start()
        self.do("g = libc.mmap(None, 4096, 0, 0x22, -1, 0)", "libc.mlockall(1)")
        self.come_back()
        self.assertEqual([n for n in self.notes if "locked" in n], [])
        self.assertEqual(self.ask("'lo' in open('/proc/self/smaps').read().partition('%x-' % g)[2].partition('VmFlags:')[2].partition(chr(10))[0].split()"), "True")

    def test_flags_of_an_epoll_and_of_the_stack(self):
        self.start()
        self.do("e = select.epoll(); fcntl.fcntl(e.fileno(), fcntl.F_SETFL, os.O_NONBLOCK)",
                "flags = lambda: open('/proc/self/smaps').read().partition('[stack]')[2].partition('VmFlags:')[2].partition(chr(10))[0]")
        self.stays("fcntl.fcntl(e.fileno(), fcntl.F_GETFL), flags()")

    def test_time_stamps_of_what_was_sent_are_no_error(self):
        """They wait where errors do: the next send was refused (ECONNREFUSED)."""
        self.start()
        self.do("to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "to.bind(('127.0.0.1', 0))", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
                "s.connect(to.getsockname())", "s.setsockopt(socket.SOL_SOCKET, 37, 2 | 16)", "s.send(b'before')", "p = select.poll()", "p.register(s, 0)")
        self.assertEqual(self.ask("p.poll(10000)[0][1] == select.POLLERR"), "True")
        notes = self.checkpoint()
        self.assertEqual(len([note for note in notes if "error" in note]), 1, notes)
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("attempt(s.send, b'behind')"), "6")

    def test_inotify_says_nothing_of_the_restart(self):
        self.start()
        self.do("f = open('file', 'w+b'); f.write(b'x' * 8192); f.flush(); m = mmap.mmap(f.fileno(), 8192)", "i = call(294, 0o4000); w = call(254, i, b'.', 0xfff)",
                "e = select.epoll(); e.register(i, select.EPOLLIN)")
        self.come_back()
        # The checkpoint's own looks waited: that they are lost is all that is said.
        self.assertEqual(self.ask("e.poll(0) == [(i, 1)], struct.unpack('iIII', os.read(i, 4096))"), "(True, (-1, 16384, 0, 0))")
        self.assertEqual(self.ask("e.poll(0), attempt(os.read, i, 4096)"), "([], 'EAGAIN')")
        self.do("m[0] = 121", "open('other', 'w').close()")
        self.assertEqual(self.ask("e.poll(0) == [(i, 1)], b'other' in os.read(i, 4096)"), "(True, True)")

    def test_inotify_with_events_that_wait(self):
        """They are lost; the program is told so, as the kernel does it."""
        self.start()
        self.do("i = call(294, 0o4000); w = call(254, i, b'.', 0x100); open('one', 'w').close()", "e = select.epoll(); e.register(i, select.EPOLLIN)",
                "read = lambda: [struct.unpack('iI', d[n:n + 8]) for d in [os.read(i, 65536)] for n in (range(0, len(d), 16) if len(d) % 32 else [0])]")
        for _ in range(2):
            self.assertIn("IN_Q_OVERFLOW", " ".join(self.come_back()))
            self.assertEqual(self.ask("e.poll(0) == [(i, 1)]"), "True")
        self.assertEqual(self.ask("read(), attempt(read)"), "([(-1, 16384)], 'EAGAIN')")
        self.do("open('two', 'w').close()")
        self.assertEqual(self.ask("read()"), "[(1, 256)]")

    def test_private_mapping_of_a_deleted_file(self):
        self.start()
        self.do("f = open('data', 'w+b'); f.write(b'a' * 8192); f.flush(); p = libc.mmap(None, 8192, 3, 2, f.fileno(), 0); os.unlink('data'); f.close()",
                "ctypes.memset(p, 98, 1)")
        self.stays("ctypes.string_at(p, 4), ctypes.string_at(p + 4096, 2)")

    def test_lease(self):
        self.start()
        self.do("f = open('leased', 'w'); f.close(); f = open('leased'); fcntl.fcntl(f, 1024, fcntl.F_RDLCK)")
        self.stays("fcntl.fcntl(f, 1025)")

    def test_posix_message_queue(self):
        self.start()
        q = self.ask("call(240, b'ckpt_test', 0o102, 0o600, struct.pack('8q', 0, 5, 64, 0, 0, 0, 0, 0))")
        self.assertTrue(q.isdigit(), q)
        self.addCleanup(lambda: subprocess.run([sys.executable, "-c", "import ctypes; ctypes.CDLL(None).syscall(241, b'ckpt_test')"], check=False))
        self.do("send = lambda text, priority: call(242, q, text, len(text), priority, None)", f"q = {q}", "send(b'low', 1), send(b'', 7), send(b'low too', 1)",
                "taken = ctypes.create_string_buffer(64)", "take = lambda: (lambda n: taken.raw[:n])(call(243, q, taken, 64, None, None))")
        self.assertEqual(self.come_back(), [])
        # What has come since goes, what was taken is there again.
        self.assertEqual([self.ask("take()") for _ in range(3)], ["b''", "b'low'", "b'low too'"])
        self.do("send(b'new', 3)")
        self.kill_program()
        self.restart()
        self.assertEqual([self.ask("take()") for _ in range(3)], ["b''", "b'low'", "b'low too'"])

    def test_owner_and_times_of_a_file_without_a_name(self):
        self.start()
        self.do("f = open('data', 'w+b'); f.write(b'a'); f.flush(); os.utime('data', (1000, 2000)); os.unlink('data')")
        if os.geteuid() == 0:
            self.do("os.fchown(f.fileno(), 1234, 4321); os.fchmod(f.fileno(), 0o640); os.utime(f.fileno(), (1000, 2000))")
        self.stays("[(s.st_mtime, s.st_uid, s.st_gid, oct(s.st_mode)) for s in [os.fstat(f.fileno())]]")


if __name__ == "__main__":
    enter_own_network()
    enter_own_ipc()
    sys.exit(unittest.main())
