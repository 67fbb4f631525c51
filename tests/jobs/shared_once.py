#!/usr/bin/env python3
"""Shared anonymous memory of a job is in one of its images, and comes back in all its processes.
  shared_once.py [NAME...]
"""
import glob
import json
import os
import struct
import subprocess
import unittest

from job_tree import BUILD, CKPT, NOBODY, RESTART, Tree, adopt_orphans, descendants, environment, root_of, wait_for

PROGRAM = os.path.join(BUILD, "tests", "jobs", "shared_once")
MIB = 16
MODES = ({}, {"CKPT_MODE": "fork"}, {"CKPT_MODE": "sequential"}, {"CKPT_MODE": "concurrent"}, {"CKPT_MODE": "realtime-large"},
         {"CKPT_FAULTS": "in-thread"}, {"CKPT_FAULTS": "mprotect"}, {"CKPT_INCREMENTS": "3"}, {"CKPT_COMPRESS": "lz4"})


def word(index):
    return struct.pack("<Q", (index + 1) * 0x9E3779B97F4A7C15 & 2**64 - 1)


class SharedOnce(unittest.TestCase):
    def begin(self, how, uid=0, **settings):
        tree = Tree("once", ["env", *(f"{k}={v}" for k, v in settings.items()), PROGRAM, how, str(MIB)], uid=uid)
        self.addCleanup(lambda: tree.close(self._outcome.result.failures or self._outcome.result.errors))
        tree.run()
        self.wait_for_file(tree, "up")
        return tree

    @staticmethod
    def path(tree, name):
        return os.path.join(tree.work, name)

    def make(self, tree, name):
        with open(self.path(tree, name), "w", encoding="ascii"):
            pass

    def wait_for_file(self, tree, name):
        wait_for(lambda: os.path.exists(self.path(tree, name)), f"a file {name}")

    def end(self, tree):
        self.make(tree, "stop")
        self.assertEqual(tree.finish(), (0, b"ok\n"), tree.said())
        os.unlink(self.path(tree, "stop"))

    @staticmethod
    def sizes(job):
        """Bytes of the images, the largest last."""
        return sorted(os.path.getsize(name) for name in glob.glob(os.path.join(job, "*.ckpt")))

    def three_generations(self, how, uid=0, **settings):
        tree = self.begin(how, uid, **settings)
        job = tree.checkpoint(tree.child.pid)
        first = self.sizes(job)
        for _ in range(2):
            tree.kill()
            job = tree.checkpoint(root_of(tree.restart(job)))
        tree.kill()
        tree.restart(job)
        self.end(tree)
        tree.kill()
        return first, self.sizes(job)

    def test_one_image_has_it(self):
        for settings in MODES:
            for uid in 0, NOBODY:
                with self.subTest(uid=uid, **settings):
                    for sizes in self.three_generations("all", uid, **settings):
                        self.assertEqual(len(sizes), 4)
                        self.assertGreaterEqual(sizes[-1], MIB << 20)
                        self.assertLess(sum(sizes[:-1]), MIB << 20)

    def test_one_image_has_a_segment_of_system_v(self):
        for settings in MODES[:4]:
            for uid in 0, NOBODY:
                with self.subTest(uid=uid, **settings):
                    for sizes in self.three_generations("sysv", uid, **settings):
                        self.assertGreaterEqual(sizes[-1], MIB << 20)
                        self.assertLess(sum(sizes[:-1]), MIB << 20)

    def test_no_process_has_all_of_it(self):
        """Then each saves what it maps."""
        for settings in MODES[:3]:
            with self.subTest(**settings):
                for sizes in self.three_generations("halves", **settings):
                    self.assertGreaterEqual(sum(sizes), MIB << 20)

    def test_asked_by_a_child(self):
        """Who is asked saves it."""
        tree = self.begin("all")
        for pid in sorted(descendants(tree.child.pid)):
            job = tree.checkpoint(pid)
            self.assertLess(sum(self.sizes(job)[:-1]), MIB << 20)
            self.assertEqual(os.path.basename(max(glob.glob(os.path.join(job, "*.ckpt")), key=os.path.getsize)), f"{pid}.ckpt")
        tree.kill()
        tree.restart(job)
        self.end(tree)

    def test_increments_of_which_each_has_another_saver(self):
        tree = self.begin("all", CKPT_INCREMENTS="9")
        jobs = [tree.checkpoint(pid) for pid in (tree.child.pid, *sorted(descendants(tree.child.pid)))]
        for job in jobs:
            tree.kill()
            tree.restart(job)
        self.end(tree)

    def test_others_remap_it_while_it_is_copied(self):
        """Another process than the saver moves it, maps it a second time, or unmaps it, and writes to it: the saver has the bytes of the stop."""
        for how in "again", "moves", "unmaps":
            with self.subTest(how=how):
                tree = self.begin("all", CKPT_TEST_POINT="coordinator.go=wait")
                held = self.path(tree, f"{tree.child.pid:010}.waits")
                asked = subprocess.Popen([CKPT, "now", "--json", str(tree.child.pid)], env=environment(), stdout=subprocess.PIPE, text=True)
                wait_for(lambda: asked.poll() is not None or os.path.exists(held), "a saver that waits")
                self.make(tree, how)
                self.wait_for_file(tree, "written")
                os.unlink(self.path(tree, how))
                os.unlink(held)
                out = asked.communicate()[0]
                self.assertEqual(asked.returncode, 0, out)
                self.assertEqual(json.loads(out)["job_attempts"], 1, tree.said())
                tree.kill()
                os.unlink(self.path(tree, "written"))
                tree.restart(glob.glob(os.path.join(tree.images, "*.job"))[0])
                self.end(tree)
                tree.kill()

    def test_back(self):
        """What another process than the saver has written is undone."""
        for settings in {}, {"CKPT_MODE": "fork"}, {"CKPT_INCREMENTS": "3"}:
            with self.subTest(**settings):
                tree = self.begin("all", **settings)
                tree.checkpoint(tree.child.pid)
                self.make(tree, "write")
                self.wait_for_file(tree, "written")
                os.unlink(self.path(tree, "write"))
                done = subprocess.run([CKPT, "back", str(tree.child.pid)], env=environment(), capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
                self.end(tree)
                tree.kill()

    def test_back_of_one_alone(self):
        tree = self.begin("all")
        job = tree.checkpoint(tree.child.pid)
        small = min(glob.glob(os.path.join(job, "*.ckpt")), key=os.path.getsize)
        pid = os.path.basename(small).removesuffix(".ckpt")
        done = subprocess.run([CKPT, "back", "--only", pid], env=environment(), capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 78, done.stderr + done.stdout)
        self.assertIn("take the whole job back", done.stderr)
        self.end(tree)

    def test_core(self):
        """Of each process it has the memory that another's image has."""
        tree = self.begin("all")
        job = tree.checkpoint(tree.child.pid)
        count = (MIB << 20) // 8
        places = 0, count // 3, count - 512
        for image in glob.glob(os.path.join(job, "*.ckpt")):
            core = self.path(tree, "core")
            subprocess.run([CKPT, "core", image, "-o", core], env=environment(), check=True, stdout=subprocess.DEVNULL)
            with open(core, "rb") as f:
                text = f.read()
            found = [text.find(b"".join(word(place + i) for i in range(512))) for place in places]
            self.assertNotIn(-1, found, image)
            self.assertEqual([8 * place for place in places], [at - found[0] for at in found], image)
        self.end(tree)

    def test_member_alone(self):
        tree = self.begin("all")
        job = tree.checkpoint(tree.child.pid)
        small = min(glob.glob(os.path.join(job, "*.ckpt")), key=os.path.getsize)
        tree.kill()
        done = subprocess.run([RESTART, "--check", small], env=environment(), capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 78, done.stderr)
        self.assertIn("restart the job", done.stderr)
        tree.restart(job)
        self.end(tree)

    def test_saver_unmaps_it_meanwhile(self):
        """Between what it has said and the stop: the checkpoint is taken again."""
        for settings in {"CKPT_MODE": "fork"}, {}:
            with self.subTest(**settings):
                tree = self.begin("unmaps", CKPT_TEST_POINT="coordinator.held=wait", **settings)
                held = self.path(tree, f"{tree.child.pid:010}.waits")
                asked = subprocess.Popen([CKPT, "now", "--json", str(tree.child.pid)], env=environment(), stdout=subprocess.PIPE, text=True)
                wait_for(lambda: os.path.exists(held), "a coordinator that waits")
                self.make(tree, "unmap")
                self.wait_for_file(tree, "unmapped")
                os.unlink(held)
                while asked.poll() is None:
                    wait_for(lambda: asked.poll() is not None or os.path.exists(held), "another attempt, or the end")
                    if os.path.exists(held):
                        os.unlink(held)
                out = asked.communicate()[0]
                self.assertEqual(asked.returncode, 0, out)
                tree.kill()
                tree.restart(glob.glob(os.path.join(tree.images, "*.job"))[0])
                self.end(tree)
                tree.kill()


if __name__ == "__main__":
    adopt_orphans()
    unittest.main()
