"""Processes of other users that disturb the checkpoint of a job of root's: a member that says what no member would, strangers that
connect. The checkpoint ends, says who it was, and none of what they claim is in it."""

import glob
import json
import os
import re
import shutil
import socket
import subprocess
import unittest

from capture_support import CKPT, HOSTILE, Job, clean, handles_requests, name_of, tree, wait_for


@unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/usr/bin/setpriv"), "needs root and setpriv")
class Hostile(Job):
    def refused(self, how, code, *words):
        """The checkpoint of root's job with a hostile member ends with this code."""
        os.chmod(self.directory, 0o755)
        program, library = (shutil.copy(f, self.directory) for f in
                            (HOSTILE, os.path.join(os.path.dirname(CKPT), "..", "lib", "libckpt_rt.so")))
        child = self.start("bash", "-c", f"setpriv --reuid 65534 --regid 65534 --clear-groups env -u LD_PRELOAD {program} {how} {library} & "
                           "wait", ready="up")
        hostile = tree(child.pid)[1]
        done = self.run_ckpt("now", child.pid)
        self.assertEqual(done.returncode, code, done.stderr)
        for word in (f"process {hostile} ", *words):
            self.assertIn(word, done.stderr)
        self.assertEqual(glob.glob(self.images + "/*.job"), [])
        self.assertEqual(self.leftovers(), [])

    def test_leaves_again_and_again(self):
        self.refused("leaves", 75, "left the checkpoint again and again")

    def test_connects_and_says_nothing(self):
        self.refused("silent", 75, "did not answer within 30 s")

    def test_skips_a_step(self):
        """Its image would be missing."""
        self.refused("skips", 68, "says what no member would")

    def test_has_one_descriptor_twice(self):
        """The kernel would be asked about each, while all stand."""
        self.refused("twice", 68, "says what no member would")

    def test_claims_what_its_parent_has_open(self):
        self.refused("claims", 68, "says what no member would")

    def test_locks_the_directory(self):
        """Whoever may read it can. Two checkpoints at once still take turns."""
        child = self.start("bash", "-c", f"cd {self.directory}; sleep 1000 & echo up; wait", ready="up",
                           env=clean(CKPT_TEST_POINT="coordinator.held=wait:2"))
        sleep = self.settle_named(child.pid, "bash", "sleep")["sleep"]
        self.now(child.pid)
        for directory in (self.directory, self.images):
            os.chmod(directory, 0o755)
        with subprocess.Popen(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "flock", "-x", self.images, "sh", "-c",
                               "echo has it; read x"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stranger:
            self.assertEqual(stranger.stdout.readline(), "has it\n")
            with subprocess.Popen([CKPT, "now", "--json", str(child.pid)], stdout=subprocess.PIPE, text=True, env=clean()) as first:
                waits = os.path.join(self.directory, f"{child.pid:010}.waits")
                wait_for("the first", lambda: os.path.exists(waits))
                gc = self.run_ckpt("gc", "--keep", "1", self.images)
                self.assertEqual(gc.returncode, 69, gc.stderr)
                os.unlink(waits)
                self.assertEqual(json.loads(first.communicate(timeout=60)[0])["members"], 2)
                self.assertEqual(first.returncode, 0)
            self.assertEqual(self.now(sleep)["members"], 2)
            stranger.communicate("\n")


def listener_of(pid):
    """The abstract name at which the agent in this process waits for members; it may have descriptors of its own."""
    inodes = set()
    for fd in glob.glob(f"/proc/{pid}/task/*/fd/*"):
        try:
            found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd))
        except OSError:
            continue
        if found:
            inodes.add(found[1])
    with open("/proc/net/unix", encoding="ascii", errors="replace") as f:
        for line in f:
            fields = line.split()
            if len(fields) == 8 and fields[6] in inodes and re.fullmatch("@ckpt_rt.[0-9a-f]{16}", fields[7]):
                return "\0" + fields[7][1:]
    raise AssertionError("nobody listens")


class Strangers(Job):
    def test_in_the_stop(self):
        """Nobody new can come: a connection is not looked at, nor could a thousand be that are made without end."""
        child = self.start("bash", "-c", f"cd {self.directory}; sleep 1000 & echo up; wait", ready="up",
                           env=clean(CKPT_TEST_POINT="coordinator.stopped=wait"))
        wait_for("sleep", lambda: [name_of(p) for p in tree(child.pid)] == ["bash", "sleep"])
        with subprocess.Popen([CKPT, "now", str(child.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=clean()) as asker:
            waits = os.path.join(self.directory, f"{child.pid:010}.waits")
            wait_for("the stop", lambda: os.path.exists(waits))
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(listener_of(child.pid))
                os.unlink(waits)
                self.assertEqual((asker.communicate(timeout=60)[1], asker.returncode), ("", 0))
                # One that was taken from the queue ends without an error.
                with self.assertRaises(ConnectionResetError):
                    stranger.recv(1)

    def test_under_the_names_of_askers(self):
        """The agent of a program that cannot be told which asker it was tries them all, but waits for none of those that are
        full longer than for all together."""
        child = self.start("sleep", "1000")
        wait_for("sleep", lambda: name_of(child.pid) == "sleep" and handles_requests(child.pid))
        for cookie in range(60):
            address = f"\0ckpt_rt.{child.pid:016x}.{cookie + (1 << 32):016x}"
            listener, first = (socket.socket(socket.AF_UNIX) for _ in range(2))
            self.addCleanup(listener.close)
            self.addCleanup(first.close)
            listener.bind(address)
            listener.listen(0)
            first.connect(address)  # the next one has to wait
        os.kill(child.pid, 60)
        wait_for("the checkpoint", lambda: glob.glob(self.images + "/*.ckpt"), said=self.log)


class Planted(Job):
    def test_directories(self):
        """What is left of a checkpoint goes with the next one, whatever directories a member of another user has made in it."""
        left = os.path.join(self.images, ".bash.000001.job.tmp")
        for top in ("job.files", "planted"):
            os.makedirs(os.path.join(left, top, *map(str, range(30))))
            os.makedirs(os.path.join(left, top, "0", "also", "deep"))
            with open(os.path.join(left, top, "0", "also", "file"), "w", encoding="ascii"):
                pass
        child = self.start("bash", "-c", "sleep 1000 & echo up; wait", ready="up")
        self.settle_named(child.pid, "bash", "sleep")
        self.now(child.pid)
        self.assertEqual(self.leftovers(), [])


if __name__ == "__main__":
    unittest.main()
