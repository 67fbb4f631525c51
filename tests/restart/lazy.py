#!/usr/bin/env python3
"""Lazy restart: the program runs before its memory is there, and everything that it does with that memory meanwhile
must be as if it were. A FIFO (CKPT_RESTART_HOLD) holds back all loading but of pages that are touched."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from stepped_program import CKPT, DAMAGED, IO, RESTART, Program

PAGES = 4096  # of the program's table

# A table of PAGES pages, each of which begins with its number. Each line of input is a step, each answered by a line.
PROGRAM = """
import ctypes, mmap, os, signal, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PAGES, PAGE = %d, 4096
def private(pages): return libc.mmap(None, pages * PAGE, 3, 0x22, -1, 0)
table = private(PAGES)
pattern = os.urandom(PAGE - 8)
def page_of(n): return struct.pack('<Q', n) + pattern
for n in range(PAGES): ctypes.memmove(table + n * PAGE, page_of(n), PAGE)
at = {n: table + n * PAGE for n in range(PAGES)}   # where page n is
zero = bytes(PAGE)
zeros = {}                                         # address: must be zero
def content(a): return ctypes.string_at(a, PAGE)
def check(pages=None):
    bad = [n for n in (pages or at) if content(at[n]) != page_of(n)]
    bad += ['zero'] * sum(content(a) != zero for a in zeros)
    return 'good' if not bad else 'BAD %%s' %% bad[:5]
def drop(first, count):
    assert libc.madvise(table + first * PAGE, count * PAGE, 4) == 0
    for n in range(first, first + count): zeros[at.pop(n)] = n
def unmap(first, count):
    assert libc.munmap(table + first * PAGE, count * PAGE) == 0
    for n in range(first, first + count): del at[n]
def map_over(first, count):
    got = libc.mmap(table + first * PAGE, count * PAGE, 3, 0x32, -1, 0)
    assert got == table + first * PAGE
    for n in range(first, first + count): zeros[at.pop(n)] = n
def move(first, count):
    place = private(count)
    got = libc.mremap(at[first], count * PAGE, count * PAGE, 3, place)
    assert got == place
    for i in range(count): at[first + i] = place + i * PAGE
def read_into(first, count):
    r, w = os.pipe()
    for n in range(first, first + count):
        os.write(w, page_of(n + 7)[:100])
        buffer = (ctypes.c_char * 100).from_address(at[n])
        assert os.readv(r, [buffer]) == 100
        assert content(at[n]) == page_of(n + 7)[:100] + page_of(n)[100:]
        ctypes.memmove(at[n], page_of(n), 100)
def forked(step):
    # The child looks at everything, and so does a child of the child.
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = eval(step)
        grandchild = os.fork()
        if grandchild == 0:
            os.write(w, check().encode() + b' ')
            os._exit(0)
        os.waitpid(grandchild, 0)
        os.write(w, str(answer).encode())
        os._exit(0)
    os.close(w)
    text = b''
    while part := os.read(r, 100): text += part
    os.close(r)
    status = os.waitpid(pid, 0)[1]
    return text.decode() + (' status %%d' %% status if status else '')
def wait_for_mutex():
    # A thread waits for a mutex with priority inheritance, in memory of which nobody touches anything else.
    global mutex, taken
    taken = []
    space = private(512)
    ctypes.memmove(space, os.urandom(512 * PAGE), 512 * PAGE)
    mutex, attributes = ctypes.c_void_p(space + 256 * PAGE), ctypes.create_string_buffer(64)
    assert libc.pthread_mutexattr_init(attributes) == libc.pthread_mutexattr_setprotocol(attributes, 1) == 0
    assert libc.pthread_mutex_init(mutex, attributes) == libc.pthread_mutex_lock(mutex) == 0
    def wait(): taken.append(libc.pthread_mutex_lock(mutex))
    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    while not open('/proc/self/task/%%d/syscall' %% waiter.native_id).read().startswith('202 %%#x' %% mutex.value): pass
