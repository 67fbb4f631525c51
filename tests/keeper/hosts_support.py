"""A job over hosts whose parts are in the memory of keepers, and what tests do with it."""
import contextlib
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
# Holds memory that is its own; says so when it has it.
IDLE = "import os, sys, time\nblock = os.urandom(3 << 20)\nopen(sys.argv[1], 'w').close()\nwhile True: time.sleep(0.1)\n"
# The same, and writes a word of each page of it all the time.
WRITES = IDLE.replace("os.urandom(3 << 20)", "bytearray(os.urandom(3 << 20))").replace("time.sleep(0.1)", """
    for page in range(0, len(block), 4096): block[page:page + 8] = time.monotonic_ns().to_bytes(8, "little")
    time.sleep(0.1)""")


class KeptHosts(over_hosts.OverHosts):
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

    def run_kept(self, *more, hosts=None, memory="128M", idle=IDLE):
        with open(self.dir + "/idle.py", "w", encoding="ascii") as f:
            f.write(idle)
        shell = (f"{ON} h2 {NUMBERS} server 5000 {TOTAL} {self.dir}/go & server=$!; {ON} h3 /usr/bin/python3 {self.dir}/idle.py {self.dir}/idles & "
                 f"{NUMBERS} client h2 5000 {TOTAL} {self.dir}/go && wait $server && echo all done")
        job = self.start([CKPT, "run", "--hosts", hosts or self.on, "--launch", self.hosts.launch, "--dir", self.images, "--stop-timeout",
                          "30s", "--to", "keeper:", "--memory", memory, *more, "--", "sh", "-c", shell])
        self.running("h1", NUMBERS)
        # Before that a process of the job may have no library yet.
        wait_for("the program on h3", lambda: os.path.exists(self.dir + "/idles"))
        os.unlink(self.dir + "/idles")
        self.leads(job.pid)
        return job

    def all_wait(self):
        """For the last number: from then on no program of run_kept() changes its memory, but by WRITES."""
        for who in "server", "client":
            wait_for(f"the {who} waits", lambda name=f"{self.dir}/go.{who}-waits": os.path.exists(name))

    def running(self, host, words):
        try:
            wait_for(f"{words} on {host}", lambda: [p for p, w in self.hosts.processes(host) if w.startswith(words)])
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
                if pid not in keepers and "ckpt run" not in words and "sleep" not in words and not words.startswith("sh -c hostname"):
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
        wait_for(lambda: "the end\n" + self.said(name), lambda: "all done" in self.said(name) or job.poll() is not None)
        self.assertEqual(self.said(name).count(f"sum {TOTAL * (TOTAL - 1) // 2}"), 2, self.said(name))
        job.terminate()
        job.wait(240)

    def refused(self, code, words, hosts):
        done = subprocess.run([RESTART, "--hosts", hosts, "--launch", self.hosts.launch, self.images], capture_output=True, text=True,
                              timeout=240, env=clean())
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def stopped(self, host):
        lines = self.hosts.run(host, "ps", "-e", "-o", "pid=,stat=,args=").stdout.splitlines()
        return [int(line.split()[0]) for line in lines if "keeper-exchange" in line and line.split()[1].startswith("T")]

    def stopped_at_the_point(self, host, *asking):
        """asking: those who ask for the checkpoint that comes to the point, and do not end before it goes on from there."""
        found = wait_for("the point", lambda: self.stopped(host) or all(p.poll() is not None for p in asking))
        if found is True:
            raise AssertionError(f"not at the point: {[(p.returncode, p.communicate()) for p in asking]}\n{self.said()}")
        return found

    @contextlib.contextmanager
    def hosts_anew(self):
        """Behind it all hosts are made anew, also when it fails: one failure of a sweep is not the next one's."""
        try:
            yield
        finally:
            self.again()

    def again(self):
        self.end()
        self.hosts.close()
        self.make_hosts()
        subprocess.run(["rm", "-rf", self.images, self.dir + "/go", self.dir + "/idles"], check=True)
        self.started.clear()
