#!/usr/bin/env python3
"""Jobs go back in place at random instants, again and again, and end with the output of an uninterrupted run.
  jobs_back.py [Channels.test_KIND... Programs.test_KIND...]      with CKPT_BUILD, the build directory
Channels are the programs of tests/jobs/channels/channel_programs.py: numbered bytes over each kind of connection, at full speed.
What cannot go back is refused by name; then the job ends as if nobody had asked.
CKPT_SEED chooses the instants, CKPT_LONG=1 takes more of them.
"""
import json
import os
import random
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True  # the source directory stays as it is
HERE = os.path.dirname(os.path.abspath(__file__))
LONG_AMOUNT = os.environ.get("CKPT_LONG") == "1"
os.environ.setdefault("AMOUNT", "400" if LONG_AMOUNT else "200")  # percent: what is over at once does not go back
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "jobs"))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "jobs", "channels"))
import channel_programs  # noqa: E402
from job_tree import CKPT, LONG, PATIENCE, Tree, adopt_orphans, enter_own_network, environment  # noqa: E402

SEED = int(os.environ.get("CKPT_SEED", time.time_ns() % 1_000_000))
KINDS = [kind.__name__ for kind in channel_programs.KINDS]
# Of which some state cannot go back yet, or which processes leave while they run: 78 then.
NO_PROCESS, UNSUPPORTED = 67, 78
RUNS_LONG = {"stream_pair", "seqpacket_pair", "dgram_pair"}  # seconds, and nobody leaves before the end
CHECKPOINT_MAY_REFUSE = {"backlog_bytes_unix", "backlog_bytes_tcp", "udp_cork"}

# A connection with little room crawls once a checkpoint has made it larger for a moment: less of it then.
AMOUNTS = {"tcp_options": ["env", "AMOUNT=20"], **dict.fromkeys(["tcp4", "tcp6", "unix_path", "unix_abstract"], ["env", f"AMOUNT={1500 if LONG_AMOUNT else 800}"])}

POOL = """
import multiprocessing, hashlib, os
COUNT = 15 * int(os.environ["AMOUNT"])
def work(n):
    digest = b""
    for i in range(300): digest = hashlib.sha256(digest + bytes([n % 251, i % 251]) * 50).digest()
    return n, digest.hex()
if __name__ == "__main__":
    with multiprocessing.Pool(3) as pool:
        for n, text in pool.imap(work, range(COUNT), chunksize=4): found = (n, text); print(*found) if n % 100 == 0 else None
        print(sum(int(text[:8], 16) for _, text in pool.map(work, range(COUNT))))
"""
PIPELINE = """seq 1 60000 | python3 -c '
import sys
for line in sys.stdin: print(int(line) * 7 % 60013)' | python3 -c '
import sys, time
for n, line in enumerate(sys.stdin):
    print(int(line) + 1)
    if n % 1000 == 0: sys.stdout.flush(); time.sleep(0.01)' | sort -n | md5sum"""


class Trials(unittest.TestCase):
    def reference(self, name, command):
        tree = Tree(name, command)
        began = time.monotonic()
        tree.start(tree.command, False)
        code, output = tree.finish()
        tree.close(False)
        self.assertEqual(code, 0, output)
        return time.monotonic() - began, output

    def back(self, tree, job):
        """What was refused, or "". None: the job has ended meanwhile."""
        done = subprocess.run([CKPT, "back", "--json", job], capture_output=True, text=True, timeout=PATIENCE,
                              env=environment(), check=False)
        if done.returncode == 0:
            return ""
        if tree.child.poll() is not None or done.returncode == NO_PROCESS:
            return None
        self.assertEqual(done.returncode, UNSUPPORTED, f"{done.stderr}\n{tree.said()}")
        return done.stderr

    def trial(self, name, command, seconds, output, settings):
        """How often it went back, and why not."""
        tree = Tree(name, ["env", *settings, *command])
        failed, times, refusals = True, 0, set()
        try:
            tree.run()
            for _ in range(2):
                time.sleep(seconds * random.uniform(0.05, 0.4))
                try:
                    job = tree.checkpoint(tree.child.pid, may_end=True)
                except AssertionError:
                    if name in CHECKPOINT_MAY_REFUSE:
                        continue
                    raise
                if job is None or not job.endswith(".job"):
                    break
                for _ in range(4 if LONG else 2):
                    time.sleep(seconds * random.uniform(0.0, 0.15))
                    why = self.back(tree, job)
                    if why is None:
                        break
                    times += why == ""
                    if why:
                        refusals.add(why.strip())
            self.assertEqual(tree.finish(), (0, output), f"{name} went back {times} times: {tree.read('err').decode()}")
            failed = False
            return times, refusals
        finally:
            tree.close(failed)

    def all_trials(self, name, command, must=False):
        random.seed(f"{SEED} {name}")
        seconds, output = self.reference(name, command)
        times, refusals = 0, set()
        for settings in [[], ["CKPT_INCREMENTS=8"]] * (8 if LONG else 1):
            more, why = self.trial(name, command, seconds, output, settings)
            times += more
            refusals |= why
        # Each had ended before it was back: the machine was busier when it ran alone, or is too busy for its time.
        amount, tries = int(os.environ["AMOUNT"]), 4
        while must and times == 0 and tries > 0:
            amount, tries = amount * 3, tries - 1
            longer = ["env", f"AMOUNT={amount}", *command]
            seconds, output = self.reference(name, longer)
            more, why = self.trial(name, longer, seconds / 3, output, [])
            times += more
            refusals |= why
        self.assertTrue(times > 0 or not must, f"{name} never went back: {sorted(refusals)}")
        print(f"{name}: {seconds:.1f} s, went back {times} times; refused: {sorted(refusals)}", file=sys.stderr)


class Channels(Trials):
    pass


class Programs(Trials):
    def test_pool(self):
        self.all_trials("pool", ["python3", "-c", POOL], True)

    def test_pipeline(self):
        self.all_trials("pipeline", ["sh", "-c", PIPELINE])


for kind in KINDS:
    setattr(Channels, f"test_{kind}", lambda self, kind=kind: self.all_trials(
        kind, [*AMOUNTS.get(kind, []), "python3", channel_programs.__file__, kind], kind in RUNS_LONG))

adopt_orphans()
enter_own_network()
if __name__ == "__main__":
    print(f"CKPT_SEED={SEED}", file=sys.stderr)
    unittest.main(verbosity=2)
