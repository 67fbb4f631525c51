"""Plug-ins in members of a job over several hosts: their messages go from host to host ahead of the checkpoint."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from over_hosts import CKPT, ON, RESTART, OverHosts, clean, wait_for  # noqa: E402

MEET = os.environ["CKPT_MEET_PLUGIN"]


class Plugins(OverHosts):
    def start(self, words, name="out"):
        return super().start(["env", f"CKPT_MEET={self.dir}/meet", *words], name)

    def log(self, what):
        found = {}
        try:
            with open(self.dir + "/meet/log", encoding="ascii") as f:
                for line in f:
                    words = line.split()
                    if len(words) > 3 and words[2] == what:
                        found[words[0], int(words[1])] = " ".join(words[3:])
        except FileNotFoundError:
            pass
        return found

    def test_members_on_all_hosts_greet_each_other(self):
        os.mkdir(self.dir + "/meet")
        wait = "while [ ! -e end ]; do :; done"
        job = self.start([CKPT, "run", "--hosts", "h1,h2", "--launch", self.hosts.launch, "--dir", self.images, "--stop-timeout", "30s", "--plugins", MEET, "--",
                          "sh", "-c", f"cd {self.dir}; {ON} h2 sh -c 'cd {self.dir}; echo there; {wait}' & echo there; {wait}; wait; echo over"])
        self.leads(job.pid)
        wait_for(lambda: "both programs: " + self.said(), lambda: self.texts["out"][0].count(b"there") == 2)
        self.now(job.pid)
        # On each host ckpt-on --serve, ckpt-on and sh.
        durable = wait_for("all have heard", lambda: len(found := self.log("durable")) >= 4 and len({host for host, _ in found}) == 2
                           and len(found) > max(int(said.split()[1]) for said in found.values()) and found)
        for said in durable.values():
            met, right, mail = int(said.split()[1]), said.split()[3], int(said.split()[5])
            self.assertEqual((met, right, mail), (len(durable) - 1, "right", 2 * met), durable)
        self.kill_all(job)
        back = self.start([RESTART, "--hosts", "h1,h2", "--launch", self.hosts.launch, self.images], "back")
        self.leads(back.pid)
        returned = wait_for("all are back", lambda: len(found := self.log("back")) == len(durable) and found)
        self.assertEqual(returned, durable)
        self.now(back.pid)
        open(self.dir + "/end", "w", encoding="ascii").close()
        self.assertEqual(back.wait(240), 0, self.said("back"))
        self.assertIn("over", self.said("back"))


if __name__ == "__main__":
    unittest.main()
