#!/usr/bin/env python3
"""Whole trees of real programs: killed with a checkpoint of the job in hand, brought back, compared with a run that
nobody interrupted.
  jobs.py [--long] [NAME...]
"""
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))
LONG = os.environ.get("CKPT_LONG") == "1"
NOBODY = 65534
PATIENCE = 90  # seconds, for anything

# Each prints all that it has computed; run in a directory of its own.
PROGRAMS = {
    "pipeline": ["bash", "-c", """
        trap 'echo exit trap' EXIT
        (for i in $(seq 1 60); do echo bg $i; sleep 0.01; done > bg.txt) &
        seq 1 4000 | while read -r x; do echo $((x * 3)); done | md5sum
        wait
        md5sum < bg.txt
        for i in 1 2 3; do (echo subshell $i; exit $i); echo status $?; done
        """],
    "make": ["make", "-j4", "-s", "all"],
    "xargs": ["bash", "-c", "seq 1 60 | xargs -P4 -n1 sh -c 'sleep 0.15; echo $0 $(echo $0 | md5sum)' | sort | md5sum"],
    "sort": ["bash", "-c", "seq 1 300000 | shuf --random-source=<(yes) | sort -n -S 2M -T . --parallel=2 | md5sum"],
    "tar": ["bash", "-c", "tar cf - --mtime=@0 --owner=0 --group=0 --numeric-owner --sort=name data | zstd -q -9 | split -b 300000 - part. ; cat part.* | md5sum"],
    "fork": ["python3", "-c", """
import multiprocessing as mp, time, zlib
def work(n):
    time.sleep(0.02)
    return zlib.crc32(b'x' * n)
if __name__ == '__main__':
    mp.set_start_method('fork')
    with mp.Pool(3) as pool:
        print(pool.map(work, range(60), chunksize=2), flush=True)
"""],
    "spawn": ["python3", "worker.py"],
    "gcc": ["bash", "-c", "gcc -O2 -pipe -c big.c -o big.o && objdump -d big.o | md5sum"],
}

WORKER = """
import multiprocessing as mp, time, zlib
def work(n):
    time.sleep(0.02)
    return zlib.crc32(b'x' * n)
if __name__ == '__main__':
    mp.set_start_method('spawn')
    with mp.Pool(2) as pool:
        print(pool.map(work, range(40), chunksize=2), flush=True)
"""


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean.update(LC_ALL="C", **more)
    return clean


def prepare(work, name):
    if name == "make":
        targets = " ".join(f"o{i}" for i in range(48))
        with open(os.path.join(work, "Makefile"), "w") as f:
            f.write(f"all: {targets}\n\t@cat {targets} | md5sum\no%:\n\t@sleep 0.2; echo $@ | md5sum > $@\n")
    if name == "spawn":
        with open(os.path.join(work, "worker.py"), "w") as f:
            f.write(WORKER)
    if name == "tar":
        os.mkdir(os.path.join(work, "data"))
        for i in range(30):
            with open(os.path.join(work, "data", str(i)), "w") as f:
                for k in range(30000):
                    f.write(f"{i * k * k % 99991}\n")
            os.utime(os.path.join(work, "data", str(i)), (0, 0))
    if name == "gcc":
        with open(os.path.join(work, "big.c"), "w") as f:
            for i in range(120):
                f.write(f"int f{i}(int a,int b){{int s=0;for(int i=0;i<a;i++)for(int j=0;j<b;j++)s+=(i*{i}+j)%(i+{i}+1);return s;}}\n")


