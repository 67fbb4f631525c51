#!/usr/bin/env python3
"""Whole trees of real programs: killed with a checkpoint of the job in hand, brought back, compared with a run that
nobody interrupted.
  jobs.py [--long] [NAME...]
"""
import os
import time
import unittest

from job_tree import LONG, NOBODY, Tree, adopt_orphans, root_of

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


def prepare(work, name):
    if name == "make":
        targets = " ".join(f"o{i}" for i in range(48))
        with open(os.path.join(work, "Makefile"), "w") as f:
            # Each is made whatever is there: make would take one that was half written at the kill for made.
            f.write(f"T := {targets}\n.PHONY: all $(T)\nall: $(T)\n\t@cat $(T) | md5sum\n$(T):\n\t@sleep 0.2; echo $@ | md5sum > $@\n")
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


class Jobs(unittest.TestCase):
    references = {}

    def reference(self, name):
        if name not in self.references:
            tree = Tree(name, PROGRAMS[name], lambda work: prepare(work, name))
            began = time.monotonic()
            tree.start(tree.command, False)
            code, output = tree.finish()
            self.references[name] = (time.monotonic() - began, code, output)
            tree.close(False)
        return self.references[name]

    def trial(self, name, fractions, uid=0, group_leader=False, options=()):
        """Checkpoint, kill and restart at each of these parts of the run, one after the other, in one run."""
        seconds, code, output = self.reference(name)
        tree = Tree(name, PROGRAMS[name], lambda work: prepare(work, name), uid, group_leader)
        failed = True
        try:
            tree.run()
            root = tree.child.pid
            restarts = 0
            for fraction in fractions:
                time.sleep(seconds * fraction)
                image = tree.checkpoint(root, may_end=True)
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
                root = root_of(report)
                restarts += 1
            got = tree.finish()
            if name == "sort" and b"open failed: ./sort" in tree.read("err"):
                failed = False  # files that were closed at the checkpoint, and that it deleted after it: it says so itself
                return restarts
            self.assertEqual(got, (code, output), f"{name} after {restarts} restarts at {fractions}: {tree.read('err')}")
            failed = False
            return restarts
        finally:
            tree.close(failed)

    def instants(self, name, uid=0, **how):
        at = [0.15, 0.5, 0.85] if not LONG else [i / 12 for i in range(1, 12)]
        done = sum(self.trial(name, [f], uid, **how) for f in at)
        done += self.trial(name, [0.2, 0.25, 0.25], uid, **how)  # generations
        # The machine was busier when it ran alone: each had ended before its checkpoint.
        seconds, *same = self.reference(name)
        while done == 0 and name != "sort" and seconds > 0.05:
            seconds /= 3
            self.references[name] = (seconds, *same)
            done += self.trial(name, [0.5], uid, **how)
        self.assertTrue(done > 0 or name == "sort")


def add_tests():
    for name in PROGRAMS:
        def as_root(self, name=name):
            self.instants(name)

        def as_user(self, name=name):
            if os.geteuid() != 0:
                self.skipTest("needs root to become another user")
            if LONG:
                self.trial(name, [0.4], NOBODY)
            self.trial(name, [0.3, 0.3], NOBODY)

        setattr(Jobs, f"test_{name}", as_root)
        setattr(Jobs, f"test_{name}_as_user", as_user)


add_tests()
adopt_orphans()
if __name__ == "__main__":
    unittest.main(verbosity=2)
