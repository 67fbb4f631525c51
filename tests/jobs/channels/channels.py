#!/usr/bin/env python3
"""Connections between processes of a job: channel_programs.py, killed with a checkpoint in hand and brought back.
  channels.py [Channels.test_KIND...]
CKPT_SEED chooses the instants, CKPT_LONG=1 takes more of them.
"""
import os
import random
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import channel_programs  # noqa: E402
from job_tree import LONG, NOBODY, Tree, adopt_orphans, enter_own_network, root_of  # noqa: E402

PROGRAM = ["python3", channel_programs.__file__]
SEED = int(os.environ.get("CKPT_SEED", time.time_ns() % 1_000_000))
KINDS = [kind.__name__ for kind in channel_programs.KINDS]
# What nobody can read: such a checkpoint is no good, and says so.
MAY_REFUSE = {"backlog_bytes_unix": "not accepted", "backlog_bytes_tcp": "not accepted", "udp_cork": "not whole"}


class Channels(unittest.TestCase):
    def reference(self, kind):
        tree = Tree(kind, [*PROGRAM, kind])
        began = time.monotonic()
        tree.start(tree.command, False)
        code, output = tree.finish()
        tree.close(False)
        self.assertEqual(code, 0, output)
        return time.monotonic() - began, output

    def trial(self, kind, seconds, output, instants, uid=0):
        """The number of restarts."""
        tree = Tree(kind, [*PROGRAM, kind], uid=uid)
        failed, restarts = True, 0
        try:
            tree.run()
            root = tree.child.pid
            for instant in instants:
                time.sleep(seconds * instant)
                try:
                    image = tree.checkpoint(root, may_end=True)
                except AssertionError as error:
                    if MAY_REFUSE.get(kind, "\0") in str(error) and "exit code 76" in str(error):
                        continue
                    raise
                if image is None:
                    break
                tree.kill()
                root = root_of(tree.restart(image))
                restarts += 1
            self.assertEqual(tree.finish(), (0, output), f"{kind} after {restarts} restarts: {tree.read('err').decode()}")
            failed = False
            return restarts
        finally:
            tree.close(failed)

    def all_trials(self, kind):
        random.seed(f"{SEED} {kind}")
        seconds, output = self.reference(kind)
        restarts = 0
        for _ in range(20 if LONG else 2):
            restarts += self.trial(kind, seconds, output, [random.uniform(0.1, 0.9)])
        restarts += self.trial(kind, seconds, output, [random.uniform(0.1, 0.4) for _ in range(3)])  # generations
        if os.geteuid() == 0:
            restarts += self.trial(kind, seconds, output, [random.uniform(0.1, 0.7)], NOBODY)
        # The machine was busier when it ran alone: each had ended before its checkpoint.
        while restarts == 0 and kind not in MAY_REFUSE and seconds > 0.05:
            seconds /= 3
            restarts += self.trial(kind, seconds, output, [random.uniform(0.1, 0.9)])
        self.assertTrue(restarts > 0 or kind in MAY_REFUSE)


for name in KINDS:
    setattr(Channels, f"test_{name}", lambda self, name=name: self.all_trials(name))

adopt_orphans()
enter_own_network()
if __name__ == "__main__":
    print(f"CKPT_SEED={SEED}", file=sys.stderr)
    unittest.main(verbosity=2)
