#!/usr/bin/env python3
"""Mapped files that have lost their name before the checkpoint, or between it and the restart."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))
OK, FILE_CHANGED = 0, 72

START = """
import ctypes, mmap, os, sys, time, zlib
def wait():
    print('up', flush=True)
    while not os.path.exists('go'):
        time.sleep(0.005)
"""

# A file without a name, of which nothing is in memory.
NAMELESS = START + """
f = open('data', 'w+b')
f.write(os.urandom(3 << 20))
f.truncate((5 << 20) + 1000)  # with a hole, and an end within a page
f.seek(4 << 20)
f.write(b'behind the hole')
f.flush()
before = zlib.crc32(mmap.mmap(f.fileno(), 0))
m = mmap.mmap(f.fileno(), 0)
os.unlink('data')
os.fsync(f.fileno())
os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
if sys.argv[1] == 'closed':
    f.close()
wait()
print(before == zlib.crc32(m), len(m), flush=True)
"""

# As a runtime does that shows figures to its tools.
FIGURES = START + """
os.mkdir('figures', 0o755)
f = open('figures/of_this', 'w+b')
f.truncate(32768)
libc = ctypes.CDLL(None)  # mmap.mmap() would keep a descriptor
libc.mmap.restype = ctypes.c_void_p
m = (ctypes.c_char * 32768).from_address(libc.mmap(None, ctypes.c_size_t(32768), 3, mmap.MAP_SHARED, f.fileno(), ctypes.c_long(0)))
f.close()
m[0:5] = b'hello'
m[30000] = b'7'
m[20000] = b'\\0'
before = zlib.crc32(m)
wait()
same = before == zlib.crc32(m)
m[1] = b'9'
print(same, open('figures/of_this', 'rb').read() == m[:], oct(os.stat('figures/of_this').st_mode), flush=True)
"""


def environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    return clean


# A page that was a hole at the checkpoint and has bytes since.
HOLES = START + """
f = open('sparse', 'w+b')
f.truncate(32768)
m = mmap.mmap(f.fileno(), 32768)
m[0:5] = b'hello'
looked = m[8192]
print('up', flush=True)
while not os.path.exists('write') and not os.path.exists('go'):
    time.sleep(0.005)
if os.path.exists('write'):
    m[8192:8197] = m[20480:20485] = b'later'
    print('written', flush=True)
    time.sleep(1000)
print(m[:] == b'hello'.ljust(32768, b'\\0'), flush=True)
"""


# The name that it was mapped by is gone, another is left.
RENAMED = START + """
with open('first', 'w+b') as f:
    f.write(b'x' * 100000)
    f.flush()
    m = mmap.mmap(f.fileno(), 0)
    private = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE)
private[5000] = 33
os.link('first', 'second')
os.unlink('first')
for fd in os.listdir('/proc/self/fd'):
    try:
        if 'first' in os.readlink('/proc/self/fd/' + fd): os.close(int(fd))  # mmap keeps one
    except OSError: pass
wait()
m[0:5] = b'after'
print(open('second', 'rb').read(6), os.stat('second').st_nlink, private[4999:5001], flush=True)
"""


# As sem_open(3) does it: a name for the moment, removed after the real one is there.
IN_MEMORY = START + """
name = sys.argv[1]
f = open(name, 'w+b')
f.write(b'thirty-two bytes of a semaphore.')
f.flush()
os.chmod(name, 0o640)
f.seek(7)
wait()
print(f.read(3), os.fstat(f.fileno()).st_size, oct(os.stat(name).st_mode), flush=True)
os.unlink(name)
"""


# As a daemon does that tells the processes below it what it knows (PMIx): made by the program itself, with room on the disk, larger,
# without a descriptor; others may only read it.
OWN = START + """
SIZE = 4 << 20
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
def show(flags, prot):
    fd = os.open('one/two/of_this', flags, 0o600)
    if flags & os.O_CREAT: os.posix_fallocate(fd, 0, SIZE)
    m = (ctypes.c_char * SIZE).from_address(libc.mmap(None, ctypes.c_size_t(SIZE), prot, mmap.MAP_SHARED, fd, ctypes.c_long(0)))
    os.close(fd)
    return m
os.makedirs('one/two')
m = show(os.O_RDWR | os.O_CREAT, 3)
m[0:5], m[3 << 20:(3 << 20) + 5] = b'hello', b'there'
before = zlib.crc32(m)
ready, tell = os.pipe()
if (child := os.fork()) == 0:
    libc.prctl(1, 9)  # ends with its parent
    reads = show(os.O_RDONLY, 1)
    os.write(tell, b'.')
    while not os.path.exists('go'): time.sleep(0.005)
    os._exit(0 if zlib.crc32(reads) == before else 1)
os.read(ready, 1)
print('up', flush=True)
while not os.path.exists('write') and not os.path.exists('go'):
    time.sleep(0.005)