def let_it_have_the_mutex():
    assert not taken and libc.pthread_mutex_unlock(mutex) == 0
    while not taken: pass
    return taken
print('up', flush=True)
for line in sys.stdin:
    print(eval(line) or 'done', flush=True)
""" % PAGES


def read_text(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def stat_of(pid):
    """State and parent, or nothing."""
    try:
        return read_text("/proc/%s/stat" % pid).rsplit(")", 1)[1].split()[:2]
    except OSError:
        return None


def ended(pid):
    """Waits until no process has that id."""
    deadline = time.monotonic() + 60
    while (stat_of(pid) or "Z")[0] != "Z":
        assert time.monotonic() < deadline, "process %d does not end" % pid
        time.sleep(0.01)


class Lazy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.mkdtemp(prefix="ckpt-lazy-")
        # Its later checkpoints go where it was told at first; each test has a copy of the one taken here.
        cls.directory = os.path.join(cls.made, "images")
        cls.first = os.path.join(cls.made, "first")
        program = Program([CKPT, "run", "--dir", cls.directory, "--", "/usr/bin/python3", "-c", PROGRAM])
        assert program.child.stdout.readline() == b"up\n"
        subprocess.run([CKPT, "now", str(program.child.pid)], check=True, stdout=subprocess.DEVNULL)
        program.child.kill()
        program.end()
        os.rename(cls.directory, cls.first)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.made)

    def setUp(self):
        # A thread that waits for a page that never comes cannot say so.
        signal.signal(signal.SIGALRM, lambda *_: self.fail("hangs"))
        signal.alarm(240)
        self.addCleanup(signal.alarm, 0)
        if self.allowed() is not None:
            self.skipTest(self.allowed())
        self.directory = tempfile.mkdtemp(prefix="ckpt-lazy-")
        self.addCleanup(shutil.rmtree, self.directory)
        self.images = os.path.join(self.directory, "images")
        shutil.copytree(self.first, self.images, symlinks=True)
        self.fifo = os.path.join(self.directory, "hold")
        os.mkfifo(self.fifo)
        self.released = False

    @classmethod
    def allowed(cls):
        """None, or why nothing is lazy here."""
        if not hasattr(cls, "why"):
            program = Program([RESTART, "--json", "--lazy", cls.first])
            said = program.said()
            cls.why = None if said["lazy_bytes"] else " ".join(said["notes"])
            program.end()
        return cls.why

    def restart(self, *options, hold=True, image=None):
        more = {"CKPT_RESTART_HOLD": self.fifo} if hold else {}
        self.released = not hold
        program = Program([RESTART, "--json", "--lazy", *options, image or self.images], **more)
        self.addCleanup(program.child.kill)
        said = program.said()
        self.assertTrue(said["ok"], said)
        self.assertGreater(said["lazy_bytes"], PAGES * 4096 * 0.9)
        self.loader = said["loader_pid"]
        self.pid = said["outer_pid"]
        self.in_namespace = said["new_pid_namespace"]
        return program

    def release(self):
        """Loading goes on to the end."""
        if not self.released:
            self.released = True
            os.close(os.open(self.fifo, os.O_WRONLY))

    def good_to_the_end(self, program, answer="good"):
        """Before and after all is loaded."""
        self.assertEqual(program.ask("check(list(at)[::100])"), answer)
        self.release()
        said = program.said()
        self.assertEqual(said["event"], "loaded")
        self.assertTrue(said["image_may_be_deleted"])
        # Nobody watches its memory any more.
        self.assertNotIn(" um", read_text("/proc/%d/smaps" % self.pid))
        self.assertEqual(program.ask("check()"), answer)
        self.assertEqual(program.end(), (0, ""))
        return said

    def path(self):
        return next(os.path.join(self.images, n) for n in os.listdir(self.images) if n.endswith(".ckpt"))

    def test_touched_while_loading(self):
        program = self.restart()
        self.assertEqual(program.ask("check()"), "good")
        self.assertGreater(self.good_to_the_end(program)["faults"], 1000000 // 65536)

    def test_loaded_without_being_touched(self):
        self.good_to_the_end(self.restart(hold=False))

    def test_image_deleted_when_loaded(self):
        program = self.restart()
        self.release()
        self.assertEqual(program.said()["event"], "loaded")
        shutil.rmtree(self.images)
        self.assertEqual(program.ask("check()"), "good")
        self.assertEqual(program.end(), (0, ""))

    def test_image_deleted_while_loading(self):
        # It is open: only its name goes.
        program = self.restart()
        shutil.rmtree(self.images)
        self.good_to_the_end(program)

    def test_given_back(self):
        program = self.restart()
        for step in ("drop(100, 500)", "unmap(1000, 300)", "map_over(2000, 200)"):
            self.assertEqual(program.ask(step), "done")
        # Half of what is zero now is touched before the end.
        self.assertEqual(program.ask("[content(a) == zero for a in list(zeros)[::2]].count(False) or 'zero'"), "zero")
        self.good_to_the_end(program)

    def test_moved(self):
        program = self.restart()
        for step in ("check(range(500, 520))", "move(500, 1000)", "move(1200, 100)", "move(3000, 17)"):
            self.assertIn(program.ask(step), ("done", "good"))
        self.assertEqual(program.ask("check(range(490, 1300, 7))"), "good")
        self.good_to_the_end(program)

    def test_read_into_missing_pages(self):
        program = self.restart()
        self.assertEqual(program.ask("read_into(700, 300)"), "done")
        self.good_to_the_end(program)

    def test_protected(self):
        program = self.restart()
        self.assertEqual(program.ask("libc.mprotect(table + 64 * PAGE, 100 * PAGE, 1)"), "done")
        self.good_to_the_end(program)

    def test_forked(self):
        program = self.restart()
        self.assertEqual(program.ask("forked('check(range(0, PAGES, 50))')"), "good good")
        self.assertEqual(program.ask("forked('drop(10, 20) or move(300, 100) or check()')"), "good good")
        self.good_to_the_end(program)

    def test_child_outlives(self):
        # The child touches its memory when the program has all of its own and has ended.
        program = self.restart()
        step = "os.fork() or [os.read(0, 1), os.write(1, check().encode() + b'\\n'), os._exit(0)]"
        program.child.stdin.write(step.encode() + b"\n")
        program.child.stdin.flush()
        self.assertTrue(program.child.stdout.readline().strip().isdigit())
        os.kill(self.pid, signal.SIGKILL)
        ended(self.pid)
        self.release()
        program.child.stdin.write(b"x")
        program.child.stdin.flush()
        self.assertEqual(program.child.stdout.readline(), b"good\n")
        self.assertEqual(program.end()[0], -signal.SIGKILL)

    def test_executes_another(self):
        program = self.restart()
        self.assertEqual(program.ask("os.execl('/bin/echo', 'echo', 'hello')"), "hello")
        self.release()
        ended(self.loader)
        self.assertEqual(program.child.wait(60), 0)

    def test_ends_while_loading(self):
        program = self.restart()
        program.child.stdin.close()
        self.assertEqual(program.child.wait(60), 0)
        self.release()
        ended(self.loader)

    def test_checkpoint_while_loading(self):
        program = self.restart()
        self.assertEqual(program.ask("drop(100, 500) or move(700, 100)"), "done")
        now = subprocess.Popen([CKPT, "now", "--json", str(self.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(program.ask("check(range(1000, 1200))"), "good")  # it runs meanwhile
        self.assertIsNone(now.poll())
        self.release()
        out, errors = now.communicate(timeout=60)
        self.assertEqual(now.returncode, 0, errors)
        self.assertEqual(program.said()["event"], "loaded")
        image = json.loads(out)["image"]
        os.kill(self.pid, signal.SIGKILL)
        program.child.send_signal(signal.SIGKILL)  # in a namespace the program ends with it
        program.end()
        self.good_to_the_end(self.restart(image=image))

    def test_waits_for_a_mutex_that_the_kernel_writes(self):
        # Where the kernel writes to a futex it cannot wait for a page: EFAULT, and libc aborts the program.
        program = self.restart(hold=False)
        self.assertEqual(program.ask("wait_for_mutex()"), "done")
        self.assertEqual(program.said()["event"], "loaded")
        image = subprocess.run([CKPT, "now", "--json", str(self.pid)], check=True, capture_output=True).stdout
        os.kill(self.pid, signal.SIGKILL)
        program.end()
        program = self.restart(image=json.loads(image)["image"])
        self.assertEqual(program.ask("let_it_have_the_mutex()"), "[0]")
        self.good_to_the_end(program)

    def test_a_mapping_with_holes_stays_one(self):
        """What is one mapping to the program can be moved as one while it is loaded."""
        program = self.restart(hold=False)
        self.assertEqual(program.said()["event"], "loaded")
        # A mapping with no neighbours, every other 4 MiB of which are a hole.
        for step in ("globals().update(apart=libc.mmap(None, 66 << 20, 0, 0x22, -1, 0) + (1 << 20))",
                     "libc.mprotect(apart, 64 << 20, 3)",
                     "[ctypes.memset(apart + (i << 22), i + 1, 4 << 20) for i in range(0, 16, 2)] and None"):
            self.assertEqual(program.ask(step), "done")
        mappings = len(read_text("/proc/%d/maps" % self.pid).splitlines())
        image = subprocess.run([CKPT, "now", "--json", str(self.pid)], check=True, capture_output=True).stdout
        os.kill(self.pid, signal.SIGKILL)
        program.end()
        program = self.restart(image=json.loads(image)["image"])
        self.assertLess(len(read_text("/proc/%d/maps" % self.pid).splitlines()), mappings + 4)
        self.assertEqual(program.ask("globals().update(there=private(16384), was=apart)"), "done")
        self.assertEqual(program.ask("globals().update(apart=libc.mremap(apart, 64 << 20, 64 << 20, 3, there))"), "done")
        self.assertEqual(program.ask("apart == there"), "True")
        self.release()
        self.assertEqual(program.said()["event"], "loaded")
        self.assertLess(len(read_text("/proc/%d/maps" % self.pid).splitlines()), mappings + 4)
        self.assertEqual(program.ask("all(content(apart + (i << 22)) == bytes([(i + 1) * (i % 2 == 0)]) * PAGE "
                                     "for i in range(16))"), "True")
        self.assertEqual(program.end(), (0, ""))

    def test_generations(self):
        image = None
        for _ in range(5):
            program = self.restart(hold=False, image=image)
            self.assertEqual(program.ask("check(range(0, PAGES, 333))"), "good")
            image = subprocess.run([CKPT, "now", "--json", str(self.pid)], check=True, capture_output=True).stdout
            image = json.loads(image)["image"]
            os.kill(self.pid, signal.SIGKILL)
            program.end()
        self.good_to_the_end(self.restart(image=image))

    def test_damaged(self):
        with open(self.path(), "r+b") as f:
            middle = os.fstat(f.fileno()).st_size // 2
            f.seek(middle)
            byte = f.read(1)[0]
            f.seek(middle)
            f.write(bytes([byte ^ 1]))
        # Eagerly it does not start; lazily it is killed before it sees the byte.
        done = subprocess.run([RESTART, "--eager", self.images], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(done.returncode, DAMAGED, done.stderr)
        program = self.restart()
        self.assertEqual(program.ask("check(range(0, 16))"), "good")
        self.assertEqual(program.ask("check()"), "")
        code, errors = program.end()
        self.assertEqual(code, DAMAGED)
        self.assertRegex(errors, r"\A\{[^\n]*damaged at byte[^\n]*\n\Z")
        ended(self.pid)

    def test_shortened(self):
        program = self.restart()
        self.assertEqual(program.ask("check(range(0, 16))"), "good")
        os.truncate(self.path(), os.stat(self.path()).st_size // 2)
        self.release()
        code, errors = program.end()
        self.assertEqual(code, IO, errors)
        self.assertIn("shorter", errors)

    def test_loader_killed(self):
        program = self.restart()
        self.assertEqual(program.ask("check(range(0, 16))"), "good")
        os.kill(self.loader, signal.SIGKILL)
        try:
            self.assertEqual(program.ask("check()"), "")
        except BrokenPipeError:
            pass  # it was killed before it could be asked
        code, errors = program.end()
        self.assertEqual(code, 71)
        self.assertRegex(errors, r"\A\{[^\n]*was killed[^\n]*\n\Z")

    def test_guard_killed(self):
        # Nothing is lost with it alone.
        program = self.restart()
        sentries = [p for p in os.listdir("/proc") if p.isdigit() and (stat_of(p) or [""])[1:] == [str(self.loader)]]
        self.assertEqual(len(sentries), 1)
        os.kill(int(sentries[0]), signal.SIGKILL)
        self.good_to_the_end(program)

    def test_child_when_loader_is_killed(self):
        # A child of which nobody knows the id does not see zeros either: SIGBUS, or it waits (before Linux 6.6).
        program = self.restart()
        step = "os.fork() or [os.read(0, 1), os.write(1, check().encode() + b'\\n'), os._exit(0)]"
        program.child.stdin.write(step.encode() + b"\n")
        program.child.stdin.flush()
        child = int(program.child.stdout.readline())
        os.kill(self.loader, signal.SIGKILL)
        ended(self.pid)
        try:
            os.write(program.child.stdin.fileno(), b"x")  # past the buffer: nothing stays there for close() to fail upon
        except BrokenPipeError:
            pass  # it has touched a missing page already
        if tuple(int(n) for n in os.uname().release.split("-")[0].split(".")[:2]) < (6, 6):
            os.kill(child, signal.SIGKILL)
        self.assertEqual(program.child.stdout.read(), b"")
        program.end()

    def test_restarter_killed(self):
        # An orphan, like after an eager restart; the loader finishes, and says so.
        program = self.restart()
        if self.in_namespace:
            self.skipTest("its old id is taken: in a namespace of its own it ends with ckpt-restart")
        program.child.kill()
        program.child.wait()
        program.child.returncode = 0
        self.assertEqual(program.ask("check(range(0, PAGES, 64))"), "good")
        self.release()
        self.assertEqual(program.said()["event"], "loaded")
        ended(self.loader)
        self.assertEqual(program.ask("check()"), "good")
        program.child.stdin.close()
        ended(self.pid)
        program.end()

    def test_detached(self):
        program = Program([RESTART, "--lazy", "--detach", self.images], CKPT_RESTART_HOLD=self.fifo)
        pid = int(program.child.stdout.readline())
        self.addCleanup(lambda: os.path.exists("/proc/%d" % pid) and os.kill(pid, signal.SIGKILL))
        self.assertEqual(program.child.wait(60), 0)
        self.assertEqual(program.ask("check(range(0, PAGES, 64))"), "good")
        self.release()
        self.assertRegex(program.child.stderr.readline().decode(), r"\Ackpt-restart: note: [^\n]* may be deleted\n\Z")
        self.assertEqual(program.ask("check()"), "good")
        program.end()

    def test_in_namespaces(self):
        program = self.restart("--namespaces", "always")
        self.assertEqual(program.ask("forked('check()')"), "good good")
        self.good_to_the_end(program)


if __name__ == "__main__":
    unittest.main()
