#!/usr/bin/env python3
"""A program maps again what it has unmapped, and has a stack that grows into a hole: no checkpoint has put anything there, and
no restart has left anything there."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from stepped_program import BUILD, CKPT, RESTART, Program, environment

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path += [os.path.join(TESTS, "points"), os.path.join(TESTS, "support")]
import points  # noqa: E402
from stopped_threads import is_any_stopped  # noqa: E402

PROGRAM = os.path.join(BUILD, "tests", "restart", "takes_holes")


def in_holes(pid, holes):
    """Lines of the list of mappings."""
    found = []
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        for line in maps:
            start, end = (int(a, 16) for a in line.split()[0].split("-"))
            found += [line for first, last in holes if start < last and first < end]
    return found


def children(pid):
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/children", encoding="utf-8") as text:
                found += [int(child) for child in text.read().split()]
        except OSError:
            pass  # it has ended
    return found


class TakesHoles(unittest.TestCase):
    def start(self, directory, *words, **more):
        """The program, and its holes."""
        program = Program([CKPT, "run", "--dir", directory, *words, "--", PROGRAM, "by-line"], **more)
        self.addCleanup(program.child.wait)
        self.addCleanup(program.child.kill)
        return program, [tuple(int(a, 16) for a in hole.split("-")) for hole in program.child.stdout.readline().decode().split()]

    def test_while_checkpoints_are_taken(self):
        with tempfile.TemporaryDirectory(prefix="ckpt-holes-") as place:
            programs = []
            for way, settings in points.WAYS.items():
                directory = os.path.join(place, way)
                programs.append((way, directory, subprocess.Popen(
                    [CKPT, "run", "--dir", directory, "--every", "30ms", "--", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE, text=True, env=environment(**settings))))
            for way, directory, program in programs:
                with self.subTest(way=way):
                    # It goes on until an image is durable, which takes the disk as long as it takes.
                    while program.poll() is None and not (os.path.isdir(directory) and any(n.endswith(".ckpt") for n in os.listdir(directory))):
                        time.sleep(0.01)
                    out, err = program.communicate(timeout=200)
                    self.assertEqual((program.returncode, out.endswith("\nok\n")), (0, True), err)

    def test_at_each_point_of_a_checkpoint(self):
        for point, ways in points.POINTS.items():
            for way in ways:
                with self.subTest(point=point, way=way), tempfile.TemporaryDirectory(prefix="ckpt-holes-") as place:
                    self.stop_at(point, way, place)

    def stop_at(self, point, way, place):
        checkpoints = 2 if way in points.KEPT else 1
        times = 1 if point in ("watch.renewed", "stop.signalled") else checkpoints  # to which the first checkpoint does not come
        program, holes = self.start(place, CKPT_TEST_POINT=f"{point}=stop:{times}", **points.WAYS[way])
        pid, stops = program.child.pid, 0
        for checkpoint in range(1, checkpoints + 1):
            self.assertEqual(program.ask("take"), "ok")  # and has written something since the last one
            if checkpoint == checkpoints:
                points.prepare_for(point, pid)
            now = subprocess.Popen([CKPT, "now", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment())
            # The points at the end come after the answer: the next one is waited for as well.
            while now.poll() is None or (stops == 0 and point in points.PUBLISHED and checkpoint == checkpoints):
                for process in [pid, *children(pid)]:
                    if not is_any_stopped(process):
                        continue
                    self.assertEqual(in_holes(pid, holes), [])
                    stops += process == pid
                    os.kill(process, signal.SIGCONT)
                time.sleep(0.001)  # between two looks
            self.assertEqual(now.returncode, 0, now.stderr.read())
            now.stderr.close()
        self.assertGreater(stops, 0)
        # What stays between checkpoints is in none either.
        self.assertEqual(program.ask("take"), "ok")
        self.assertEqual(in_holes(pid, holes), [])
        self.assertEqual(program.end()[0], 0)

    def test_after_a_restart(self):
        for how in ("--eager", "--lazy"):
            with self.subTest(how=how), tempfile.TemporaryDirectory(prefix="ckpt-holes-") as place:
                program, holes = self.start(place)
                done = subprocess.run([CKPT, "now", str(program.child.pid)], capture_output=True, check=False, env=environment())
                self.assertEqual(done.returncode, 0, done.stderr)
                program.child.kill()
                program.end()
                again = Program([RESTART, "--json", how, place])
                said = again.said()
                self.assertTrue(said["ok"], said)
                self.assertEqual(in_holes(said["outer_pid"], holes), [])
                for _ in range(3):
                    self.assertEqual(again.ask("take"), "ok")
                    done = subprocess.run([CKPT, "now", str(said["outer_pid"])], capture_output=True, check=False, env=environment())
                    self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(again.end()[0], 0)


if __name__ == "__main__":
    sys.exit(unittest.main())
