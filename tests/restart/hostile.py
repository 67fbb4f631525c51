#!/usr/bin/env python3
"""What others, a full disk or a strange umask can do to images: refused by name, before anything is read, and nothing is left
behind."""

import glob
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import unittest

from stepped_program import CKPT, RESTART, Program, environment

NOBODY = 65534
AS_NOBODY = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
DAMAGED, IO, PERMISSION = 65, 74, 77
PROGRAM = ("import os, sys\nmemory = os.urandom(4 << 20)\nprint('up', flush=True)\n"
           "for line in sys.stdin: print(eval(line), flush=True)\n")
needs_root = unittest.skipIf(os.geteuid() != 0, "needs root")


class Hostile(unittest.TestCase):
    def setUp(self):
        signal.signal(signal.SIGALRM, lambda *_: self.fail("hangs"))
        signal.alarm(240)
        self.addCleanup(signal.alarm, 0)
        self.directory = tempfile.mkdtemp(prefix="ckpt-hostile-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        os.chmod(self.directory, 0o755)
        self.images = os.path.join(self.directory, "images")

    def start(self, *options, how=(), code=PROGRAM, arguments=(), **settings):
        program = Program([*how, CKPT, "run", "--dir", self.images, *options, "--", "/usr/bin/python3", "-c", code, *arguments], **settings)
        for clean in (program.child.wait, program.child.kill, program.child.stdin.close, program.child.stdout.close,
                      program.child.stderr.close):
            self.addCleanup(clean)
        self.assertEqual(program.child.stdout.readline(), b"up\n")
        return program

    def now(self, program, code=0):
        done = subprocess.run([CKPT, "now", str(program.child.pid)], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def image(self):
        image, = glob.glob(os.path.join(self.images, "*.ckpt"))
        return image

    def refused(self, code, words, *argv, how=()):
        done = subprocess.run([*how, RESTART, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                              env=environment())
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, r"\Ackpt-restart: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, done.stderr)

    def saved(self):
        program = self.start()
        self.now(program)
        program.child.kill()
        program.child.wait()
        return self.image()

    # Standard descriptors.

    def test_closed_standard_descriptors(self):
        """Files of ours that came to their numbers were replaced, or written to."""
        left = os.path.join(self.directory, "left")
        program = self.start(code="import sys\nprint('up', flush=True)\nsys.stdin.readline()\nopen(sys.argv[1], 'w').write('went on')",
                             arguments=[left])
        self.now(program)
        program.child.kill()
        program.child.wait()
        image = self.image()
        with open(image, "rb") as f:
            saved = f.read()
        closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
        for options in (["--eager"], ["--lazy"], ["--namespaces=always"]):
            with self.subTest(options=options):
                code = subprocess.run([*closed, RESTART, *options, image], timeout=60, env=environment(), check=False).returncode
                self.assertEqual(code, 0)
                with open(left, encoding="ascii") as f:
                    self.assertEqual(f.read(), "went on")
                os.unlink(left)
        for command in ("show", "verify", "cat"):
            subprocess.run([*closed, CKPT, command, image], timeout=60, check=False)
        with open(image, "rb") as f:
            self.assertEqual(f.read(), saved)

    # Directories.

    def test_a_directory_that_others_may_write(self):
        image = self.saved()
        os.chmod(self.images, 0o770)
        for what in (image, self.images):
            self.refused(PERMISSION, ["the directory " + self.images, "may be written by others", "--trust"], what)
        def comes_back(*argv):
            again = Program([RESTART, *argv])
            self.assertEqual(again.ask("7"), "7")
            self.assertEqual(again.end()[0], 0)

        comes_back("--trust", image)
        # Others may put files into a directory like /tmp, but not in the place of ours.
        os.chmod(self.images, 0o1777)
        comes_back(image)

    @needs_root
    def test_somebody_elses_directory(self):
        image = self.saved()
        os.chown(self.images, 4711, 4711)
        for what in (image, self.images):
            self.refused(PERMISSION, ["the directory " + self.images, "belongs to user 4711", "--trust"], what)

    @needs_root
    def test_files_saved_beside_the_image_by_somebody_else(self):
        """They take the place of files that are gone: what another user has made must not come back as the program's."""
        file = os.path.join(self.directory, "file")
        program = self.start("--files", "copies", code="import sys\nf = open(sys.argv[1], 'w+')\nf.write('mine')\nf.flush()\n" +
                             PROGRAM.replace("4 << 20", "4096"), arguments=[file])
        os.utime(file, (1000, 2000))
        self.now(program)
        program.child.kill()
        program.child.wait()
        os.unlink(file)
        image = self.image()
        saved = image.replace(".ckpt", ".files")
        copy, = (os.path.join(saved, n) for n in os.listdir(saved))
        os.chown(copy, 4711, 4711)
        self.refused(PERMISSION, ["the saved file " + copy, "belongs to user 4711", "--trust"], image)
        os.chown(copy, 0, 0)
        for mode in (0o770, 0o1777):
            os.chmod(saved, mode)
            self.refused(PERMISSION, ["the directory " + saved, "may be written by others", "--trust"], image)
        os.chmod(saved, 0o700)
        os.chown(saved, 4711, 4711)
        self.refused(PERMISSION, ["the directory " + saved, "belongs to user 4711", "--trust"], image)
        os.chown(saved, 0, 0)
        # As in /tmp: a directory of that name is there before ours.
        os.rename(saved, saved + ".aside")
        os.symlink(saved + ".aside", saved)
        self.refused(PERMISSION, [saved, "no directory", "remove it", "--trust"], image)
        os.unlink(saved)
        os.rename(saved + ".aside", saved)
        self.assertFalse(os.path.exists(file))
        for options in ((), ("--trust",)):
            if options:
                os.chown(copy, 4711, 4711)
                os.unlink(file)
            again = Program([RESTART, *options, image])
            self.assertEqual(again.ask("f.seek(0), f.read()"), "(0, 'mine')")
            self.assertEqual(again.end()[0], 0)
            self.assertTrue(os.path.exists(file))

    @needs_root
    def test_the_owner_is_looked_at_before_anything_is_read(self):
        os.mkdir(self.images, 0o700)
        image = os.path.join(self.images, "x.ckpt")
        with open(image, "wb") as f:
            f.write(b"no image at all" * 1000)
        self.refused(DAMAGED, [image], image)
        os.chown(image, 4711, 4711)
        self.refused(PERMISSION, [image, "belongs to user 4711"], image)

    # What the library finds where it writes.

    def test_a_fifo_in_place_of_the_log(self):
        os.mkdir(self.images, 0o700)
        os.mkfifo(os.path.join(self.images, "ckpt_rt.log"), 0o600)
        for options in ([], ["--to", "cat > /dev/null"]):
            with self.subTest(options):
                self.now(self.start(*options))

    def check_umask(self, how):
        code = PROGRAM.replace("import os, sys\n", "import os, sys\nos.umask(0o777)\n")
        program = Program([*how, "/usr/bin/env", f"CKPT_DIR={self.images}", f"LD_PRELOAD={os.path.dirname(CKPT)}/../lib/libckpt_rt.so",
                           "/usr/bin/python3", "-c", code])
        self.assertEqual(program.child.stdout.readline(), b"up\n")
        self.now(program)
        self.assertEqual(stat.S_IMODE(os.stat(self.images).st_mode), 0o700)
        self.assertEqual(stat.S_IMODE(os.stat(self.image()).st_mode), 0o600)
        self.assertEqual(program.ask("os.umask(0o777)"), str(0o777))
        program.end()

    def test_a_umask_that_takes_everything_away(self):
        self.check_umask([])

    @needs_root
    def test_a_users_umask_that_takes_everything_away(self):
        above = os.path.join(self.directory, "above")
        os.mkdir(above, 0o755)
        os.chown(above, NOBODY, NOBODY)
        self.images = os.path.join(above, "images")
        self.check_umask(AS_NOBODY)

    @needs_root
    def test_run_with_such_a_umask(self):
        above = os.path.join(self.directory, "above")
        os.mkdir(above, 0o755)
        os.chown(above, NOBODY, NOBODY)
        self.images = os.path.join(above, "a", "b")
        program = self.start(how=[*AS_NOBODY, "sh", "-c", 'umask 777; exec "$@"', "sh"])
        self.assertEqual(program.ask("os.umask(0o777)"), str(0o777))
        self.now(program)

    # Mode fork.

    @needs_root
    def test_a_failed_image_leaves_nothing_on_a_full_disk(self):
        os.mkdir(self.images, 0o700)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M,mode=700", "tmpfs", self.images], capture_output=True)
        if done.returncode != 0:
            self.skipTest("no mount")
        self.addCleanup(subprocess.run, ["umount", self.images])
        for mode in ("fork", "realtime", "sequential"):
            with self.subTest(mode):
                program = self.start("--mode", mode)
                self.assertIn("no space left", self.now(program, IO).stderr)
                self.assertEqual([f for f in os.listdir(self.images) if f != "ckpt_rt.log"], [])
                program.child.kill()
                program.child.wait()

    def processes(self, token):
        """Those of the program, which has `token` among its arguments: pid and state."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    words = f.read().split(b"\0")
                with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
                    state = f.read().rpartition(") ")[2][0]
            except OSError:
                continue
            if token.encode() in words and state not in "ZX" and b"python3" in words[0]:
                found.append((int(pid), state))
        return found

    def await_processes(self, token, holds):
        deadline = time.monotonic() + 60
        while not holds(self.processes(token)):
            self.assertLess(time.monotonic(), deadline, self.processes(token))
            time.sleep(0.01)

    def test_the_child_that_writes_goes_with_the_program(self):
        # It waits for the command, which reads only when it is told to.
        go = os.path.join(self.directory, "go")
        os.mkfifo(go)
        token = f"token-{os.getpid()}-{self.directory}"
        program = self.start("--mode", "fork", "--to", f"read x < {go}; cat > {self.directory}/late", arguments=(token,))
        asking = subprocess.Popen([CKPT, "now", str(program.child.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(asking.wait)
        self.await_processes(token, lambda found: len(found) >= 2)  # the program and the child; more while it starts the command
        program.child.kill()
        program.child.wait()
        self.await_processes(token, lambda found: not found)

    def test_no_image_of_a_program_that_was_killed_before_it_had_a_name(self):
        """Mode fork, to a file: the child has written all of it, and would give it its name next."""
        token = f"token-{os.getpid()}-{self.directory}"
        program = self.start("--mode", "fork", arguments=(token,), CKPT_TEST_POINT="commit.durable=stop")
        asking = subprocess.Popen([CKPT, "now", str(program.child.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(asking.wait)
        self.await_processes(token, lambda found: [state for _, state in found] == ["T", "T"])
        self.assertEqual([f.rpartition(".")[2] for f in os.listdir(self.images) if ".ckpt" in f], ["tmp"])
        program.child.kill()
        program.child.wait()
        self.await_processes(token, lambda found: not found)
        self.assertEqual(glob.glob(os.path.join(self.images, "*.ckpt")), [])

    # Files of others.

    @needs_root
    def test_the_owner_of_a_file_that_may_not_be_opened_again_is_named(self):
        secret = os.path.join(self.directory, "secret")
        with open(secret, "w") as f:
            f.write("x")
        os.chmod(secret, 0o600)
        os.chown(secret, 4711, 4711)
        program = self.start()
        program.ask(f"[globals().update(f=open({secret!r})), os.setgroups([]), os.setresgid(*[{NOBODY}] * 3), os.setresuid(*[{NOBODY}] * 3)]")
        self.now(program)
        program.child.kill()
        program.child.wait()
        image, = glob.glob(os.path.join(self.images, "*", "*.ckpt"))
        self.refused(PERMISSION, [secret, "belongs to user 4711"], image, how=AS_NOBODY)


if __name__ == "__main__":
    unittest.main()
