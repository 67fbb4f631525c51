#!/usr/bin/env python3
"""Files that are removed or replaced after a checkpoint, and are kept beside the image or in it."""

import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from stepped_program import RESTART, environment  # noqa: E402
from stepped_test import SteppedTest, needs_root  # noqa: E402


class SavedFiles(SteppedTest):
    """Files that are removed or replaced after the checkpoint."""

    def saved(self):
        return [os.path.join(d, f) for d in os.listdir(self.images) if d.endswith(".files") for f in os.listdir(self.path("images/" + d))]

    def test_removed_as_sort_does(self):
        self.start()
        self.do("open('t', 'w').write('temporary'); f = open('t'); f.read(4)")
        self.do("g = open('log', 'a'); g.write('before'); g.flush()")
        inode = self.ask("os.fstat(f.fileno()).st_ino")
        self.checkpoint()
        self.assertEqual(len(self.saved()), 2)
        for _ in range(2):  # and once more from the same image
            self.do("os.unlink('t'); g.write('after'); g.flush(); os.unlink('log')")
            self.kill_program()
            self.restart()
            self.assertEqual(sum("it is there again" in n for n in self.notes), 2, self.notes)
            self.assertEqual(self.ask("f.read(), os.stat('t').st_ino == os.fstat(f.fileno()).st_ino == %s" % inode), "('orary', True)")
            self.assertEqual(self.ask("open('log').read()"), "before")
            self.do("f.seek(4)")

    def test_replaced(self):
        self.start()
        self.do("open('state', 'w').write('old'); f = open('state')")
        self.checkpoint()
        self.do("open('new', 'w').write('new one'); os.rename('new', 'state')")
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("f.read(), open('state').read()"), "('old', 'new one')")

    def test_copies(self):
        self.start(CKPT_FILES="copies")
        self.do("open('t', 'w').write('temporary'); os.utime('t', (1000, 2000)); f = open('t')")
        self.checkpoint()
        self.do("os.unlink('t')")
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("f.read(), os.stat('t').st_mtime, os.stat('t').st_nlink"), "('temporary', 2000.0, 1)")

    # Runs a command that is killed when it makes this system call.
    KILLED_AT = ["/usr/bin/python3", "-c", """
import ctypes, os, struct, sys
steps = (0x20, 0, 0, 0), (0x15, 0, 1, int(sys.argv[1])), (6, 0, 0, 0x80000000), (6, 0, 0, 0x7fff0000)
program = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *step) for step in steps))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, struct.pack('HxxxxxxQ', 4, ctypes.addressof(program)), 0, 0) == 0
os.execv(sys.argv[2], sys.argv[2:])
"""]

    def test_restart_killed_while_it_puts_one_back(self):
        # What the program writes is in the image, and comes back by pwrite(2); what it reads from a copy beside it, by sendfile(2).
        for mode, call in ("r+b", 18), ("rb", 40):
            with self.subTest(mode=mode):
                self.images = self.path("images-" + mode)
                with open(self.path("t"), "wb") as f:
                    f.write(b"x" * 40000)
                self.start(CKPT_FILES="copies")
                self.do("f = open('t', %r)" % mode)
                self.checkpoint()
                os.unlink(self.path("t"))
                self.kill_program()
                done = subprocess.run([*self.KILLED_AT, str(call), RESTART, self.images], stdin=subprocess.DEVNULL, capture_output=True,
                                      timeout=60, check=False, env=environment())
                self.assertIn("killed by signal 31", done.stderr.decode())
                self.assertFalse(os.path.exists(self.path("t")))
                self.restart()
                self.assertEqual(self.ask("f.read() == b'x' * 40000, os.fstat(f.fileno()).st_ino == os.stat('t').st_ino"), "(True, True)")
                self.assertEqual([n for n in os.listdir(self.directory) if n.startswith(".ckpt")], [])
                self.end()

    @needs_root
    def test_on_a_file_system_with_another_number_since(self):
        # As in a container that is started again.
        def mounted(name):
            parts = [self.path(f"{name}-{part}") for part in ("lower", "upper", "work", "all")]
            for part in parts:
                os.makedirs(part, exist_ok=True)
            options = "lowerdir={},upperdir={},workdir={}".format(*parts[:3])
            done = subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, parts[3]], capture_output=True, check=False)
            if done.returncode != 0:
                self.skipTest("no overlay can be mounted: " + done.stderr.decode())
            self.addCleanup(lambda: subprocess.run(["umount", "-l", parts[3]], capture_output=True, check=False))
            return parts[3]

        place = mounted("ours")
        self.images = os.path.join(place, "images")
        self.start()
        self.do("os.chdir(%r)" % place, "open('t', 'w').write('removed'); f = open('t'); open('u', 'w').write('there'); g = open('u', 'r+')")
        self.checkpoint()
        self.do("os.unlink('t')")
        device = os.stat(os.path.join(place, "u")).st_dev
        self.kill_program()
        subprocess.run(["umount", place], check=True)
        mounted("other")
        mounted("ours")
        self.assertNotEqual(os.stat(os.path.join(place, "u")).st_dev, device)
        self.restart()
        self.assertEqual(self.ask("f.read(), open('t').read(), g.read(), os.readlink('/proc/self/fd/%d' % g.fileno()).rpartition('/')[2]"),
                         "('removed', 'removed', 'there', 'u')")
        self.end()

    def test_none(self):
        self.start(CKPT_FILES="none")
        self.do("f = open('t', 'w')")
        self.checkpoint()
        self.assertEqual(self.saved(), [])
        os.unlink(self.path("t"))
        self.kill_program()
        self.assertEqual(self.refused()[0], 72)

    def test_go_with_their_image(self):
        self.start(CKPT_KEEP="1")
        self.do("f = open('t', 'w')")
        for _ in range(3):
            self.checkpoint()
        self.assertEqual(len(self.saved()), 1)
        # Our names are no other names of the file.
        self.do("os.unlink('t'); f.write('deleted'); f.flush()")
        self.assertEqual(self.come_back(), [])
        self.assertEqual(self.ask("os.pread(os.open('/proc/self/fd/%d' % f.fileno(), os.O_RDONLY), 10, 0)"), "b'deleted'")


if __name__ == "__main__":
    sys.exit(unittest.main())
