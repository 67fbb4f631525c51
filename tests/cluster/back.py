"""ckpt back of a job over several hosts, each in namespaces of its own: the processes of all hosts go back to one instant in place,
with what was in the connections between them, or nothing is changed and one line says why; or all is restarted, where it failed
half way."""
import glob
import json
import os
import subprocess
import unittest

import ring
from over_hosts import CKPT, ON, wait_for

NUMBERS = os.environ["CKPT_NUMBERS"]

class Back(ring.OnRing):
    def test_ring(self):
        """There and back, more than once; to an older checkpoint as well. Connections that were made since are closed."""
        job = self.run_ring()
        first = self.now(job.pid)
        self.limit(5000)
        self.comes_to(5000)
        said = self.back(job.pid)
        self.assertEqual((said["hosts"], said["checkpoint"]), (3, first["checkpoint"]))
        self.assertGreaterEqual(said["connections"], 5)
        self.comes_to(5000, 2)
        # The lines are those of the way from 2000 on, twice; nothing of it was restarted. (It may have said 3000 when the checkpoint came.)
        self.assertEqual(self.said().count("round 2000\n"), 1)
        self.assertEqual(self.said().count("round 4000\n"), 2, self.said())
        self.now(job.pid)
        self.limit(7000)
        self.comes_to(7000)
        # Not twice the same attempt: the one before is over on all hosts.
        for _ in range(3):
            self.back(self.pid_of("h3", "python3 ring.py"), host="h3")
        self.comes_to(7000, 2)
        self.back(self.pid_of("h1", "python3 ring.py"), first["checkpoint"], host="h1")
        self.comes_to(4000, 3)
        self.comes_to(7000, 3)
        # The newest is damaged: it is named, and the one before is taken.
        newest = max(glob.glob(self.images + "/*.hosts"))
        with open(newest, "r+", encoding="ascii") as f:
            text = f.read()
            f.seek(text.index('"name"') + 1)
            f.write("nama")
        said = self.back(job.pid)
        self.assertEqual(said["checkpoint"], first["checkpoint"])
        self.assertEqual([note.split(": ")[0] for note in said["notes"] if "passed over" in note], [newest])
        self.comes_to(7000, 4)
        self.limit(10**9)
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertEqual(sorted(line.split()[0] for line in self.said().splitlines() if "ended" in line), ["h1", "h2", "h3"])

    def test_who_asks_goes(self):
        """`ckpt back-part` of one host is killed: ahead of the decision all go on as they were, behind it all are restarted."""
        for point, restarted in (("back.held", False), ("back.ready", False), ("back.cutting", True), ("back.committed", True)):
            with self.subTest(point=point):
                self.launch = f"{self.hosts.launch} env CKPT_TEST_POINT={point}@h2=kill"
                self.images = f"{self.dir}/{point}"
                for left in glob.glob(self.dir + "/listens.*"):
                    os.unlink(left)
                job = self.run_ring()
                taken = self.now(job.pid)
                self.limit(4000)
                self.comes_to(4000)
                if restarted:
                    said = self.back(job.pid)
                    self.assertTrue(said["restarted"])
                    self.assertIn("h2: back-part ended without a word", said["notes"][0])
                    self.assertEqual(said["checkpoint"], taken["checkpoint"])
                    self.comes_to(4000, 2)
                else:
                    done = self.back(job.pid, ok=False)
                    self.assertEqual(done.returncode, 70, done.stderr)
                    self.assertIn("the job goes on as it was", done.stderr)
                    self.limit(5000)
                    self.comes_to(5000)
                    self.assertEqual(self.said().count("round 4000\n"), 1)
                self.limit(10**9)
                self.assertEqual(job.wait(240), 0, self.said())

    def test_two_parts_on_a_host(self):
        """Each in namespaces of its own, in which all processes have the numbers that others have, too."""
        for point, restarted in ((None, False), ("back.ready", False), ("back.committed", True)):
            with self.subTest(point=point):
                self.images = f"{self.dir}/{point}"
                for left in glob.glob(self.dir + "/listens.*"):
                    os.unlink(left)
                self.launch = None
                job = self.run_ring()
                self.now(job.pid)
                self.kill_all(job)
                if point:
                    self.launch = f"{self.hosts.launch} env CKPT_TEST_POINT={point}@h2=kill"
                job = self.comes_back("h3,h1")
                self.limit(4000)  # 3000 may have been said ahead of the checkpoint
                self.comes_to(4000)
                self.now(job.pid)
                self.limit(6000)
                self.comes_to(6000)
                done = self.back(job.pid, ok=False)
                if point and not restarted:
                    self.assertEqual(done.returncode, 70, done.stderr)
                    self.assertIn("the job goes on as it was", done.stderr)
                    self.limit(7000)
                    self.comes_to(7000)
                    self.assertEqual(self.said().count("round 6000\n"), 1)
                else:
                    self.assertEqual(done.returncode, 0, done.stderr + self.said())
                    self.assertEqual(json.loads(done.stdout).get("restarted", False), restarted, done.stdout)
                    self.comes_to(6000, 2)
                self.limit(10**9)
                self.assertEqual(job.wait(240), 0, self.said())

    def test_what_cannot_go_back(self):
        """A part alone; what is no checkpoint; where a process has ended since."""
        job = self.run_ring()
        self.now(job.pid)
        [part] = glob.glob(f"{self.images}/h1/*.job")
        done = self.hosts.run("h1", CKPT, "back", part, timeout=240)
        self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
        self.assertIn("several hosts", done.stderr)
        done = self.back(job.pid, self.dir + "/nothing.hosts", ok=False)
        self.assertEqual(done.returncode, 66, done.stdout + done.stderr)
        # Who is of the job would be ended by it.
        hosts = self.hosts.run("h1", "sh", "-c", "tr '\\0' '\\n' < /proc/%d/environ | grep -E '^CKPT_(HOSTS|JOB)='" %
                               self.pid_of("h1", "python3 ring.py")).stdout.split()
        done = self.hosts.run("h1", "env", *hosts, CKPT, "back", str(self.pid_of("h1", "python3 ring.py")), timeout=240)
        self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
        self.assertIn("started by the job", done.stderr)
        # The third's end of the ring. It is at rest: who is left neither sends nor receives, and the job does not end by that.
        self.comes_to(3000)
        third = self.pid_of("h3", "python3 ring.py")
        self.hosts.run("h3", "kill", "-9", str(third))
        wait_for("its end", lambda: not [w for p, w in self.hosts.processes("h3") if p == third and w.startswith("python3")])
        done = self.back(job.pid, ok=False)
        self.assertEqual(done.returncode, 78, done.stdout + done.stderr)
        self.assertIn("has ended since the checkpoint", done.stderr)
        self.assertIn("the job goes on as it was", done.stderr)

    def test_full_queues(self):
        """Both ends send as fast as they can, at any instant."""
        total = 60_000_000
        job = self.run_job("sh", "-c", f"{ON} h2 {NUMBERS} server 5000 {total} {self.dir}/go & {NUMBERS} client h2 5000 {total} {self.dir}/go && wait $!")
        wait_for("the connection", lambda: ":5000" in self.hosts.run("h1", "ss", "-tnH", "state", "established").stdout)
        self.leads(job.pid)
        self.now(job.pid)
        for _ in range(3):
            self.back(job.pid)
        self.now(job.pid)
        self.back(job.pid)
        open(self.dir + "/go", "w").close()
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertEqual(self.said().count(f"sum {total * (total - 1) // 2}"), 2, self.said())


if __name__ == "__main__":
    unittest.main()
