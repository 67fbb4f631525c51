#!/usr/bin/env python3
"""A host of a job dies without a word, as one whose cable is pulled: the processes of the others go back in place, those of the lost host come
to a spare, and the job goes on. Where that cannot be, all of it is restarted."""
import glob
import os
import shutil
import unittest

import ring
from over_hosts import ON, wait_for

NUMBERS = os.environ["CKPT_NUMBERS"]
SILENCE = "5s"  # a busy machine may be still for some time
LONG = os.environ.get("CKPT_LONG") == "1"


class InPlace(ring.OnRing):
    count = 5

    def begin(self, *options):
        job = self.run_ring("--recover", "--spare", "h4,h5", "--host-silence", SILENCE, *options)
        self.now(job.pid)
        self.limit(5000)
        self.comes_to(5000)
        return job

    def ring_at(self, host):
        return [p for p, w in self.hosts.processes(host) if w.startswith("python3 ring.py")]

    def goes_on(self, where, times=1):
        wait_for(lambda: f"the job on {where}: {self.said()}", lambda: self.said().count(f" on {where}; its processes stood for") == times)

    def ends_well(self, job):
        self.limit(10**9)
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertEqual(sorted(line.split()[0] for line in self.said().splitlines() if line.split()[1:] == ["ended"]), ["h1", "h2", "h3"])

    def test_one_after_the_other(self):
        job = self.begin()
        before = [self.ring_at("h1"), self.ring_at("h3")]
        self.hosts.cut("h2")
        self.goes_on("h1, h4, h3")
        self.assertEqual([self.ring_at("h1"), self.ring_at("h3")], before)
        self.assertEqual(len(self.ring_at("h4")), 1)
        self.comes_to(5000, 2)
        self.leads(job.pid)
        # The next one is another job's for nobody: it counts, and the job can lose a host again, also the first one.
        self.assertEqual(self.now(job.pid)["hosts"], 3)
        self.limit(8000)
        self.comes_to(8000)
        said = self.back(job.pid)
        self.assertEqual(said["hosts"], 3)
        self.comes_to(8000, 2)
        self.hosts.cut("h1")
        self.goes_on("h5, h4, h3")
        self.assertEqual(self.ring_at("h3"), before[1])
        self.comes_to(8000, 3)
        self.leads(job.pid)
        self.ends_well(job)

    def test_two_parts_on_a_survivor(self):
        """In namespaces of their own: they go back in place as well. Then the third comes there too, for there is no spare any more."""
        job = self.begin()
        self.kill_all(job)
        job = self.comes_back("h1,h2", "--recover", "--spare", "h4")
        self.limit(6000)
        self.comes_to(6000)
        self.now(job.pid)
        before = self.ring_at("h1")
        self.assertEqual(len(before), 2)
        self.limit(8000)
        self.comes_to(8000)
        self.hosts.cut("h2")
        self.goes_on("h1, h1, h4")
        self.assertEqual((self.ring_at("h1"), len(self.ring_at("h4"))), (before, 2))
        self.comes_to(8000, 2)
        self.leads(job.pid)
        self.now(job.pid)
        self.limit(10000)
        self.comes_to(10000)
        self.hosts.cut("h4")
        self.goes_on("h1, h1, h1")
        self.assertEqual(self.ring_at("h1")[:2], before)
        self.comes_to(10000, 2)
        self.leads(job.pid)
        self.now(job.pid)
        self.limit(12000)
        self.comes_to(12000)
        self.assertEqual(self.back(job.pid)["hosts"], 3)
        self.comes_to(12000, 2)
        self.ends_well(job)

    def test_full_queues(self):
        """Both ends send as fast as they can; once the listening end is lost, and once the other."""
        total = 60_000_000
        job = self.run_job("sh", "-c", f"{ON} h2 {NUMBERS} server 5000 {total} {self.dir}/go & {NUMBERS} client h2 5000 {total} {self.dir}/go && wait $!",
                           options=("--recover", "--spare", "h4,h5", "--host-silence", SILENCE))
        wait_for("the connection", lambda: ":5000" in self.hosts.run("h1", "ss", "-tnH", "state", "established").stdout)
        self.leads(job.pid)
        self.now(job.pid)
        self.hosts.cut("h2")
        self.goes_on("h1, h4")
        self.leads(job.pid)
        self.now(job.pid)
        self.hosts.cut("h1")
        self.goes_on("h5, h4")
        open(self.dir + "/go", "w").close()
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertEqual(self.said().count(f"sum {total * (total - 1) // 2}"), 2, self.said())

    def test_connected_datagrams(self):
        """A UDP socket that is connected to the lost host stays, and leads to the one that has its processes."""
        asks = ("import os, socket, time\nu = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nu.connect(('h2', 5003))\nu.settimeout(1)\ndef ask():\n"
                " try:\n  u.send(b'x')\n  return u.recv(9) == b'x'\n except OSError: return False\nwhile not ask(): pass\nprint('quiet', flush=True)\n"
                "while not os.path.exists('go'): time.sleep(0.01)\nwhile not ask(): pass\nprint('ended', u.getpeername()[0] == socket.gethostbyname('h2'), flush=True)\n")
        answers = "import socket\nu = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nu.bind(('', 5003))\nwhile True:\n data, who = u.recvfrom(9)\n u.sendto(data, who)\n"
        for name, text in (("asks", asks), ("answers", answers)):
            with open(f"{self.dir}/{name}.py", "w", encoding="ascii") as f:
                f.write(text)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 answers.py & python3 asks.py", options=("--recover", "--spare", "h4", "--host-silence", SILENCE))
        wait_for("an answer", lambda: b"quiet\n" in self.texts["out"][0])
        self.leads(job.pid)
        self.now(job.pid)
        self.hosts.cut("h2")
        self.goes_on("h1, h4")
        open(self.dir + "/go", "w").close()
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertIn("ended True\n", self.said())

    def is_restarted(self, job, why):
        wait_for(lambda: "a word: " + self.said(), lambda: "not in place: " in self.said())
        self.assertRegex(self.said(), "not in place: .*" + why)
        wait_for(lambda: "a restart: " + self.said(), lambda: "the job goes on from" in self.said())
        self.comes_to(5000, 2)
        self.leads(job.pid)
        self.now(job.pid)
        self.ends_well(job)

    def test_a_survivor_has_ended(self):
        job = self.begin()
        self.hosts.cut("h2")
        self.hosts.run("h3", "kill", "-9", str(self.ring_at("h3")[0]))
        self.is_restarted(job, "has ended since the checkpoint")

    def test_who_takes_back_is_killed(self):
        """On one of the survivors, ahead of the decision and behind it."""
        for point in ("back.held", "back.planned", "back.ready", "back.cutting", "back.committed") if LONG else ("back.planned", "back.committed"):
            with self.subTest(point=point):
                self.launch = f"{self.hosts.launch} env CKPT_TEST_POINT={point}@h3=kill"
                job = self.begin()
                self.hosts.cut("h2")
                self.is_restarted(job, "back-part ended without a word")
                self.again()

    def test_the_agent_alone_is_lost(self):
        """It hangs, and its kernel answers; or it is killed. Its host's processes have ended before they run elsewhere."""
        for signal, word in (("STOP", "hangs"), ("KILL", "was killed")):
            with self.subTest(signal=signal):
                job = self.begin()
                [agent] = [p for p, w in self.hosts.processes("h2") if w.endswith("ckpt agent")]
                self.hosts.run("h2", "kill", "-" + signal, str(agent))
                wait_for(lambda: "a word: " + self.said(), lambda: "the job goes on from" in self.said())
                self.assertEqual(self.ring_at("h2"), [], self.said())
                self.assertIn(f"ckpt: h2: its agent {word}: the job's processes there are ended", self.said())
                self.assertIn("on h1, h4, h3\n", self.said())
                self.comes_to(5000, 2)
                self.leads(job.pid)
                self.now(job.pid)
                self.ends_well(job)
                self.again()

    def test_another_job_was_there(self):
        """The directory has its checkpoint, which is the newest; this job has none yet."""
        job = self.run_job("sh", "-c", "while [ ! -e end ]; do sleep 0.1; done; echo older")
        self.leads(job.pid)
        self.now(job.pid)
        open(self.dir + "/end", "w").close()
        self.assertEqual(job.wait(240), 0, self.said())
        job = self.run_job("sleep", "1000", options=("--recover", "--spare", "h4"))
        self.leads(job.pid)
        [agent] = [p for p, w in self.hosts.processes("h2") if w.endswith("ckpt agent")]
        self.hosts.run("h2", "kill", "-KILL", str(agent))
        self.assertEqual(job.wait(240), 69, self.said())
        self.assertIn("the job has no checkpoint yet to go on from", self.said())
        self.assertNotIn("older", self.said())

    def test_nobody_is_asked_to_end(self):
        """What goes on from a checkpoint is not asked to end before (SIGTERM): what a program does then would be done beside the job that goes on."""
        with open(f"{self.dir}/handles.py", "w", encoding="ascii") as f:
            f.write("import os, signal, time\nsignal.signal(signal.SIGTERM, lambda *_: open('asked', 'w').close())\nopen('handles', 'w').close()\n"
                    "while not os.path.exists('last'): time.sleep(0.01)\n")
        job = self.run_job("sh", "-c", f"{ON} h2 sleep 1000 & python3 handles.py; kill $!", options=("--recover", "--spare", "h4"))
        wait_for("the program", lambda: os.path.exists(self.dir + "/handles"))
        self.leads(job.pid)
        self.now(job.pid)
        self.hosts.crash("h2")
        wait_for(lambda: "a word: " + self.said(), lambda: "the job goes on from" in self.said())
        self.leads(job.pid)
        open(self.dir + "/last", "w").close()
        self.assertEqual(job.wait(240), 0, self.said())
        self.assertFalse(os.path.exists(self.dir + "/asked"), self.said())

    def test_a_host_is_frozen(self):
        """All of it: the job's processes, the agent, its warden. Its kernel answers. It has ended when the job runs elsewhere, without being
        thawed; what is thawed then ends."""
        job = self.begin()
        self.assertEqual(len(self.ring_at("h2")), 1)
        self.hosts.run("h2", "kill", "-STOP", "--", "-1")
        wait_for(lambda: "a word: " + self.said(), lambda: "the job goes on from" in self.said())
        self.assertEqual([w for _, w in self.hosts.processes("h2") if w.startswith("python3") or "ckpt-on" in w or w.endswith("ckpt agent")], [], self.said())
        self.comes_to(5000, 2)
        self.hosts.run("h2", "kill", "-CONT", "--", "-1")
        wait_for(lambda: "the warden's end: " + self.said(), lambda: not [w for _, w in self.hosts.processes("h2") if "ckpt agent" in w])
        self.leads(job.pid)
        self.now(job.pid)
        self.ends_well(job)

    def test_the_spare_is_lost(self):
        """While its part is restarted there."""
        self.launch = self.stopping_at("restart.memory", "h4")
        job = self.begin()
        self.hosts.cut("h2")
        wait_for(lambda: "a word: " + self.said(), lambda: "come to h4" in self.said())
        self.await_stop("h4")
        self.hosts.cut("h4")
        self.is_restarted(job, "h4")
        self.assertIn("on h1, h5, h3\n", self.said())

    def again(self):
        self.end()
        self.hosts.close()
        self.make_hosts()
        for left in glob.glob(self.dir + "/listens.*"):
            os.unlink(left)
        shutil.rmtree(self.images)


if __name__ == "__main__":
    unittest.main()
