#!/usr/bin/env python3
"""Programs that give up root's rights, as daemons do, or that are not dumpable: asked, and at an interval, with a directory
that was root's and with one that is the later user's; each image is restarted as that user."""

import contextlib
import glob
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import unittest

from stepped_program import CKPT, RESTART, Program

NOBODY = 65534
PATIENCE = 300  # seconds, for what hangs

# Each line of input is an expression, answered by its value in a line. Memory that even the program may not read has a 7.
PROGRAM = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
closed = libc.mmap(None, 4096, 3, 0x22, -1, 0)
ctypes.memset(closed, 7, 4096)
libc.mprotect(closed, 4096, 0)
def opened():
    libc.mprotect(closed, 4096, 1)
    return ctypes.string_at(closed, 4096) == b'\\7' * 4096
def become(user):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    return os.getresuid()
count = 0
def step():
    global count
    count += 1
    return count
print('up', flush=True)
for line in sys.stdin:
    try: answer = eval(line)
    except Exception as e: answer = repr(e)
    print(answer, flush=True)
"""
AS_NOBODY = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]


def suid_dumpable():
    with open("/proc/sys/fs/suid_dumpable") as f:
        return int(f.read())


@unittest.skipIf(os.geteuid() != 0, "needs root")
class Dropped(unittest.TestCase):
    def setUp(self):
        signal.signal(signal.SIGALRM, lambda *_: self.fail("hangs"))
        signal.alarm(2 * PATIENCE)
        self.addCleanup(signal.alarm, 0)
        self.directory = tempfile.mkdtemp(prefix="ckpt-dropped-")
        self.addCleanup(shutil.rmtree, self.directory)
        os.chmod(self.directory, 0o755)
        self.images = os.path.join(self.directory, "images")
        self.programs = []

    def start(self, *options, how=(), **settings):
        program = Program([*how, CKPT, "run", "--dir", self.images, *options, "--", "/usr/bin/python3", "-c", PROGRAM], **settings)
        self.programs.append(program)
        self.assertEqual(program.child.stdout.readline(), b"up\n", program.child.poll())
        self.addCleanup(program.child.stdout.close)
        self.addCleanup(program.child.stderr.close)
        self.addCleanup(program.child.stdin.close)
        return program

    def drop(self, program):
        self.assertEqual(program.ask(f"become({NOBODY})"), str((NOBODY,) * 3))

    def now(self, program, check=True):
        done = subprocess.run([CKPT, "now", "--json", str(program.child.pid)], capture_output=True, text=True, timeout=PATIENCE)
        if check:
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["image"]
        return done

    def await_image(self, directory, program):
        """The newest image that was begun after this call; at an interval nobody tells when that is."""
        before = set(glob.glob(os.path.join(directory, "*.ckpt")))
        while True:
            new = set(glob.glob(os.path.join(directory, "*.ckpt"))) - before
            if len(new) >= 2:
                return max(new, key=lambda f: os.stat(f).st_mtime_ns)
            self.assertIsNone(program.child.poll())
            time.sleep(0.02)

    def come_back(self, program, image, count, user=NOBODY):
        """Kills it, restarts the image as its user, and counts on."""
        program.child.kill()
        program.child.wait()
        status = os.stat(image)
        self.assertEqual((status.st_uid, stat.S_IMODE(status.st_mode)), (user, 0o600))
        directory = os.stat(os.path.dirname(image))
        self.assertEqual((directory.st_uid, stat.S_IMODE(directory.st_mode)), (user, 0o700))
        again = Program([*(AS_NOBODY if user == NOBODY else []), RESTART, image])
        self.programs.append(again)
        self.assertEqual(again.ask("step()"), str(count + 1))
        self.assertEqual(again.ask("opened()"), "True")
        self.assertEqual(again.ask("os.geteuid()"), str(user))
        self.assertEqual(again.end(), (0, ""))

    def tearDown(self):
        for program in self.programs:
            program.child.kill()
            program.child.wait()

    def check_asked(self, *options):
        program = self.start(*options)
        program.ask("step()")
        self.drop(program)
        dumpable = program.ask("libc.prctl(3, 0, 0, 0, 0)")
        self.assertEqual(dumpable, str(suid_dumpable()))
        self.now(program)
        program.ask("step()")
        image = self.now(program)
        self.assertEqual(program.ask("libc.prctl(3, 0, 0, 0, 0)"), dumpable)
        self.come_back(program, image, 2)
        return image

    def test_asked_with_roots_directory(self):
        image = self.check_asked()
        self.assertEqual(os.path.dirname(image), os.path.join(self.images, f"user-{NOBODY}"))
        self.assertEqual(os.stat(self.images).st_uid, 0)

    def test_asked_with_the_later_users_directory(self):
        os.mkdir(self.images, 0o700)
        os.chown(self.images, NOBODY, NOBODY)
        image = self.check_asked()
        self.assertEqual(os.path.dirname(image), self.images)

    def test_asked_where_the_user_may_not_pass(self):
        closed = os.path.join(self.directory, "closed")
        os.mkdir(closed, 0o700)
        self.images = os.path.join(closed, "images")
        program = self.start()
        program.ask("step()")
        self.drop(program)
        self.now(program)
        image = self.now(program)
        self.assertEqual(os.path.dirname(image), os.path.join(self.images, f"user-{NOBODY}"))
        os.chmod(closed, 0o711)
        self.come_back(program, image, 1)

    def test_asked_in_other_modes(self):
        for options in (["--faults", "in-thread"], ["--faults", "mprotect"], ["--mode", "sequential"], ["--mode", "concurrent"]):
            with self.subTest(options):
                self.check_asked(*options)

    def check_interval(self, directory):
        program = self.start("--every", "200ms", "--keep", "0")
        program.ask("step()")
        self.drop(program)
        image = self.await_image(directory, program)
        self.come_back(program, image, 1)

    def test_interval_with_roots_directory(self):
        self.check_interval(os.path.join(self.images, f"user-{NOBODY}"))

    def test_interval_with_the_later_users_directory(self):
        os.mkdir(self.images, 0o700)
        os.chown(self.images, NOBODY, NOBODY)
        self.check_interval(self.images)

    def test_user_for_a_moment_only(self):
        program = self.start()
        program.ask("step()")
        self.assertEqual(os.path.dirname(self.now(program)), self.images)
        program.ask(f"os.seteuid({NOBODY})")
        self.assertEqual(os.path.dirname(self.now(program)), os.path.join(self.images, f"user-{NOBODY}"))
        program.ask("os.seteuid(0)")
        image = self.now(program)
        self.assertEqual(os.path.dirname(image), self.images)

    def test_asked_again_by_then(self):
        """Who serves the request before, with the rights of then, does not serve the next one."""
        program = self.start(CKPT_TEST_POINT="commit.index=wait")
        self.assertEqual(program.ask(f"os.chdir({self.directory!r})"), "None")
        waits = os.path.join(self.directory, f"{program.child.pid:010}.waits")
        ask = [CKPT, "now", "--json", str(program.child.pid)]
        with subprocess.Popen(ask, stdout=subprocess.DEVNULL) as first:
            while not os.path.exists(waits):
                self.assertIsNone(first.poll())
            self.drop(program)
            with subprocess.Popen(ask, stdout=subprocess.PIPE) as second:
                while second.poll() is None and not self.is_asking(second.pid):
                    pass
                os.unlink(waits)
                image = json.loads(second.communicate(timeout=PATIENCE)[0])["image"]
            self.assertEqual(os.path.dirname(image), os.path.join(self.images, f"user-{NOBODY}"))
            self.assertEqual(first.wait(PATIENCE), 0)

    @staticmethod
    def is_asking(asker):
        """It has the socket that the program is to connect to, has sent its signal, and sleeps."""
        own = set()
        with contextlib.suppress(OSError):  # it has been closed
            own.update(os.readlink(f"/proc/{asker}/fd/{fd}") for fd in os.listdir(f"/proc/{asker}/fd"))
        with open("/proc/net/unix", encoding="utf-8") as sockets, open(f"/proc/{asker}/stat", encoding="utf-8") as stat:
            named = {f"socket:[{line.split()[6]}]" for line in sockets if "@ckpt_rt." in line}
            return bool(own & named) and stat.read().rpartition(") ")[2][0] == "S"

    def test_root_saves_nothing_in_anothers_directory(self):
        os.mkdir(self.images, 0o700)
        os.chown(self.images, NOBODY, NOBODY)
        program = self.start()
        done = self.now(program, check=False)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn(f"belongs to user {NOBODY}", done.stderr)
        self.drop(program)
        self.now(program)

    def test_not_dumpable_by_its_own_wish(self):
        os.mkdir(self.images, 0o700)
        os.chown(self.images, NOBODY, NOBODY)
        for how in (AS_NOBODY, []):
            with self.subTest(how):
                if not how:
                    os.chown(self.images, 0, 0)
                    shutil.rmtree(self.images)
                program = self.start(how=how)
                self.assertEqual(program.ask("libc.prctl(4, 0, 0, 0, 0)"), "0")
                program.ask("step()")
                image = self.now(program)
                self.assertEqual(program.ask("libc.prctl(3, 0, 0, 0, 0)"), "0")
                self.come_back(program, image, 1, NOBODY if how else 0)

    def test_a_program_is_given_no_directory_that_is_not_its_users(self):
        # Not by its word either: the asker looks for itself.
        program = self.start()
        # Past libc, so that nothing is made ready for the user.
        self.assertEqual(program.ask(f"libc.syscall(117, {NOBODY}, {NOBODY}, {NOBODY})"), "0")
        done = self.now(program, check=False)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn(self.images, done.stderr)
        self.assertEqual(os.listdir(self.images), [])
        os.mkdir(os.path.join(self.images, f"user-{NOBODY}"), 0o700)
        self.assertEqual(self.now(program, check=False).returncode, 77)  # root's still
        os.chown(os.path.join(self.images, f"user-{NOBODY}"), NOBODY, NOBODY)
        self.now(program)


if __name__ == "__main__":
    unittest.main()
