#!/usr/bin/env python3
"""Every N-th checkpoint in a keeper's memory goes to a disk as well: complete in itself, and the newest of them comes back when
the keeper is gone."""
import glob
import json
import os
import shutil
import sys
import time
import unittest

from keeper_support import LIMIT, PROGRAM, UNAVAILABLE, USAGE, KeeperBase


class DiskTest(KeeperBase):
    def setUp(self):
        super().setUp()
        self.disk = self.directory + "/disk"

    def on_disk(self):
        return sorted(os.path.basename(path) for path in glob.glob(f"{self.disk}/*.ckpt") + glob.glob(f"{self.disk}/*.job"))

    def until(self, what, condition):
        deadline = time.monotonic() + LIMIT
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"{what}: {self.on_disk()} {self.ckpt('keeper', 'status', self.keeper).stdout}")
            time.sleep(0.01)

    def saved(self, name):
        self.until(f"{name} on the disk", lambda: self.status()["disk"]["saved"] == name)

    def start_saving(self, every=2, **more):
        return self.start(options=["--disk-every", str(every), "--dir", self.disk, *more.pop("options", ())], **more)

    def test_one_process(self):
        program = self.start_saving()
        names, said = {}, {}
        for number in range(1, 7):
            said[number] = self.said()
            self.moves()
            answer = self.now(program)
            names[number] = os.path.basename(answer["image"])
            # An increment in memory, but for the first.
            self.assertEqual(answer["parent_sequence"], number - 1)
            if number % 2 == 0:
                self.saved(names[number])
                # Whatever it is in memory, it needs nobody there.
                self.assertEqual(json.loads(self.fine("show", "--json", f"{self.disk}/{names[number]}"))["parent"], 0)
                self.fine("verify", self.disk)
        # The newest and the one before.
        self.assertEqual(self.on_disk(), [names[4], names[6]])
        self.assertIn("every 2th", self.fine("keeper", "status", self.keeper))
        self.now(program)
        self.kill(program)
        # The host has ended: all that was in memory is gone.
        self.end_keeper(self.status()["pid"])
        back = self.restart(self.disk, at_least=said[6])
        self.kill(back)

    def test_a_job(self):
        script = f"{self.directory}/program.py"
        with open(script, "w", encoding="ascii") as f:
            f.write(PROGRAM)
        shell = " & ".join(f"{sys.executable} {script} {self.directory}/{name} 4" for name in ("count", "other"))
        program = self.start_saving(program=["sh", "-c", shell + " & wait"])
        self.moves("other")
        for number in range(1, 5):
            said = self.said()
            self.moves()
            self.moves("other")
            answer = self.now(program)
            # Where processors are busy, the next one is there before this one has been saved, and is saved in its place.
            if number % 2 == 0:
                self.saved(os.path.basename(answer["job"]))
        self.assertEqual(answer["members"], 3)
        self.fine("verify", self.disk)
        self.assertEqual(len(self.on_disk()), 2)
        self.kill(program)
        self.end_keeper(self.status()["pid"])
        self.restart(self.disk, at_least=said)
        self.moves("other")

    def test_killed_while_it_saves(self):
        """At each point of it: what was on the disk before is there, or the newer one, and comes back."""
        for point in ("disk.begun", "disk.image", "disk.named"):
            with self.subTest(point=point):
                self.fine("keeper", "start", self.keeper, "--memory", "512M", "--untouched", "--disk", self.disk, "--disk-every", "2",
                          variables={"CKPT_TEST_POINT": f"{point}@disk=kill:2"})
                program = self.start_saving()
                names = [os.path.basename(self.now(program)["image"]) for _ in range(2)]
                self.saved(names[1])
                watch = self.watch_of(self.status()["pid"])
                names += [os.path.basename(self.now(program)["image"]) for _ in range(2)]
                self.until("its end", lambda w=watch: not self.lives(w))
                self.assertEqual([n for n in self.on_disk() if n in names],
                                 [names[1]] + ([names[3]] if point == "disk.named" else []))
                self.fine("verify", self.disk)
                # The program and its keeper do not notice.
                self.moves()
                self.now(program)
                self.kill(program)
                self.end_keeper(self.status()["pid"])
                back = self.restart(self.disk, at_least=1)
                self.kill(back)
                shutil.rmtree(self.disk)

    def watch_of(self, keeper):
        with open(f"/proc/{keeper}/task/{keeper}/children", encoding="ascii") as f:
            [pid] = f.read().split()
        return int(pid)

    def test_the_disk_fails(self):
        program = self.start_saving()
        self.now(program)
        os.chmod(self.disk, 0o777)  # refused: others may write it
        self.now(program)
        self.until("the refusal", lambda: self.status()["disk"]["error"] != "")
        self.assertIn(self.disk, self.status()["disk"]["error"])
        os.chmod(self.disk, 0o700)
        self.now(program)
        newest = os.path.basename(self.now(program)["image"])
        self.saved(newest)
        self.assertEqual(self.status()["disk"]["error"], "")

    def test_refusals(self):
        self.refused(USAGE, ["--disk-every", "--to keeper:"], "run", "--disk-every", "2", "--", "true")
        self.refused(USAGE, ["--disk"], "keeper", "start", self.keeper, "--disk-every", "2")
        self.start_keeper()
        self.refused(UNAVAILABLE, ["saves nothing", "keeper:OTHER"], "run", "--to", self.where, "--disk-every", "2", "--dir", self.disk, "--", "true")


if __name__ == "__main__":
    unittest.main()