if os.path.exists('write'):
    m[1] = m[2 << 20] = m[3 << 20] = b'!'
    print('written', flush=True)
    time.sleep(1000)
print(os.waitpid(child, 0)[1], before == zlib.crc32(m), open('one/two/of_this', 'rb').read() == m[:], flush=True)
"""


# A file that the program can only read, mapped when the checkpoint has looked at all mappings and has not stopped the
# program yet; or one that is older than the program.
TO_READ = START + """
name, size, older = sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'older'
libc = ctypes.CDLL(None)  # mmap.mmap() would keep a descriptor
libc.mmap.restype = ctypes.c_void_p
def show():
    if not older:
        with open(name, 'wb') as f: f.write(os.urandom(size))
        os.utime(name, ns=(1, 1_000_000_007))
    fd = os.open(name, os.O_RDONLY)
    m = (ctypes.c_char * size).from_address(libc.mmap(None, ctypes.c_size_t(size), 1, mmap.MAP_SHARED, fd, ctypes.c_long(0)))
    os.close(fd)
    return m
waits = f'{os.getpid():010}.waits'
print('up', flush=True)
while not os.path.exists(waits): time.sleep(0.005)
m = show()
before = zlib.crc32(m)
os.unlink(waits)
while not os.path.exists('go'): time.sleep(0.005)
now = os.stat(name)
print(before == zlib.crc32(m), open(name, 'rb').read() == m[:], now.st_size, now.st_mtime_ns, flush=True)
"""


# A header that the program may write, mapped in a part of its own, and all of it to be read; and descriptors, whose numbers a restart takes.
PARTLY_WRITTEN = START + """
name = sys.argv[1]
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
with open(name, 'wb') as f: f.write(os.urandom(1_200_000))
def show(flags, protection, size):
    fd = os.open(name, flags)
    at = libc.mmap(None, ctypes.c_size_t(size), protection, mmap.MAP_SHARED, fd, ctypes.c_long(0))
    os.close(fd)
    return (ctypes.c_char * size).from_address(at)
shown = show(os.O_RDONLY, 1, 1_200_000)
head = show(os.O_RDWR, 3, 4096) if sys.argv[2] == 'own' else None
pid = os.fork() if head is None else 0
if head is None and pid == 0: head = show(os.O_RDWR, 3, 4096)
if head is not None: head[0:4] = b'head'
more = [os.dup(0) for _ in range(40)]
before = zlib.crc32(shown)
if pid != 0 or sys.argv[2] == 'own':
    while shown[0:4] != b'head': time.sleep(0.005)
    before = zlib.crc32(shown)
    print('up', flush=True)
