#!/usr/bin/env python3
"""Files that a program writes in place between a checkpoint and its end: their bytes are those of the checkpoint again.
  changed_in_place.py [ChangedInPlace.test_...]      CKPT_LONG=1: more instants
"""
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))
INSTANTS = 12 if os.environ.get("CKPT_LONG") == "1" else 2
PATIENCE = 300  # seconds, for what hangs: processes that take turns at a database take long beside others

# A number in a file and in memory, raised together until there is a file `enough`.
COUNTER = r"""
import os, sys
f = open('number', 'w+b', buffering=0)
f.write(b'%20d' % 0)
print('up', flush=True)
n = 0
while not os.path.exists('enough') or n < 3000:
    f.seek(0)
    v = int(f.read(20))
    if v != n: print('file', v, 'memory', n, flush=True); sys.exit(1)
    n += 1
    f.seek(0); f.write(b'%20d' % n)
print('end', int(open('number').read(20)) == n, flush=True)
"""

# Each step is one that a file may go through; `go` lets it look.
STEPS = r"""
import os, sys, time
fd = os.open('steps', os.O_RDWR | os.O_CREAT, 0o640)
os.ftruncate(fd, int(sys.argv[1]))              # a hole, and bytes in its middle
os.pwrite(fd, b'middle', 150000)
os.lseek(fd, 7, os.SEEK_SET)
print('up', flush=True)
while not os.path.exists('changed') and not os.path.exists('go'):
    if os.path.exists('change') and not os.path.exists('go'):  # which it finds in its next life
        exec(open('change').read())
        open('changed', 'w').close()
    time.sleep(0.002)
while not os.path.exists('go'): time.sleep(0.002)
text = os.pread(fd, 18 << 20, 0)
print(len(text), text.strip(b'\0').decode(), text.find(b'm'), os.lseek(fd, 0, os.SEEK_CUR), os.fstat(fd).st_ino == os.stat('steps').st_ino, flush=True)
"""

# Two files; the second one's bytes are many.
TWO = r"""
import os, time
a, b = (os.open(name, os.O_RDWR | os.O_CREAT) for name in 'ab')
os.write(a, b'first'); os.write(b, bytes(1 << 20))
print('up', flush=True)
while not os.path.exists('change'): time.sleep(0.002)
os.pwrite(a, b'later', 0); os.pwrite(b, b'x' * (1 << 20), 0)
open('changed', 'w').close()
while True: time.sleep(1)
"""

# One maps the file for itself alone, and has changed a page there; it, or its parent, writes the file as well.
MAPPED = r"""
import mmap, os, sys, time
fd = os.open('mapped', os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b'old' * 4096, 0)
child = os.fork() if sys.argv[1] == 'apart' else None
if not child:
    reader = os.open('mapped', os.O_RDONLY)  # of which the mapping keeps one
    seen = mmap.mmap(reader, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    seen[5000:5003] = b'own'
    if child == 0 or sys.argv[1] == 'closed': os.close(fd)
    print('up', flush=True)
if child != 0:
    while not os.path.exists('change') and not os.path.exists('go'): time.sleep(0.002)
    if not os.path.exists('go'):
        if sys.argv[1] == 'closed': fd = os.open('mapped', os.O_RDWR)
        exec(open('change').read())
        open('changed', 'w').close()
while not os.path.exists('go'): time.sleep(0.002)
if not child: print(len(seen), seen[:6].decode(), seen[5000:5003].decode(), seen[9000:9003].decode(), flush=True)
if child == 0: os._exit(0)
if child: os.waitpid(child, 0)
"""