class Tree:
    """One run of a program in a directory of its own."""

    def __init__(self, test, name, uid=0, group_leader=False):
        self.test, self.name, self.uid = test, name, uid
        self.directory = tempfile.mkdtemp(prefix=f"ckpt-jobs-{name}-")
        self.work, self.images = (os.path.join(self.directory, n) for n in ("work", "images"))
        os.mkdir(self.work)
        os.mkdir(self.images, 0o700)
        prepare(self.work, name)
        if uid:
            subprocess.run(["chown", "-R", f"{uid}:{uid}", self.directory], check=True)
            os.chmod(self.directory, 0o755)
        self.group_leader = group_leader
        self.child = None
        self.log = []

    def start(self, command, append):
        """Output goes to files; the program has a session (or only a group) of its own."""
        as_user = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"] if self.uid else []
        out, err = (open(os.path.join(self.directory, n), "ab" if append else "wb") for n in ("out", "err"))
        if self.uid:
            for f in (out, err):
                os.fchown(f.fileno(), self.uid, self.uid)
        kind = {"process_group": 0} if self.group_leader and sys.version_info >= (3, 11) else {"start_new_session": True}
        self.child = subprocess.Popen(as_user + command, cwd=self.work, env=environment(HOME=self.work),
                                      stdin=subprocess.DEVNULL, stdout=out, stderr=err, **kind)
        self.log.append(command)

    def run(self):
        self.start([CKPT, "run", "--dir", self.images, "--", *PROGRAMS[self.name]], False)

    def read(self, name):
        with open(os.path.join(self.directory, name), "rb") as f:
            return f.read()

    def output(self):
        return self.read("out")

    def checkpoint(self, pid):
        """The directory of the job, or the image if it has one process by now; None: it has ended."""
        done = subprocess.run([CKPT, "now", "--json", str(pid)], capture_output=True, text=True, timeout=PATIENCE,
                              env=environment(), check=False)
        if done.returncode != 0:
            if self.child.poll() is not None or "no process" in done.stderr.lower() or done.returncode == 67:
                return None
            raise AssertionError(f"ckpt now {pid}: exit code {done.returncode}: {done.stderr}")
        image = json.loads(done.stdout)["image"]
        return os.path.dirname(image) if os.path.dirname(image).endswith(".job") else image

    def kill(self):
        """All of them. Orphans are ours: adopt_orphans()."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            below = descendants(os.getpid())
            if not below:
                break
            for pid in below:
                try:
                    os.kill(pid, signal.SIGKILL)
                    if pid != self.child.pid:
                        os.waitpid(pid, os.WNOHANG)
                except (ProcessLookupError, ChildProcessError):
                    pass
            self.child.poll()
        self.child.wait(PATIENCE)

    def restart(self, image, *options):
        self.start([RESTART, *options, "--json", image], True)
        deadline = time.monotonic() + PATIENCE
        while True:
            text = self.read("err").decode(errors="replace")
            for line in text.splitlines():
                if line.startswith("{"):
                    report = json.loads(line)
                    if report.get("job") == image or report.get("image") == image or not report["ok"]:
                        if not report["ok"]:
                            raise AssertionError(f"restart of {image}: {line}")
                        return report
            if self.child.poll() is not None and time.monotonic() > deadline - PATIENCE + 1:
                raise AssertionError(f"restart of {image}: ended with {self.child.returncode}: {text}")
            if time.monotonic() > deadline:
                raise AssertionError(f"restart of {image}: nothing happened: {text}")
            time.sleep(0.01)

    def finish(self):
        code = self.child.wait(PATIENCE)
        return code, self.output()

    def close(self, failed):
        if self.child is not None and self.child.poll() is None:
            self.kill()
        if failed:
            print("kept:", self.directory, file=sys.stderr)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)


def state_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            text = f.read()
    except (FileNotFoundError, ProcessLookupError):
        return "?"
    return text[text.rindex(")") + 2]


def is_restarter(pid):
    """Does it still run ckpt-restart's own code?"""
    try:
        return "ckpt-restart" in os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False


def descendants(root):
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as f:
                    text = f.read()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry)] = int(text[text.rindex(")") + 2:].split()[1])
    found = {root}
    while True:
        more = {p for p, parent in parents.items() if parent in found} - found
        if not more:
            return found - {root}
        found |= more


def adopt_orphans():
    PR_SET_CHILD_SUBREAPER = 36
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Jobs(unittest.TestCase):
    references = {}

    def reference(self, name):
        if name not in self.references:
            tree = Tree(self, name)
            began = time.monotonic()
            subprocess_command = PROGRAMS[name]
            tree.start(subprocess_command, False)
            code, output = tree.finish()
            self.references[name] = (time.monotonic() - began, code, output)
            tree.close(False)
        return self.references[name]

    def trial(self, name, fractions, uid=0, group_leader=False, options=()):
        """Checkpoint, kill and restart at each of these parts of the run, one after the other, in one run."""
        seconds, code, output = self.reference(name)
        tree = Tree(self, name, uid, group_leader)
        failed = True
        try:
            tree.run()
            root = tree.child.pid
            restarts = 0
            for fraction in fractions:
                time.sleep(seconds * fraction)
                image = tree.checkpoint(root)
                if image is None:
                    break
                tree.kill()
                try:
                    report = tree.restart(image, *options)
                except AssertionError as error:
                    # Files that it deleted after the checkpoint: refused by name, before anything is touched.
                    if name == "sort" and "cannot be opened again (ENOENT)" in str(error):
                        failed = False
                        return restarts
                    raise
                pids = [p for p in report.get("outer_pids", [report.get("outer_pid")]) if p]
                index = report.get("processes", [report["pid"]]).index(report["pid"])
                root = pids[index] if index < len(pids) else pids[0]
                restarts += 1
            self.assertEqual(tree.finish(), (code, output), f"{name} after {restarts} restarts at {fractions}: {tree.read('err')}")
            failed = False
            return restarts
        finally:
            tree.close(failed)

    def instants(self, name, uid=0, **how):
        at = [0.15, 0.5, 0.85] if not LONG else [i / 12 for i in range(1, 12)]
        done = sum(self.trial(name, [f], uid, **how) for f in at)
        done += self.trial(name, [0.2, 0.25, 0.25], uid, **how)  # generations
        self.assertTrue(done > 0 or name == "sort")


def add_tests():
    for name in PROGRAMS:
        def as_root(self, name=name):
            self.instants(name)

        def as_user(self, name=name):
            if os.geteuid() != 0:
                self.skipTest("needs root to become another user")
            self.trial(name, [0.4], NOBODY)
            self.trial(name, [0.3, 0.3], NOBODY)

        setattr(Jobs, f"test_{name}", as_root)
        setattr(Jobs, f"test_{name}_as_user", as_user)


add_tests()
adopt_orphans()
if __name__ == "__main__":
    unittest.main(verbosity=2)
