"""A job over hosts whose agents ssh starts (dropbear's here, as root, by a key): started, checkpointed, killed on all hosts, brought
back. The user is on the first of the hosts."""
import importlib.util
import os
import subprocess
import unittest

import over_hosts
from over_hosts import ON, RESTART, wait_for

spec = importlib.util.spec_from_file_location(
    "ssh_hosts", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support/hosts.py"))
ssh_hosts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ssh_hosts)

NUMBERS = os.environ["CKPT_NUMBERS"]
WHY_NOT = ssh_hosts.missing() if os.environ.get("CKPT_LONG") == "1" else "CKPT_LONG=1"


class Hosts(ssh_hosts.Hosts):
    """As the tests ask tests/cluster/hosts.py."""

    @property
    def launch(self):
        return f"dbclient -q -y -y -T -i {self.keys}/key {{host}}"

    def enter(self, name):
        return self.on(name)

    def run(self, name, *words, **more):
        return subprocess.run(self.on(name) + list(words), capture_output=True, text=True, check=False, **more)

    def processes(self, name):
        lines = self.run(name, "ps", "-e", "-o", "pid=,args=").stdout.splitlines()
        return [(int(l.split()[0]), l.split(None, 1)[1]) for l in lines if "ps -e -o" not in l]


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Ssh(over_hosts.OverHosts):
    count, total = 2, 150_000_000

    def make_hosts(self):
        self.hosts = Hosts(self.count, keep=[self.dir])
        self.hosts.__enter__()
        self.addCleanup(self.hosts.close)
        self.head = self.hosts.on("h1")

    def of_job(self, name):
        return [pid for pid, words in self.hosts.processes(name) if os.path.dirname(over_hosts.CKPT) in words or NUMBERS in words]

    def kill_all(self, job):
        for name in self.hosts.names:
            self.hosts.run(name, "kill", "-9", *map(str, self.of_job(name)))
        job.wait(30)
        for name in self.hosts.names:
            wait_for(f"the end of the job on {name}", lambda n=name: not self.of_job(n))

    def test_there_and_back(self):
        server = f"{NUMBERS} server 5000 {self.total} {self.dir}/go"
        job = self.run_job("sh", "-c", f"{ON} h2 {server} & {NUMBERS} client h2 5000 {self.total} {self.dir}/go && wait $!")
        wait_for("the connection", lambda: self.hosts.run("h1", "ss", "-Htn", "state", "established", "dport", "=", "5000").stdout)
        wait_for("the head", lambda: "@ckpt_rt.head." in self.hosts.run("h1", "cat", "/proc/net/unix").stdout)
        pid = next(p for p, words in self.hosts.processes("h2") if words == server)
        self.assertEqual(self.now(pid, "h2")["hosts"], 2)
        self.kill_all(job)
        job = self.start([RESTART, "--hosts", "h1,h2", "--launch", self.hosts.launch, self.images], "back")
        open(self.dir + "/go", "w").close()
        self.assertEqual(job.wait(120), 0, self.said("back"))
        self.assertEqual(self.said("back").count(f"sum {self.total * (self.total - 1) // 2}"), 2, self.said("back"))


if __name__ == "__main__":
    unittest.main()