# Four processes raise numbers in one database in turns, as one of several that it keeps open would.
DATABASE = r"""
import os, sqlite3, sys
def opened():
    c = sqlite3.connect('db', isolation_level=None, timeout=60)
    c.execute('pragma synchronous=off')
    return c
c = opened()
c.execute('pragma journal_mode=' + sys.argv[1])
c.execute('create table t(k integer primary key, v integer, pad blob)')
c.execute('begin')
for k in range(40): c.execute('insert into t values(?, 0, ?)', (k, os.urandom(4000)))
c.execute('commit')
c.close()
children, me = [], 0
for i in (1, 2, 3):
    child = os.fork()
    if child == 0:
        me = i
        break
    children.append(child)
c, n = opened(), 0
while n < 400 or not os.path.exists('enough'):
    c.execute('begin immediate')
    v = c.execute('select v from t where k=?', (me,)).fetchone()[0]
    if v != n:
        print(me, 'database', v, 'memory', n, flush=True)
        os._exit(1)
    n += 1
    c.execute('update t set v=? where k=?', (n, me))
    c.execute('update t set v=v+1 where k=39')
    c.execute('commit')
    if me == 0 and n == 5: print('up', flush=True)
    if me == 0 and n == 300: open('later', 'w').close()
if me: os._exit(0)
failed = [s for s in (os.waitpid(p, 0)[1] for p in children) if s]
whole = c.execute('select sum(v) from t where k < 4').fetchone() == c.execute('select v from t where k=39').fetchone()
print('end', failed, whole, c.execute('pragma integrity_check').fetchone()[0], flush=True)
"""


# What it does after the checkpoint leaves a journal when it is killed: pages go to the file before the transaction ends.
JOURNAL = r"""
import os, sqlite3, time
c = sqlite3.connect('db', isolation_level=None, timeout=60)
c.execute('pragma synchronous=off')
c.execute('pragma cache_size=1')
c.execute('create table t(k integer primary key, v integer, pad blob)')
c.execute('begin')
for k in range(100): c.execute('insert into t values(?, 0, ?)', (k, os.urandom(4000)))
c.execute('commit')
print('up', flush=True)
while not os.path.exists('go'):
    if os.path.exists('change') and not os.path.exists('go'):  # which it finds in its next life
        exec(open('change').read())
        open('changed', 'w').close()
        while True: time.sleep(1)
    time.sleep(0.002)
print(c.execute('select sum(v) from t').fetchone()[0], c.execute('pragma integrity_check').fetchone()[0])
c.execute('update t set v=7')
print(c.execute('select sum(v) from t').fetchone()[0], c.execute('pragma integrity_check').fetchone()[0], flush=True)
"""


def environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    return clean


