"""A job over hosts whose agents ssh starts (dropbear's here, as root, by a key): started, checkpointed, killed on all hosts, brought
back. The user is on the first of the hosts."""
import os
import unittest

import over_hosts
from over_hosts import ON, RESTART, made_hosts, wait_for

NUMBERS = os.environ["CKPT_NUMBERS"]
WHY_NOT = made_hosts.missing(ssh=True) if os.environ.get("CKPT_LONG") == "1" else "CKPT_LONG=1"


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Ssh(over_hosts.OverHosts):
    count, total = 2, 150_000_000

    def make_hosts(self):
        self.hosts = made_hosts.Hosts(self.count, ssh=True, keep=[self.dir])
        self.hosts.__enter__()
        self.addCleanup(self.hosts.close)
        self.head = self.hosts.enter("h1")

    def of_job(self, name):
        return [pid for pid, words in self.hosts.processes(name) if os.path.dirname(over_hosts.CKPT) in words or NUMBERS in words]

    def kill_all(self, job):
        for name in self.hosts.names:
            self.hosts.run(name, "kill", "-9", *map(str, self.of_job(name)))
        job.wait(240)
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
        self.assertEqual(job.wait(240), 0, self.said("back"))
        self.assertEqual(self.said("back").count(f"sum {self.total * (self.total - 1) // 2}"), 2, self.said("back"))


if __name__ == "__main__":
    unittest.main()