while not os.path.exists('go'): time.sleep(0.005)
if pid == 0 and sys.argv[2] != 'own': os._exit(0 if zlib.crc32(shown) == before else 1)
print(before == zlib.crc32(shown), open(name, 'rb').read() == shown[:], os.wait()[1] if pid != 0 else 0, flush=True)
"""


class VanishedFiles(unittest.TestCase):
    def setUp(self):
        # On a disk: /tmp may be in memory.
        self.directory = tempfile.mkdtemp(prefix="ckpt-vanished-", dir=BUILD)
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def killed(self, program, *arguments, options=(), before_the_end=lambda: None, **settings):
        """Starts it, checkpoints it when it is up, kills it."""
        with open(self.path("out"), "w") as out:
            child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), *options, "--", "/usr/bin/python3", "-c", program, *arguments],
                                     stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, cwd=self.directory,
                                     env=environment() | settings, start_new_session=True)
        try:
            while child.poll() is None and "up" not in self.output():
                time.sleep(0.005)
            taken = subprocess.run([CKPT, "now", str(child.pid)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
            self.assertEqual(taken.returncode, OK, taken.stdout)
            before_the_end()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # with its children
            child.wait()

    def output(self):
        with open(self.path("out")) as out:
            return out.read()

    def restart(self, code=OK):
        open(self.path("go"), "w").close()
        done = subprocess.run([RESTART, self.path("images")], cwd=self.directory, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stderr.decode()

    def test_nameless_on_its_disk(self):
        for descriptor in ("open", "closed"):
            with self.subTest(descriptor=descriptor):
                self.killed(NAMELESS, descriptor)
                self.restart()
                self.assertEqual(self.output(), f"up\nTrue {(5 << 20) + 1000}\n")
                shutil.rmtree(self.path("images"))
                os.unlink(self.path("go"))

    def test_another_name_is_left(self):
        self.killed(RENAMED, options=("--files", "none"))  # a link beside the image would count
        self.restart()
        self.assertEqual(self.output(), "up\nb'afterx' 1 b'x!'\n")

    def test_small_file_in_memory(self):
        name = f"/dev/shm/ckpt-test.{os.getpid()}"
        self.addCleanup(lambda: os.path.exists(name) and os.unlink(name))
        for gone in (True, False):
            with self.subTest(gone=gone):
                self.killed(IN_MEMORY, name, options=("--files", "none"))  # no copy beside the image
                if gone:
                    os.unlink(name)
                noted = self.restart()
                self.assertEqual(f"{name} was gone: it is there again" in noted, gone, noted)
                self.assertEqual(self.output(), "up\nb'two' 32 0o100640\n")
                shutil.rmtree(self.path("images"))
                os.unlink(self.path("go"))

    def read_only(self, size, code, options=(), older=False):
        name = f"/dev/shm/ckpt-test.{os.getpid()}"
        self.addCleanup(lambda: os.path.exists(name) and os.unlink(name))
        if older:
            with open(name, "wb") as f:
                f.write(bytes(size))
            # When a process began is known to a clock tick.
            while time.time_ns() - os.stat(name).st_ctime_ns < 50_000_000:
                time.sleep(0.005)
        self.killed(TO_READ, name, str(size), "older" if older else "own", options=options, before_the_end=lambda: os.unlink(name),
                    CKPT_TEST_POINT="prepare.ready=wait")
        noted = self.restart(code)
        if code == OK:
            self.assertIn(f"{name} was gone: made again", noted)
            self.assertEqual(self.output(), f"up\nTrue True {size} 1000000007\n")
        else:
            self.assertIn(name, noted)

    def test_in_memory_and_only_read(self):
        """All of it is in the image, with the size that it has within its last page."""
        for options in ((), ("--files", "none"), ("--mode", "fork"), ("--compress", "lz4"), ("--mode", "sequential")):
            with self.subTest(options=options):
                self.read_only(1_600_225, OK, options)
                shutil.rmtree(self.path("images"))
                os.unlink(self.path("go"))

    def test_in_memory_partly_written(self):
        """What is written covers a part of the file only, and is in the image of one process, or of another one of the job."""
        name = f"/dev/shm/ckpt-test.{os.getpid()}"
        self.addCleanup(lambda: os.path.exists(name) and os.unlink(name))
        for whose in "own", "child's":
            with self.subTest(whose):
                self.killed(PARTLY_WRITTEN, name, whose, options=("--files", "none"), before_the_end=lambda: os.unlink(name))
                self.assertIn(f"{name} was gone: made again", self.restart())
                self.assertEqual(self.output(), "up\nTrue True 0\n")
                shutil.rmtree(self.path("images"))
                os.unlink(self.path("go"))

    def test_in_memory_and_large(self):
        self.read_only((20 << 20) + 5, OK)

    def test_in_memory_and_older_than_the_program(self):
        """It is somebody else's."""
        self.read_only(1_600_225, FILE_CHANGED, older=True)

    def test_holes_written_since(self):
        self.killed(HOLES, before_the_end=self.write)
        self.restart()
        self.assertEqual(self.output(), "up\nTrue\n")

    def write(self):
        open(self.path("write"), "w").close()
        while "written" not in self.output():
            time.sleep(0.005)
        os.unlink(self.path("write"))

    def test_larger_one_of_its_own(self):
        """What is in it is what was at the checkpoint, for who may write it and for who may not, whether it is there or gone."""
        for gone in (False, True):
            with self.subTest(gone=gone):
                self.killed(OWN, before_the_end=self.write)
                if gone:
                    shutil.rmtree(self.path("one"))
                noted = self.restart()
                self.assertEqual("one/two/of_this was gone: made again" in noted, gone, noted)
                self.assertIn("0 True True\n", self.output())
                for name in ("images", "one"):
                    shutil.rmtree(self.path(name))
                os.unlink(self.path("go"))

    def figures_after(self, what):
        self.killed(FIGURES)
        what()
        noted = self.restart()
        words = self.output().split()
        self.assertEqual(words[:3], ["up", "True", "True"])
        return noted, words[3]

    def test_small_file_that_is_there(self):
        self.assertNotIn("made again", self.figures_after(lambda: None)[0])

    def test_small_file_that_is_gone(self):
        noted, mode = self.figures_after(lambda: os.unlink(self.path("figures/of_this")))
        self.assertIn("figures/of_this was gone: made again", noted)
        self.assertEqual(mode, "0o100600")

    def test_with_its_directory(self):
        self.assertIn("made again", self.figures_after(lambda: shutil.rmtree(self.path("figures")))[0])

    def test_not_where_others_may_write(self):
        self.killed(FIGURES)
        os.unlink(self.path("figures/of_this"))
        os.chmod(self.path("figures"), 0o777)
        self.assertIn("others may write", self.restart(FILE_CHANGED))
        self.assertEqual(os.listdir(self.path("figures")), [])

    def test_not_through_a_link(self):
        self.killed(FIGURES)
        os.rename(self.path("figures"), self.path("elsewhere"))
        os.unlink(self.path("elsewhere/of_this"))
        os.symlink("elsewhere", self.path("figures"))
        self.assertIn("figures", self.restart(FILE_CHANGED))
        self.assertEqual(os.listdir(self.path("elsewhere")), [])


if __name__ == "__main__":
    unittest.main()
