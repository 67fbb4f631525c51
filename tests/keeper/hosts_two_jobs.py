"""Two jobs of one user, with the same hosts and so with the same keepers: neither waits for the other, nor loses anything by it."""
import glob
import json
import os
import subprocess
import unittest

from hosts_support import CKPT, IDLE, NUMBERS, ON, UNAVAILABLE, KeptHosts, clean, wait_for


class TwoJobs(KeptHosts):
    count = 5

    def other_job(self, hosts, *more):
        """Each host runs a process that does nothing; its checkpoints are in a directory of its own."""
        directory, program = self.dir + "/other", self.dir + "/idle2.py"
        with open(program, "w", encoding="ascii") as f:
            f.write(IDLE.replace("sys.argv[1]", "sys.argv[1] + os.uname().nodename"))
        idle = f"/usr/bin/python3 {program} {self.dir}/other."
        names = hosts.split(",")
        shell = "".join(f"{ON} {name} {idle} & " for name in names[1:]) + idle
        job = self.start([CKPT, "run", "--hosts", hosts, "--launch", self.hosts.launch, "--dir", directory, "--stop-timeout", "30s", "--to", "keeper:",
                          "--memory", "128M", "--redundancy", "parity", *more, "--", "sh", "-c", shell], "other")
        for name in names:
            wait_for(lambda n=name: f"the other program on {n}\n" + self.said("other"), lambda n=name: os.path.exists(f"{self.dir}/other.{n}"))
        self.leads(job.pid)
        return job

    def end_of(self, job):
        """Of this job alone; its head takes its processes with it."""
        job.terminate()
        wait_for("the end of the head", lambda: job.poll() is not None)

    def test_one_takes_a_checkpoint_while_the_other_does(self):
        """At each step of the one's exchange: of all hosts none waits for what it holds."""
        for point in ("exchange.begun", "exchange.told", "exchange.checks", "exchange.half", "exchange.named"):
            with self.subTest(point=point), self.hosts_anew():
                self.head = ("env", f"CKPT_TEST_POINT={point}@host1.1=stop")
                job = self.run_kept("--redundancy", "parity")
                self.head = ()
                other = self.other_job("h3,h2,h1")
                with subprocess.Popen([CKPT, "now", str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean()) as asking:
                    [stopped] = self.stopped_at_the_point("h2", asking)
                    for _ in range(2):
                        self.assertEqual(self.now(other.pid)["hosts"], 3)
                    self.assertIsNone(asking.poll())
                    # It holds no lock of the keeper's directory, and yet nothing that it makes may be taken for old.
                    gc = self.hosts.run("h2", CKPT, "gc", "--keep", "1", "keeper:main-2")
                    self.assertEqual(gc.returncode, UNAVAILABLE, gc.stdout + gc.stderr)
                    self.hosts.run("h2", "kill", "-CONT", str(stopped), check=True)
                    _, error = asking.communicate(timeout=240)
                self.assertEqual(asking.returncode, 0, error + self.said())
                self.now(other.pid)
                self.end_job(job)
                self.lose_keeper("h2")
                self.check_end(self.bring_back(self.on, "again"), "again")

    def test_one_takes_a_checkpoint_while_a_part_of_the_other_is_computed(self):
        """On the host where that is done, at each step of it."""
        for point in ("exchange.listens", "exchange.checks", "exchange.half"):
            with self.subTest(point=point), self.hosts_anew():
                job = self.run_kept("--redundancy", "parity")
                self.now(job.pid)
                self.end_of(job)
                other = self.other_job("h1,h4,h3")
                self.lose_keeper("h2")
                self.head = ("env", f"CKPT_TEST_POINT={point}@lost1.1=stop")
                back = self.bring_back("h1,h4,h3", "back")
                self.head = ()
                [stopped] = wait_for(lambda: "the point\n" + self.said("back"), lambda: self.stopped("h4"))
                for _ in range(2):
                    self.assertEqual(self.now(other.pid)["hosts"], 3)
                self.hosts.run("h4", "kill", "-CONT", str(stopped), check=True)
                self.running("h4", NUMBERS)
                self.leads(back.pid)
                # With what was computed there another host is made good.
                self.end_of(back)
                self.end_of(other)
                self.lose_keeper("h1")
                self.check_end(self.bring_back("h1,h4,h3", "again"), "again")

    def test_what_a_killed_one_has_begun_goes_with_it(self):
        """A part that is being computed, and all of an exchange: the keeper holds nothing of it that stays."""
        job = self.run_kept("--redundancy", "parity")
        self.now(job.pid)
        self.end_of(job)
        other = self.other_job("h1,h4,h3")
        self.lose_keeper("h2")
        self.head = ("env", "CKPT_TEST_POINT=exchange.checks@lost1.1=kill")
        back = self.bring_back("h1,h4,h3", "back")
        self.head = ()
        wait_for(lambda: "its end\n" + self.said("back"), lambda: back.poll() is not None)
        self.now(other.pid)
        pid = self.keeper_pid("h4")
        names = self.hosts.run("h4", "sh", "-c", f"ls -A $(dirname $(ls -d /proc/{pid}/fd/*/*.job | head -1))").stdout.split()
        # The other's.
        self.assertEqual(sorted(os.path.splitext(name)[1] for name in names), [".checks", ".job", ".log"], names)
        self.end_of(other)
        # Its name is taken there now.
        self.check_end(self.bring_back("h1,h5,h3", "again"), "again")

    def test_the_other_has_a_part_of_that_name(self):
        """Each keeper counts for itself: on the first spare the name is the other job's. The next spare gets the part."""
        job = self.run_kept("--redundancy", "parity", "--recover", "--spare", "h4,h5")
        self.now(job.pid)
        other = self.other_job("h3,h4,h1")
        self.now(other.pid)
        [record] = glob.glob(self.images + "/*.hosts")
        with open(record, encoding="utf-8") as f:
            lost = json.load(f)["parts"][1]["directory"]
        self.assertEqual([one["name"] for one in self.held("h4")], [os.path.basename(lost)])
        before = self.held("h4")
        self.hosts.crash("h2")
        wait_for(lambda: "a word of it\n" + self.said(), lambda: "the job goes on from" in self.said() or job.poll() is not None)
        self.assertIsNone(job.poll(), self.said())
        self.assertIn("on h1, h5, h3", self.said())
        self.assertRegex(self.said(), r"h4: [^\n]*is another job's")
        self.leads(job.pid)
        self.now(job.pid)
        self.assertEqual(self.held("h4"), before)
        self.check_end(job, "out")


if __name__ == "__main__":
    unittest.main()