class ChangedInPlace(unittest.TestCase):
    def setUp(self):
        # On a disk: /tmp may be in memory.
        self.directory = tempfile.mkdtemp(prefix="ckpt-changed-", dir=BUILD)
        self.addCleanup(shutil.rmtree, self.directory)

    def path(self, name):
        return os.path.join(self.directory, name)

    def last_change_ns(self):
        return max(entry.stat().st_mtime_ns for entry in os.scandir(self.directory) if entry.is_file() and entry.name != "out")

    def touch(self, name):
        open(self.path(name), "w").close()

    def output(self):
        with open(self.path("out")) as out:
            return out.read()

    def wait_for(self, child, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            self.assertIsNone(child.poll(), self.output())
            self.assertLess(time.monotonic(), end, self.output())
            time.sleep(0.002)

    def command(self, *words):
        done = subprocess.run([os.path.join(BUILD, "bin", words[0]), *words[1:]], cwd=self.directory, env=environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + self.output())
        return done.stdout

    def start(self, program, *arguments, options=()):
        with open(self.path("out"), "w") as out:
            child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), *options, "--", "/usr/bin/python3", "-c", program, *arguments],
                                     stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=self.directory, env=environment(),
                                     start_new_session=True)
        self.addCleanup(self.kill, child)
        self.wait_for(child, lambda: "up" in self.output())
        return child

    def kill(self, child):
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def clear(self):
        for name in os.listdir(self.directory):
            (shutil.rmtree if os.path.isdir(self.path(name)) else os.unlink)(self.path(name))

    def counted(self, *options):
        child = self.start(COUNTER, options=options)
        self.command("ckpt", "now", str(child.pid))
        then = self.bytes_of("number")
        self.wait_for(child, lambda: self.bytes_of("number") != then)  # it has run since
        self.kill(child)
        self.touch("enough")

    def test_being_written(self):
        """At no time does it stand still for long enough to be copied ahead of the stop."""
        for mode in ("auto", "fork", "sequential"):
            with self.subTest(mode):
                self.counted("--mode", mode)
                self.assertIn("number was changed in place since the checkpoint: it is as it was then", self.command("ckpt-restart", "images"))
                self.assertEqual(self.output(), "up\nend True\n")
                self.clear()

    def test_what_it_held_is_saved(self):
        self.counted()
        with open(self.path("number")) as f:
            held = f.read()
        self.command("ckpt-restart", "images")
        [name] = [n for n in os.listdir(self.path("images")) if ".changed-1" in n]
        with open(self.path("images/" + name)) as f:
            self.assertEqual(f.read(), held)
        self.assertEqual(os.stat(self.path("images/" + name)).st_mode & 0o777, 0o600)

    def test_back(self):
        """ckpt back, many times: without an end in between."""
        child = self.start(COUNTER)
        self.command("ckpt", "now", str(child.pid))
        for _ in range(5):
            time.sleep(0.02)
            self.command("ckpt", "back", str(child.pid))
        self.touch("enough")
        self.assertEqual(child.wait(60), 0, self.output())
        self.assertEqual(self.output(), "up\nend True\n")

    @unittest.skipUnless(os.geteuid() == 0, "mounts a small file system")
    def test_back_half_way(self):
        """Memory of now and files of then do not go together: where one file was put back and another cannot be, the program does not go on."""
        os.mkdir(self.path("images"), 0o700)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M,mode=0700", "tmpfs", self.path("images")], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", self.path("images")], check=True)
        child = self.start(TWO)
        self.command("ckpt", "now", str(child.pid))
        self.touch("change")
        self.wait_for(child, lambda: os.path.exists(self.path("changed")))
        room = os.statvfs(self.path("images"))
        with open(self.path("images/full"), "wb") as f:
            f.write(bytes(room.f_bavail * room.f_frsize - (64 << 10)))
        done = subprocess.run([CKPT, "back", str(child.pid)], env=environment(), capture_output=True, text=True, timeout=60, check=False)
        self.assertIn("was killed half way back", done.stderr)
        self.assertEqual(child.wait(60), -signal.SIGKILL)
        with open(self.path("a")) as a, open(self.path("b")) as b:
            self.assertEqual((a.read(), b.read(1)), ("first", "x"))

    def changed(self, change, quiet=True, length=300000, options=(), program=STEPS, before_restart=lambda: None):
        child = self.start(program, str(length), options=options)
        if quiet:  # long enough that it is copied ahead of the stop (kQuiet in file_saver.cc)
            self.wait_for(child, lambda: time.time_ns() - self.last_change_ns() > 20_000_000)
        self.said_before = self.command("ckpt", "now", str(child.pid))
        with open(self.path("new"), "w") as f:
            f.write(change)
        os.rename(self.path("new"), self.path("change"))
        self.wait_for(child, lambda: os.path.exists(self.path("changed")))
        self.kill(child)
        self.touch("go")
        before_restart()
        return self.command("ckpt-restart", "images")

    def test_too_long(self):
        """What is not put back is said, by the checkpoint that does not have it."""
        said = self.changed("os.pwrite(fd, b'MIDDLE', 150000)", length=17 << 20, program=STEPS.replace("a hole, and", "written, and\nos.pwrite(fd, bytes(int(sys.argv[1])), 0) #"))
        self.assertIn("1 file that the program has open for writing is too long for the image (16 MiB for all)", self.said_before)
        self.assertIn("the program goes on with what it holds now", said)
        self.assertEqual(self.output(), f"up\n{17 << 20} MIDDLE -1 7 True\n")

    def test_sparse(self):
        """Holes do not count, and are holes again."""
        for quiet in (True, False):
            with self.subTest(quiet=quiet):
                said = self.changed("os.pwrite(fd, b'MIDDLE', 150000); os.pwrite(fd, b'far', 40 << 30); os.pwrite(fd, b'tail', (70 << 30) + 5000)", quiet,
                                    length=70 << 30, program=STEPS.replace("print('up'", "os.pwrite(fd, b'end', 60 << 30)\nprint('up'"))
                self.assertNotIn("too long", self.said_before)
                self.assertIn("changed in place", said)
                self.assertEqual(self.output(), f"up\n{18 << 20} middle 150000 7 True\n")
                with open(self.path("steps"), "rb") as f:
                    self.assertEqual(os.fstat(f.fileno()).st_size, 70 << 30)
                    self.assertEqual([os.pread(f.fileno(), 3, at << 30) for at in (40, 60)], [bytes(3), b"end"])
                beside = [os.path.join(at, name) for at, _, names in os.walk(self.path("images")) for name in names if "-" in name and name.startswith("steps.")]
                self.assertEqual(sorted(os.stat(name).st_size for name in beside), [5004, 70 << 30], beside)
                self.assertLess(sum(os.stat(name).st_blocks for name in [self.path("steps"), *beside]), 2000)
                self.clear()

    def test_fragmented(self):
        """Too many pieces: it is as it will be, which is said."""
        self.changed("os.pwrite(fd, b'MIDDLE', 150000)", length=70 << 30,
                     program=STEPS.replace("print('up'", "[os.pwrite(fd, b'x', (1 << 30) + i * (1 << 20)) for i in range(1100)]\nprint('up'"))
        self.assertIn("is too long for the image", self.said_before)

    def make_images_read_only(self):
        images = self.path("images")
        subprocess.run(["mount", "--bind", images, images], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", images], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", images], check=True)

    @unittest.skipUnless(os.geteuid() == 0, "mounts a directory")
    def test_no_place_for_what_it_held(self):
        """Then it is not put back, which is said once."""
        said = self.changed("os.pwrite(fd, b'MIDDLE', 150000)", quiet=False, before_restart=self.make_images_read_only)
        self.assertIn("nothing can be written beside the image", said)
        self.assertEqual(said.count("steps was written since the checkpoint"), 1, said)
        self.assertEqual(self.output(), "up\n300000 MIDDLE -1 7 True\n")

    def test_asked_for_none(self):
        said = self.changed("os.pwrite(fd, b'MIDDLE', 150000)", options=("--files", "none"))
        self.assertIn("the program goes on with what it holds now", said)
        self.assertEqual(self.output(), "up\n300000 MIDDLE -1 7 True\n")

    def test_a_hole_written(self):
        self.assertIn("changed in place", self.changed("os.pwrite(fd, b'me', 5)"))
        self.assertNotIn("too long", self.said_before)
        self.assertEqual(self.output(), "up\n300000 middle 150000 7 True\n")

    def test_shorter(self):
        for quiet in (False, True):
            with self.subTest(quiet=quiet):
                self.assertIn("changed in place", self.changed("os.ftruncate(fd, 100)", quiet))
                self.assertEqual(self.output(), "up\n300000 middle 150000 7 True\n")
                self.clear()

    def test_longer_and_changed(self):
        self.assertIn("changed in place", self.changed("os.pwrite(fd, b'MIDDLE', 150000); os.pwrite(fd, b'end', 400000)"))
        self.assertEqual(self.output(), "up\n300000 middle 150000 7 True\n")

    def restart_mapped(self, how, change, *options, before_restart=lambda: None):
        self.clear()
        child = self.start(MAPPED, how, options=options)
        self.command("ckpt", "now", str(child.pid))
        with open(self.path("change.tmp"), "w") as f:
            f.write(change)
        os.rename(self.path("change.tmp"), self.path("change"))
        self.wait_for(child, lambda: os.path.exists(self.path("changed")))
        self.kill(child)
        self.touch("go")
        before_restart()
        return subprocess.run([RESTART, "images"], cwd=self.directory, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=120, text=True, check=False)

    def test_mapped(self):
        """Who has the file mapped for itself finds there what it had: the file is put back first."""
        for how in ("alone", "apart"):
            for change in ("os.pwrite(fd, b'new' * 4096, 0)", "os.ftruncate(fd, 100)", "os.pwrite(fd, b'new' * 9000, 0)"):
                with self.subTest(how=how, change=change):
                    done = self.restart_mapped(how, change)
                    self.assertEqual(done.returncode, 0, done.stdout)
                    self.assertIn("changed in place", done.stdout)
                    self.assertEqual(self.output(), "up\n12288 oldold own old\n")

    def test_mapped_and_not_saved(self):
        """Then it must not see other bytes."""
        change = "os.pwrite(fd, b'new' * 4096, 0)"
        for how, options in (("closed", ()), ("alone", ("--files", "none"))):
            with self.subTest(how=how):
                done = self.restart_mapped(how, change, *options)
                self.assertEqual(done.returncode, 72, done.stdout)
                self.assertIn("mapped has changed since the checkpoint", done.stdout)

    @unittest.skipUnless(os.geteuid() == 0, "mounts a directory")
    def test_mapped_and_no_place_for_what_it_held(self):
        done = self.restart_mapped("apart", "os.pwrite(fd, b'new' * 4096, 0)", before_restart=self.make_images_read_only)
        self.assertEqual(done.returncode, 72, done.stdout)
        self.assertIn("nothing can be written beside the image", done.stdout)

    def test_longer_alone(self):
        said = self.changed("os.pwrite(fd, b'end', 400000)")
        self.assertIn("has grown since the checkpoint", said)
        self.assertNotIn("changed in place", said)
        self.assertEqual(self.output(), "up\n300000 middle 150000 7 True\n")

    def test_written_with_the_same(self):
        said = self.changed("os.pwrite(fd, b'middle', 150000)")
        self.assertNotIn("steps", said)
        self.assertEqual(self.output(), "up\n300000 middle 150000 7 True\n")

    def test_another_file_is_not_written(self):
        said = self.changed("os.rename('steps', 'old'); open('steps', 'w').write('another')")
        self.assertNotIn("changed in place", said)
        # It has given the name back, and is kept as it is.
        aside = [n for n in os.listdir(self.path("images")) if "replaced" in n]
        with open(os.path.join(self.path("images"), aside[0])) as f:
            self.assertEqual(f.read(), "another")
        self.assertEqual(self.output(), "up\n300000 middle 150000 7 True\n")

    def test_journals_of_later(self):
        """A database goes back, and what is beside it would bring it half way forward again."""
        update = "c.execute('update t set v=1'); "
        for left, change in (("db-journal", update + "c.execute('begin immediate'); c.execute('update t set v=2')"),
                             ("db-wal", "c.execute('pragma journal_mode=wal'); " + update)):
            for back in (False, True):
                with self.subTest(left=left, back=back):
                    if back:
                        child = self.start(JOURNAL)
                        self.command("ckpt", "now", str(child.pid))
                        with open(self.path("new"), "w") as f:
                            f.write(change)
                        os.rename(self.path("new"), self.path("change"))
                        self.wait_for(child, lambda: os.path.exists(self.path("changed")))
                        self.assertTrue(os.path.exists(self.path(left)))
                        os.unlink(self.path("change"))
                        self.command("ckpt", "back", str(child.pid))
                        self.touch("go")
                        child.wait(60)
                    else:
                        self.assertIn(f"{left} was made since the checkpoint", self.changed(change, program=JOURNAL))
                    self.assertEqual(self.output(), "up\n0 ok\n700 ok\n")
                    [name] = [n for n in os.listdir(self.path("images")) if n.startswith(left) and ".later-1" in n]
                    self.assertGreater(os.stat(self.path("images/" + name)).st_size, 1000)
                    self.clear()

    def test_killed_on_its_way(self):
        """A restart that is killed while it puts files back: what it leaves is nothing that the next one takes for the file of then, and
        what files held since is whole where it is kept."""
        write, renamed = "os.pwrite(fd, b'MIDDLE', 150000)", "os.rename('steps', 'old'); open('steps', 'w').write('another')"
        journal = "c.execute('update t set v=1'); c.execute('begin immediate'); c.execute('update t set v=2')"
        directory = STEPS.replace("print('up'", "os.mkdir('d'); os.chmod('d', 0o751); d = os.open('d', os.O_RDONLY)\nprint('up'", 1)
        written = JOURNAL.replace("print('up'", "c.execute('begin immediate'); c.execute('update t set v=1'); print('up'").replace(
            "print(c.execute('select sum", "c.execute('rollback')\nprint(c.execute('select sum", 1)
        # It has the right to write, and no journal yet.
        begun = written.replace("c.execute('update t set v=1'); print('up'", "print('up'")
        steps, database = "up\n300000 middle 150000 7 True\n", "up\n0 ok\n700 ok\n"
        for point, change, others, end in (
                *((point, write, {}, steps) for point in ("restart.saving", "restart.saved", "restart.written")),
                *((point, "os.pwrite(fd, b'end', 400000)", {}, steps) for point in ("restart.saving", "restart.cut")),
                *((point, renamed, {}, steps) for point in ("restart.passing", "restart.copying")),
                *((point, "os.unlink('steps')", {"options": ("--files", "copies")}, steps) for point in ("restart.filling",)),
                ("restart.directory", "os.rmdir('d')", {"program": directory}, steps),
                *((point, journal, {"program": JOURNAL}, database) for point in ("restart.aside", "restart.saving", "restart.saved", "restart.written")),
                ("restart.aside", "c.execute('commit'); c.execute('begin immediate'); c.execute('update t set v=2')", {"program": written}, database),
                ("restart.journal", "c.execute('update t set v=2')", {"program": begun}, database)):
            def killed(point=point):
                self.held = {os.stat(self.path(name)).st_ino: self.bytes_of(name) for name in os.listdir(self.directory) if os.path.isfile(self.path(name))}
                done = subprocess.run([RESTART, "images"], cwd=self.directory, env={**environment(), "CKPT_TEST_POINT": point + "=kill:0"},
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(done.returncode, -signal.SIGKILL, done.stdout + done.stderr)
            with self.subTest(point=point, change=change):
                self.changed(change, before_restart=killed, **others)
                self.assertEqual(self.output(), end)
                for name in os.listdir(self.path("images")):
                    if ".changed-" in name or ".tail-" in name:
                        kept = self.bytes_of("images/" + name)
                        held = self.held.get(int(name.split(".")[1]), kept)  # a journal may have no name of its own by then
                        self.assertTrue(len(kept) > 0 and (held.endswith(kept) if ".tail-" in name else held.startswith(kept)), name)
                if "program" in others and others["program"] == directory:
                    self.assertEqual(os.stat(self.path("d")).st_mode & 0o777, 0o751)
                # Of a directory an empty one remains, which has a name of its own.
                self.assertEqual([name for name in os.listdir(self.directory) if name.startswith(".ckpt") and not os.path.isdir(self.path(name))], [])
            self.clear()

    def bytes_of(self, name):
        with open(self.path(name), "rb") as f:
            return f.read()

    def test_in_use_by_others(self):
        """Somebody outside would go on with what he has read of it."""
        def refused():
            user = sqlite3.connect(self.path("db"), isolation_level=None)
            self.addCleanup(user.close)
            user.execute("begin immediate")
            done = subprocess.run([RESTART, "images"], cwd=self.directory, env=environment(), capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 69, done.stderr)
            self.assertIn(f"is in use by process {os.getpid()}", done.stderr)
            self.assertEqual(user.execute("select sum(v) from t").fetchone()[0], 100)
            user.execute("rollback")
        self.changed("c.execute('update t set v=1')", program=JOURNAL, before_restart=refused)
        self.assertEqual(self.output(), "up\n0 ok\n700 ok\n")

    def test_a_journal_of_then(self):
        """It is the program's, and what was half written at the checkpoint can be taken back by it."""
        program = JOURNAL.replace("print('up'", "c.execute('begin immediate'); c.execute('update t set v=1'); print('up'").replace(
            "print(c.execute('select sum", "c.execute('rollback')\nprint(c.execute('select sum", 1)
        said = self.changed("c.execute('commit'); c.execute('begin immediate'); c.execute('update t set v=2')", program=program)
        self.assertIn("db was changed in place", said)
        self.assertEqual(self.output(), "up\n0 ok\n700 ok\n")

    def test_database(self):
        for mode in ("delete", "wal"):
            for i in range(INSTANTS):
                with self.subTest(mode=mode, instant=i):
                    child = self.start(DATABASE, mode)
                    time.sleep(0.05 * i)
                    self.command("ckpt", "now", str(child.pid))
                    self.wait_for(child, lambda: os.path.exists(self.path("later")))
                    self.kill(child)
                    self.touch("enough")
                    self.command("ckpt-restart", "images")
                    self.assertEqual(self.output(), "up\nend [] True ok\n")
                    self.clear()


if __name__ == "__main__":
    unittest.main()
