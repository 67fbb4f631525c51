#!/usr/bin/env python3
"""Files that the program has mapped, and that are removed or replaced after the checkpoint: it goes on with the one that it had."""

import os
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from stepped_test import SteppedTest  # noqa: E402


class MappedFiles(SteppedTest):
    # map_file(): without the descriptor that mmap.mmap() keeps. A page of it is not in memory before the restart.
    program_text = """
BYTES = 1 << 20
def map_file(path, keep, protection, flags):
    global fd, at, want
    want = os.urandom(BYTES)
    with open(path, 'wb') as f: f.write(want)
    os.utime(path, (1000, 2000))
    fd = os.open(path, os.O_RDWR if protection & mmap.PROT_WRITE else os.O_RDONLY)
    at = libc.mmap(None, BYTES, protection, flags, fd, 0)
    if not keep: os.close(fd)
    ctypes.string_at(at, 100)
def is_same(): return ctypes.string_at(at, BYTES) == want
"""
    PRIVATE, SHARED, WRITTEN = ("mmap.PROT_READ, mmap.MAP_PRIVATE", "mmap.PROT_READ, mmap.MAP_SHARED",
                                "mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED")

    def mapped(self, where, how, keep=False, checkpoint=True):
        path = os.path.join(where, "mapped")
        self.start()
        self.do(f"map_file({path!r}, {keep}, {how})")
        if checkpoint:
            self.checkpoint()
        return path

    def back(self):
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("is_same()"), "True")

    def elsewhere(self):
        """Another file system than that of the images."""
        where = tempfile.mkdtemp(dir="/dev/shm", prefix="ckpt-mapped-")
        self.addCleanup(shutil.rmtree, where, ignore_errors=True)
        return where

    def test_removed(self):
        for how in (self.PRIVATE, self.SHARED, self.WRITTEN):
            for keep in (False, True):
                for where in (self.directory, self.elsewhere()):
                    with self.subTest(how=how, keep=keep, where=where):
                        path = self.mapped(where, how, keep)
                        for _ in range(2):  # and once more from the same image
                            os.unlink(path)
                            self.back()
                            self.assertTrue(os.path.exists(path))
                            self.assertTrue(any(path + " was gone" in n for n in self.notes), self.notes)
                        self.assertEqual(self.ask(f"open({path!r}, 'rb').read() == want"), "True")
                        self.kill_program()
                        shutil.rmtree(self.images)

    def test_removed_with_its_directory(self):
        for where in (self.directory, self.elsewhere()):
            with self.subTest(where=where):
                folder = os.path.join(where, "folder")
                os.mkdir(folder)
                self.mapped(folder, self.SHARED)
                shutil.rmtree(folder)
                self.back()
                self.kill_program()
                shutil.rmtree(self.images)
                shutil.rmtree(folder)

    def test_replaced(self):
        for how in (self.PRIVATE, self.SHARED):
            with self.subTest(how=how):
                path = self.mapped(self.directory, how)
                os.unlink(path)
                with open(path, "wb") as f:
                    f.write(b"another")
                self.back()
                with open(path, "rb") as f:
                    self.assertEqual(f.read(), b"another")
                self.kill_program()
                shutil.rmtree(self.images)
                os.unlink(path)

    def test_replaced_and_written_by_another_mapping(self):
        """All map the one that has the name, with what the image has."""
        path = os.path.join(self.directory, "mapped")
        self.start()
        self.do(f"map_file({path!r}, False, {self.WRITTEN})",
                f"fd = os.open({path!r}, os.O_RDONLY); second = libc.mmap(None, BYTES, {self.PRIVATE}, fd, 0); os.close(fd)")
        self.checkpoint()
        self.do("ctypes.memset(at, 7, BYTES)")
        with open(path + ".new", "wb") as f:
            f.write(bytes(1 << 20))
        os.rename(path + ".new", path)
        self.back()
        self.assertEqual(self.ask("ctypes.string_at(second, BYTES) == want"), "True")
        self.do("ctypes.memset(at, 8, 100)")
        self.assertEqual(self.ask("ctypes.string_at(second, 100)"), repr(b"\x08" * 100))

    def test_changed_in_place_and_then_put_back(self):
        path = self.mapped(self.directory, self.PRIVATE)
        shutil.copy2(path, path + ".right")
        with open(path, "r+b") as f:
            f.write(b"changed")
        self.kill_program()
        self.assertEqual(self.refused()[0], 72)
        os.rename(path + ".right", path)
        self.restart()
        self.assertEqual(self.ask("is_same()"), "True")

    def test_further_checkpoints(self):
        path = self.mapped(self.directory, self.SHARED)
        os.unlink(path)
        self.back()
        self.checkpoint()
        os.unlink(path)
        self.back()
        os.unlink(path)
        self.checkpoint()  # now it has no name
        self.back()
        self.assertFalse(os.path.exists(path))

    def test_programs_and_libraries_are_not_kept(self):
        for how in ("auto", "links"):
            with self.subTest(how=how):
                self.start(CKPT_FILES=how)
                self.checkpoint()
                kept = [os.path.join(top, f) for top, _, names in os.walk(self.images) for f in names if top.endswith(".files")]
                self.assertEqual([k for k in kept if os.path.getsize(k) > 1 << 20], [])
                self.kill_program()
                shutil.rmtree(self.images)

    def test_changed_in_place_is_refused_as_ever(self):
        path = self.mapped(self.directory, self.PRIVATE)
        with open(path, "r+b") as f:
            f.seek(5000)
            f.write(b"changed")
        os.unlink(path)
        self.kill_program()
        self.assertEqual(self.refused()[0], 72)


if __name__ == "__main__":
    unittest.main()
