"""A host of a job dies, and the job goes on by itself: on a spare, or on the hosts that are left. Its result is that of a run
in which nobody died."""
import glob
import json
import os
import random
import re
import subprocess
import time
import unittest

from hosts_support import CKPT, NOT_FOUND, NUMBERS, TOTAL, UNAVAILABLE, KeptHosts, clean, over_hosts, wait_for


class Recover(KeptHosts):
    count = 5

    def begin(self, *more, spare="h4"):
        return self.run_kept("--redundancy", "parity", "--recover", *(("--spare", spare) if spare else ()), *more)

    def goes_on(self, job, where, nth=1):
        """The head has said so, and its job runs there."""
        wait_for(lambda: "a word of it\n" + self.said(), lambda: self.said().count("the job goes on from") >= nth or job.poll() is not None)
        self.assertIsNone(job.poll(), self.said())
        self.assertIn(f"on {where}\n", self.said())
        self.leads(job.pid)

    def ends_well(self, job, name="out"):
        open(self.dir + "/go", "w", encoding="ascii").close()
        wait_for(lambda: "the end\n" + self.said(name), lambda: job.poll() is not None)
        self.assertEqual(job.returncode, 0, self.said(name))
        self.assertIn("all done", self.said(name))
        self.assertEqual(self.said(name).count(f"sum {TOTAL * (TOTAL - 1) // 2}"), 2, self.said(name))

    def test_a_spare_takes_the_place(self):
        """What is counted of checkpoints is counted on: the third goes to the disk as well."""
        job = self.begin("--disk-every", "3")
        self.now(job.pid)
        self.hosts.crash("h2")
        self.goes_on(job, "h1, h4, h3")
        self.assertIn("h2: gone", self.said())
        self.assertIn("the part of h2 was computed", self.said())
        # Protected again.
        self.assertEqual(self.now(job.pid)["hosts"], 3)
        self.assertEqual(glob.glob(self.images + "/disk/*.hosts"), [])
        third = self.now(job.pid)["checkpoint"]
        wait_for("the third on the disk", lambda: os.path.exists(f"{self.images}/disk/{os.path.basename(third)}"))
        self.ends_well(job)

    def test_survivors_go_back_in_place(self):
        """A host falls silent: the others' processes stay, and the memory of the lost ones is computed from theirs."""
        job = self.begin("--host-silence", "5s")
        self.now(job.pid)
        client = [p for p, w in self.hosts.processes("h1") if w.startswith(NUMBERS)]
        self.hosts.cut("h2")
        wait_for(lambda: "a word of it\n" + self.said(), lambda: " on h1, h4, h3; its processes stood for" in self.said())
        self.assertIn("the part of h2 was computed", self.said())
        self.assertEqual([p for p, w in self.hosts.processes("h1") if w.startswith(NUMBERS)], client)
        self.leads(job.pid)
        self.assertEqual(self.now(job.pid)["hosts"], 3)
        back = subprocess.run([CKPT, "back", str(job.pid)], env=clean(), capture_output=True, text=True, timeout=240, check=False)
        self.assertEqual(back.returncode, 0, back.stderr + self.said())
        # What it holds now protects it again.
        self.hosts.crash("h3")
        self.goes_on(job, "h1, h4, h1", nth=2)
        self.ends_well(job)

    def test_a_spare_that_is_too_small(self):
        """Its keeper takes no more than it was told: the next spare gets the part. Without another one the head says what is missing."""
        self.hosts.run("h4", CKPT, "keeper", "start", "main-2", "--memory", "16M", check=True)
        # The least that there is; no part is as long.
        pid = json.loads(self.hosts.run("h4", CKPT, "keeper", "status", "main-2", "--json").stdout)["pid"]
        self.hosts.run("h4", "sh", "-c", f"""for d in /proc/{pid}/fd/*; do
            [ -d $d/. ] && [ $(stat -L -f -c %T $d/.) = tmpfs ] && head -c 15M /dev/zero > $d/filler; done; true""", check=True)
        job = self.begin(spare="h4,h5")
        self.now(job.pid)
        self.hosts.crash("h2")
        wait_for(lambda: "a word of it\n" + self.said(), lambda: "on h1, h5, h3" in self.said() or job.poll() is not None)
        self.goes_on(job, "h1, h5, h3")
        self.assertRegex(self.said(), r"h4: [^\n]*start (it|the keeper) with more --memory")
        self.now(job.pid)
        self.ends_well(job)

    def test_those_that_are_left(self):
        """No spare: two parts come to one host, each with its own keeper. From there the job can move again."""
        job = self.begin(spare=None)
        self.now(job.pid)
        self.hosts.crash("h3")
        self.goes_on(job, "h1, h2, h1")
        self.now(job.pid)
        names = [word for word in self.hosts.run("h1", "ls", "/tmp/ckpt-keeper-0").stdout.split() if word.endswith(".keeper")]
        self.assertEqual(sorted(names), ["main-1.keeper", "main-3.keeper"])
        # By hand, each part on a host of its own again: that of h3 is computed from the others.
        self.end_job(job)
        back = self.bring_back("h1,h2,h5", "again")
        self.running("h5", "/usr/bin/python3")
        self.check_end(back, "again")

    def test_fewer_hosts_by_hand(self):
        """All are there, two are named: the third part is computed where it comes to."""
        job = self.run_kept("--redundancy", "parity")
        self.now(job.pid)
        self.end_job(job)
        back = self.bring_back("h1,h2,h1", "fewer")
        self.running("h1", "/usr/bin/python3")
        self.leads(back.pid)
        self.assertEqual(self.now(back.pid)["hosts"], 3)
        self.end_job(back)
        # Of three parts two would be computed.
        self.refused(NOT_FOUND, ["more than parity gives back"], "h5")
        self.check_end(self.bring_back("h1,h2,h1", "again"), "again")

    def test_what_follows_is_heard_before_its_cause(self):
        """The spare dies while it gets its part. First the head hears that another host cannot send it anything: not that
        one's failure."""
        self.head = ("env", "CKPT_TEST_POINT=exchange.batch@lost1.1=stop")
        job = self.begin(spare="h4,h5")
        self.head = ()
        self.now(job.pid)
        self.hosts.crash("h2")
        [exchange] = wait_for(lambda: "the point\n" + self.said(), lambda: self.stopped("h4"))
        agents = [pid for pid, words in self.hosts.processes("h4") if words.endswith("ckpt agent") and pid != self.keeper_pid("h4")]
        for pid in agents:
            self.hosts.run("h4", "kill", "-STOP", str(pid), check=True)
        self.hosts.run("h4", "kill", "-9", str(exchange), check=True)
        # In place or not: the program may have failed before the head missed h2.
        wait_for(lambda: "what another host says\n" + self.said(), lambda: re.search(r"^ckpt: (not in place: )?h[13]: ", self.said(), re.M))
        self.assertIsNone(job.poll(), self.said())
        self.hosts.crash("h4")
        # The point is the same on the next spare.
        [exchange] = wait_for(lambda: "the next spare\n" + self.said(), lambda: self.stopped("h5"))
        self.hosts.run("h5", "kill", "-CONT", str(exchange), check=True)
        self.goes_on(job, "h1, h5, h3")
        self.ends_well(job)

    def test_a_host_dies_while_checks_are_made(self):
        """The connection to its agent breaks while the head waits for the exchange alone."""
        self.head = ("env", "CKPT_TEST_POINT=exchange.batch@host1.2=stop")
        job = self.begin("--differences", "none")  # words that differ are one batch
        self.head = ()
        self.now(job.pid)
        with subprocess.Popen([CKPT, "now", str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean()) as asking:
            wait_for(lambda: "the point\n" + self.said(), lambda: self.stopped("h2"))
            self.hosts.crash("h2")
            _, error = asking.communicate(timeout=240)
        self.assertNotEqual(asking.returncode, 0, error)
        self.goes_on(job, "h1, h4, h3")
        self.ends_well(job)

    def test_the_program_fails_before_the_host_is_missed(self):
        """Its process on the lost host is gone, and what waits for that one fails; the head hears of that first: its first process
        is no zombie of the agent any more."""
        job = self.begin()
        self.now(job.pid)
        [agent] = [pid for pid, words in self.hosts.processes("h2") if words.endswith("ckpt agent") and pid != self.keeper_pid("h2")]
        self.hosts.run("h2", "kill", "-STOP", str(agent), check=True)
        [server] = [pid for pid, words in self.hosts.processes("h2") if words.startswith(NUMBERS)]
        self.hosts.run("h2", "kill", "-9", str(server), check=True)
        wait_for(lambda: "the program's end\n" + self.said(),
                 lambda: not any("ckpt-on --serve" in words or "[ckpt-on]" in words for _, words in self.hosts.processes("h1")))
        self.hosts.crash("h2")
        self.goes_on(job, "h1, h4, h3")
        self.ends_well(job)

    def test_every_nth_on_a_disk(self):
        """More hosts die than parity gives back: the job goes on from the disk, and in keepers' memory again."""
        job = self.begin("--disk-every", "2", spare="h4,h5")
        for _ in range(2):
            self.now(job.pid)
        saved = lambda: [os.path.basename(path) for path in glob.glob(self.images + "/disk/*.hosts")]  # noqa: E731
        wait_for(lambda: "what is saved\n" + self.said(), saved)
        self.assertEqual(len(saved()), 1)
        # Complete in itself, on every host.
        for host in ("h1", "h2", "h3"):
            [part] = glob.glob(f"{self.images}/disk/{host}/*.job")
            self.hosts.run(host, CKPT, "verify", part, check=True)
        # On a disk two stay, with all hosts' parts.
        for _ in range(4):
            self.now(job.pid)
            self.now(job.pid)
            wait_for(lambda: "what is saved\n" + self.said(), lambda: not self.saving())
        wait_for("what is given up", lambda: len(saved()) == 2 and all(len(glob.glob(f"{self.images}/disk/{host}/*.job")) == 2
                                                                      for host in ("h1", "h2", "h3")))
        self.hosts.crash("h2")
        self.hosts.crash("h3")
        wait_for(lambda: "a word of it\n" + self.said(), lambda: "which is older" in self.said() or job.poll() is not None)
        self.assertIsNone(job.poll(), self.said())
        self.leads(job.pid)
        self.assertEqual(self.now(job.pid)["hosts"], 3)
        self.ends_well(job)

    def saving(self):
        return [words for host in ("h1", "h2", "h3") for _, words in self.hosts.processes(host) if "keeper-save" in words]

    def test_a_save_that_is_killed(self):
        """Before and after its part has its name: the older one stays, and the next is saved."""
        for point in ("save.begun", "disk.manifest", "save.named"):
            with self.subTest(point=point), self.hosts_anew():
                self.head = ("env", f"CKPT_TEST_POINT={point}@host1.2=kill")
                job = self.begin("--disk-every", "1", spare=None)
                self.head = ()
                records = lambda: sorted(glob.glob(self.images + "/disk/*.hosts"))  # noqa: E731
                self.now(job.pid)
                wait_for(lambda: "the first\n" + self.said(), lambda: len(records()) == 1)
                self.now(job.pid)
                wait_for("a word of it", lambda: "is not on the disk: h2" in self.said())
                self.assertEqual(len(records()), 1)
                self.now(job.pid)
                wait_for(lambda: "the third\n" + self.said(), lambda: len(records()) == 2)
                self.end_job(job)
                for host in self.hosts.names[:3]:
                    self.hosts.run(host, CKPT, "keeper", "stop")
                back = self.start([over_hosts.RESTART, "--hosts", self.on, "--launch", self.hosts.launch, self.images + "/disk"], "back")
                self.running("h2", NUMBERS)
                self.leads(back.pid)
                self.now(back.pid)
                self.check_end(back, "back")

    def test_refusals(self):
        def refused(code, words, *options):
            done = subprocess.run([CKPT, "run", "--hosts", "h1,h2", "--launch", self.hosts.launch, "--dir", self.images, *options, "--", "true"],
                                  capture_output=True, text=True, timeout=240, env=clean(), check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            for word in words:
                self.assertIn(word, done.stderr)
        refused(64, ["--spare", "--recover"], "--spare", "h3")
        refused(64, ["--hosts"], "--recover", "--spare", "h3,,h4")
        refused(64, ["--checks-on", "--redundancy"], "--checks-on", "h2")
        for wrong in ("h3", "h1,h2", "h1,h1", "0", "2", "h1,"):
            refused(64, ["ckpt: "], "--redundancy", "parity", "--checks-on", wrong)
        refused(64, ["--differences"], "--redundancy", "parity", "--differences", "bits")
        # Nothing to go on from.
        job = self.begin()
        self.hosts.crash("h2")
        wait_for("its end", lambda: job.poll() is not None)
        self.assertEqual(job.returncode, UNAVAILABLE, self.said())
        self.assertIn("no checkpoint yet", self.said())

    @unittest.skipUnless(os.environ.get("CKPT_LONG"), "minutes: CKPT_LONG=1")
    def test_killed_at_swept_instants(self):
        """Checkpoints one after the other; a host dies at any instant of them, any host but the head's."""
        for number in range(12):
            with self.subTest(number=number), self.hosts_anew():
                job = self.begin("--every", "300ms", spare="h4,h5")
                self.now(job.pid)
                time.sleep(number * 0.05)
                victim = ("h1", "h2", "h3")[number % 3]
                self.hosts.crash(victim)
                if number >= 9:  # two at a time: more than parity gives back, and it is said
                    self.hosts.crash("h3" if victim != "h3" else "h1")
                    wait_for("its end", lambda j=job: j.poll() is not None)
                    self.assertEqual(job.returncode, NOT_FOUND, self.said())
                    self.assertIn("more than parity gives back", self.said())
                else:
                    self.goes_on(job, ", ".join("h4" if name == victim else name for name in ("h1", "h2", "h3")))
                    self.ends_well(job)

    @unittest.skipUnless(os.environ.get("CKPT_LONG"), "minutes: CKPT_LONG=1")
    def test_another_dies_while_it_comes_back(self):
        """The spare, too, at any instant: the next one takes its place."""
        for number in range(6):
            with self.subTest(number=number), self.hosts_anew():
                job = self.begin(spare="h4,h5")
                self.now(job.pid)
                self.hosts.crash("h2")
                wait_for("a word of it", lambda: "the job goes on from" in self.said())
                time.sleep(random.uniform(0, 1.5))
                self.hosts.crash("h4")
                self.goes_on(job, "h1, h5, h3", 2)
                self.ends_well(job)


if __name__ == "__main__":
    unittest.main()
