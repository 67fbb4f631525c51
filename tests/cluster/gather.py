"""ckpt gather: each host has its images on a disk of its own; they are brought together, the hosts die, and the job comes back elsewhere."""
import glob
import json
import os
import subprocess
import unittest

import over_hosts
from over_hosts import CKPT, ON, RESTART, clean, wait_for

NUMBERS = os.environ["CKPT_NUMBERS"]
TOTAL = 100_000_000
USAGE, DAMAGED, NOT_FOUND, UNAVAILABLE, CANNOT_CREATE, PERMISSION = 64, 65, 66, 69, 73, 77


class Gather(over_hosts.OverHosts):
    count = 4

    def gather(self, *words):
        return subprocess.run([CKPT, "gather", "--launch", self.hosts.launch, *words], capture_output=True, text=True, timeout=240, env=clean())

    def refused(self, code, text, *words):
        done = self.gather(*words)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        self.assertIn(text, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def refused_with_more(self, code, text, *words):
        """What the launch command has said comes first."""
        done = self.gather(*words)
        self.assertEqual((done.returncode, done.stderr.splitlines()[-1].count(text)), (code, 1), done.stderr)

    def running(self):
        """Server on the second host, client on the first, images where no other host finds them."""
        for name in ("h1", "h2"):
            os.makedirs(f"{self.images}/{name}", 0o700)
            self.hosts.run(name, "mount", "-t", "tmpfs", "-o", "mode=700", "none", f"{self.images}/{name}", check=True)
        job = self.run_job("sh", "-c", f"{ON} h2 {NUMBERS} server 5000 {TOTAL} {self.dir}/go & {NUMBERS} client h2 5000 {TOTAL} {self.dir}/go && wait $!")
        wait_for("the connection", lambda: self.hosts.run("h1", "ss", "-Htn", "state", "established", "dport", "=", "5000").stdout)
        self.leads(job.pid)
        return job

    def test_from_disks_of_dead_hosts(self):
        job = self.running()
        self.now(job.pid)
        to = self.dir + "/gathered"
        self.refused(NOT_FOUND, "has no checkpoint of several hosts", self.dir, to)
        self.refused(USAGE, "names 1 hosts, the checkpoint has 2 parts", "--hosts", "h1", self.images, to)
        self.refused_with_more(UNAVAILABLE, "h2: its stream of images ended before all had come", "--hosts", "h1,h9", self.images, to)
        self.refused(NOT_FOUND, "is not here", "--hosts", "h1,h3", self.images, to)
        self.assertEqual(glob.glob(to + "/*.hosts"), [])
        done = self.gather("--json", self.images, to)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = json.loads(done.stdout)
        self.assertEqual((said["parts"], said["fetched"]), (2, 1))  # that of h1 had come
        self.assertEqual(json.loads(self.gather("--json", self.images, to).stdout)["fetched"], 0)
        for path, _, files in os.walk(to):
            self.assertEqual(os.stat(path).st_mode & 0o777, 0o700, path)
            for name in files:
                self.assertEqual(os.lstat(f"{path}/{name}").st_mode & 0o777, 0o600, name)
        for part in glob.glob(to + "/h*/*.job"):
            checked = subprocess.run([CKPT, "verify", part], capture_output=True, text=True, env=clean())
            self.assertEqual(checked.returncode, 0, checked.stderr)
        self.kill_all(job)
        for name in ("h1", "h2"):
            self.hosts.crash(name)
        back = self.start([RESTART, "--hosts", "h3,h4", "--launch", self.hosts.launch, to], "back")
        open(self.dir + "/go", "w").close()
        self.assertEqual(back.wait(240), 0, self.said("back"))
        self.assertEqual(self.said("back").count(f"sum {TOTAL * (TOTAL - 1) // 2}"), 2, self.said("back"))

    def test_another_part(self):
        """What a host has under the part's name must be what belongs to the checkpoint."""
        job = self.running()
        self.now(job.pid)
        to = self.dir + "/gathered"
        manifest = self.hosts.run("h2", "sh", "-c", f"ls {self.images}/h2/*.job/manifest.json").stdout.split()[-1]
        self.hosts.run("h2", "sh", "-c", f"echo >> {manifest}", check=True)
        self.refused(DAMAGED, "is not the part that belongs to this checkpoint", self.images, to)
        self.assertEqual(glob.glob(to + "/*.hosts") + glob.glob(to + "/h2/*") + glob.glob(to + "/h2/.*"), [])
        os.chmod(to, 0o777)
        self.refused(PERMISSION, "is no directory of yours alone", self.images, to)

    def test_listed_as_one(self):
        job = self.run_job("sh", "-c", f"{ON} h2 sleep 1000")
        self.leads(job.pid)
        self.now(job.pid)
        done = subprocess.run([CKPT, "ls", self.images], capture_output=True, text=True, check=False)
        self.assertRegex(done.stdout, r"(?m)^ +1  sh .* 2 hosts .* complete +" + self.images + r"/sh\.000001\.hosts\n +of h1, h2$")
        one, = json.loads(subprocess.run([CKPT, "ls", "--json", self.images], capture_output=True, text=True, check=False).stdout)
        self.assertEqual((one["program"], one["hosts"], one["parts_here"], one["state"]), ("sh", ["h1", "h2"], 2, "complete"))
        # A part that is damaged, one that is missing, and one of which nothing is to be seen.
        part, = glob.glob(self.images + "/h2/*.job")

        def state():
            one, = json.loads(subprocess.run([CKPT, "ls", "--json", self.images], capture_output=True, text=True, check=False).stdout)
            return one["state"], one["parts_here"], one.get("problems", [])
        image = max(glob.glob(part + "/*"), key=os.path.getsize)
        os.truncate(image, os.path.getsize(image) - 4096)
        found, here, problems = state()
        self.assertEqual((found, here, problems[0][:4]), ("damaged", 1, "h2: "), problems)
        os.rename(part, self.dir + "/part")
        self.assertEqual(state(), ("damaged", 1, [f"h2: {part}: is missing"]))
        os.rename(self.images + "/h2", self.dir + "/h2")
        self.assertEqual(state(), ("unseen", 1, []))


if __name__ == "__main__":
    unittest.main()
