"""Parts in the memory of keepers, with redundancy: hosts die, and the job comes back from those that are left."""
import glob
import json
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "cluster"))
import over_hosts  # noqa: E402
from over_hosts import CKPT, ON, RESTART, clean, wait_for  # noqa: E402

NUMBERS = os.environ["CKPT_NUMBERS"]
NOT_FOUND, IO, DAMAGED, UNAVAILABLE = 66, 74, 65, 69
TOTAL = 30_000_000
# Says how many hosts it runs on; holds memory that is its own.
IDLE = "import os, sys, time\nopen(sys.argv[1], 'w').close()\nblock = os.urandom(3 << 20)\nwhile True: time.sleep(0.1)\n"


class Redundancy(over_hosts.OverHosts):
    count = 4
    on = "h1,h2,h3"

    def make_hosts(self):
        super().make_hosts()
        # Else a bridge has the least address of its ports: another one when a host is gone, and nobody finds it for a while.
        subprocess.run(["ip", "link", "set", self.hosts.bridge, "address", "02:00:00:00:00:01"], check=True)
        # Sockets in /tmp are of one host.
        os.makedirs("/tmp/ckpt-keeper-0", 0o700, exist_ok=True)
        for name in self.hosts.names:
            own = f"{self.hosts.base}/keeper-{name}"
            os.mkdir(own, 0o700)
            self.hosts.run(name, "mount", "--bind", own, "/tmp/ckpt-keeper-0", check=True)

    def run_kept(self, *more, hosts=None, memory="128M"):
        with open(self.dir + "/idle.py", "w", encoding="ascii") as f:
            f.write(IDLE)
        shell = (f"{ON} h2 {NUMBERS} server 5000 {TOTAL} {self.dir}/go & server=$!; {ON} h3 /usr/bin/python3 {self.dir}/idle.py {self.dir}/idles & "
                 f"{NUMBERS} client h2 5000 {TOTAL} {self.dir}/go && wait $server && echo all done")
        job = self.start([CKPT, "run", "--hosts", hosts or self.on, "--launch", self.hosts.launch, "--dir", self.images, "--stop-timeout",
                          "10s", "--to", "keeper:", "--memory", memory, *more, "--", "sh", "-c", shell])
        self.running("h1", NUMBERS)
        # Before that a process of the job may have no library yet.
        wait_for("the program on h3", lambda: os.path.exists(self.dir + "/idles"))
        os.unlink(self.dir + "/idles")
        self.leads(job.pid)
        return job

    def running(self, host, words):
        try:
            wait_for(f"{words} on {host}", lambda: [p for p, w in self.hosts.processes(host) if w.startswith(words)], 40)
        except AssertionError as error:
            raise AssertionError(f"{error}; {[self.said(name) for name in self.texts]}") from None

    def held(self, host):
        done = self.hosts.run(host, CKPT, "keeper", "status", "--json")
        return json.loads(done.stdout)["held"] if done.returncode == 0 else None

    def end_job(self, job):
        """The job and its head; keepers stay."""
        for name in self.hosts.names:
            keepers = {int(pid) for pid in self.hosts.run(name, "pgrep", "-x", "ckpt-keeper").stdout.split()}
            for pid, words in self.hosts.processes(name):
                if pid not in keepers and "ckpt run" not in words and "sleep" not in words and not words.startswith("sh -ec hostname"):
                    self.hosts.run(name, "kill", "-9", str(pid))
        job.kill()
        job.wait()

    def keeper_pid(self, host):
        return json.loads(self.hosts.run(host, CKPT, "keeper", "status", "--json").stdout)["pid"]

    def lose_keeper(self, host):
        self.hosts.run(host, "kill", "-9", str(self.keeper_pid(host)))
        wait_for("the keeper's end", lambda: self.held(host) is None)

    def bring_back(self, hosts, name):
        return self.start([RESTART, "--hosts", hosts, "--launch", self.hosts.launch, self.images], name)

    def check_end(self, job, name):
        open(self.dir + "/go", "w", encoding="ascii").close()
        wait_for("the end\n" + self.said(name), lambda: "all done" in self.said(name), 120)
        self.assertEqual(self.said(name).count(f"sum {TOTAL * (TOTAL - 1) // 2}"), 2, self.said(name))
        job.terminate()
        job.wait(60)

    def refused(self, code, words, hosts):
        done = subprocess.run([RESTART, "--hosts", hosts, "--launch", self.hosts.launch, self.images], capture_output=True, text=True,
                              timeout=200, env=clean())
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_a_host_dies_and_a_spare_takes_its_place(self):
        job = self.run_kept("--redundancy", "parity")
        answer = self.now(job.pid)
        self.assertEqual(answer["hosts"], 3)
        first = [len(self.held(h)) for h in ("h1", "h2", "h3")]
        self.assertEqual(first, [1, 1, 1])
        # No image is on a disk.
        self.assertEqual(glob.glob(self.images + "/**/*.ckpt", recursive=True), [])
        self.now(job.pid)
        self.end_job(job)
        self.hosts.crash("h2")
        second = self.bring_back("h1,h4,h3", "second")
        self.running("h4", NUMBERS)
        self.leads(second.pid)
        self.assertIn("the part of h2 was computed", self.said("second"))
        # Protected again, on the hosts of now: another may be lost.
        self.now(second.pid)
        self.end_job(second)
        self.lose_keeper("h3")
        third = self.bring_back("h1,h4,h3", "third")
        self.running("h3", "/usr/bin/python3")
        self.check_end(third, "third")

    def test_each_code_gives_back_what_it_says(self):
        for code, lost in (("rs:1+2", ("h1", "h3")), ("evenodd", ("h2", "h3")), ("rs:2+1", ("h1",))):
            with self.subTest(code=code):
                job = self.run_kept("--redundancy", code)
                self.now(job.pid)
                self.end_job(job)
                for host in lost:
                    self.lose_keeper(host)
                again = self.bring_back(self.on, "again")
                self.check_end(again, "again")
                os.unlink(self.dir + "/go")
                for host in ("h1", "h2", "h3"):
                    self.hosts.run(host, CKPT, "keeper", "stop")
                subprocess.run(["rm", "-rf", self.images], check=True)

    @unittest.skipUnless(os.environ.get("CKPT_LONG"), "minutes: CKPT_LONG=1")
    def test_who_dies_while_checks_are_made(self):
        """At each step of the exchange, each of those that take part: the older checkpoint stays and comes back."""
        for point in ("exchange.begun", "exchange.listens", "exchange.batch", "exchange.checks", "exchange.named"):
            for who in ("exchange", "keeper", "agent", "host") if point == "exchange.batch" else ("exchange",):
                with self.subTest(point=point, who=who):
                    self.die_at(point, who)
                for host in self.hosts.names[:3]:
                    self.hosts.run(host, CKPT, "keeper", "stop")
                subprocess.run(["rm", "-rf", self.images, self.dir + "/go"], check=True)

    def die_at(self, point, who):
        action = "kill" if who == "exchange" else "stop"
        self.head = ("env", f"CKPT_TEST_POINT={point}@host1.2={action}")  # of the second checkpoint
        job = self.run_kept("--redundancy", "parity")
        self.head = ()
        self.now(job.pid)
        before = [self.held(h) for h in ("h1", "h2", "h3")]
        asking = subprocess.Popen([CKPT, "now", str(job.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean())
        if who != "exchange":
            stopped = wait_for("the point", lambda: self.stopped("h2"))
            if who == "keeper":
                self.hosts.run("h2", "kill", "-9", str(self.keeper_pid("h2")))
            elif who == "agent":
                [agent] = [pid for pid, words in self.hosts.processes("h2") if words.endswith("ckpt agent")]
                self.hosts.run("h2", "kill", "-9", str(agent))
            else:
                self.hosts.crash("h2")
            if who == "keeper":
                self.hosts.run("h2", "kill", "-CONT", str(stopped))
        _, error = asking.communicate(timeout=120)
        self.assertNotEqual(asking.returncode, 0)
        self.assertRegex(error, r"\Ackpt: h\d: [^\n]+\n\Z")
        self.assertEqual([self.held(h) for h in ("h1", "h3")], [before[0], before[2]])
        if who == "exchange":
            self.assertEqual(self.held("h2"), before[1])
            self.now(job.pid)  # the job goes on, and the next one is complete
        self.end_job(job)
        spare = "h4" if who == "host" else "h2"
        again = self.bring_back(f"h1,{spare},h3", "again")
        self.check_end(again, "again")

    def stopped(self, host):
        lines = self.hosts.run(host, "ps", "-e", "-o", "pid=,stat=,args=").stdout.splitlines()
        return [int(line.split()[0]) for line in lines if "keeper-exchange" in line and line.split()[1].startswith("T")]

    def test_too_many_are_gone(self):
        job = self.run_kept("--redundancy", "parity")
        self.now(job.pid)
        self.end_job(job)
        for host in ("h2", "h3"):
            self.lose_keeper(host)
        self.refused(NOT_FOUND, ["h2, h3", "more than parity gives back"], self.on)

    def test_checks_of_another_checkpoint_are_refused(self):
        job = self.run_kept("--redundancy", "parity")
        self.now(job.pid)
        pid = self.keeper_pid("h1")
        [checks] = self.hosts.run("h1", "sh", "-c", f"ls /proc/{pid}/fd/*/*.checks").stdout.split()[:1]
        saved = self.hosts.run("h1", "sh", "-c", f"cp {checks} {self.dir}/stale && echo saved").stdout
        self.assertEqual(saved, "saved\n")
        self.now(job.pid)
        self.end_job(job)
        # That of the older stays until the next exchange.
        newer = sorted(self.hosts.run("h1", "sh", "-c", f"ls /proc/{pid}/fd/*/*.checks").stdout.split(), key=os.path.basename)[-1]
        self.assertNotEqual(os.path.basename(newer), os.path.basename(checks))
        self.hosts.run("h1", "cp", f"{self.dir}/stale", newer, check=True)
        self.lose_keeper("h2")
        self.refused(DAMAGED, [".checks", "is not what this checkpoint has there"], self.on)
        # What was begun for the lost host is gone.
        self.assertEqual(self.held("h2"), [])

    def test_a_keeper_ends_or_is_full(self):
        job = self.run_kept("--redundancy", "parity", memory="128M")
        self.now(job.pid)
        before = [self.held(h) for h in ("h1", "h2", "h3")]
        # Nearly full: the part has room, its checks do not.
        pid = self.keeper_pid("h3")
        free = 128 - 8
        self.hosts.run("h3", "sh", "-c", f"head -c {free}M /dev/zero > $(dirname $(ls -d /proc/{pid}/fd/*/*.job | head -1))/filler", check=False)
        done = self.now(job.pid, ok=False)
        self.assertEqual(done.returncode, IO, done.stderr)
        self.assertIn("memory", done.stderr)
        self.assertEqual([self.held(h) for h in ("h1", "h2", "h3")], before)
        self.lose_keeper("h3")
        done = self.now(job.pid, ok=False)
        self.assertEqual(done.returncode, UNAVAILABLE, done.stderr)
        self.assertIn("keeper:main", done.stderr)
        # The job goes on, and what was complete comes back.
        self.end_job(job)
        self.check_end(self.bring_back(self.on, "again"), "again")


if __name__ == "__main__":
    unittest.main()
