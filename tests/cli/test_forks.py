"""A program that forks all the while: no child has anything of a checkpoint that its parent is in."""

import time

from support import *

STORM = os.environ["CKPT_FORK_STORM"]


class Forks(CkptTest):
    def test_no_child_has_a_ring(self):
        child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), "--", STORM], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, bufsize=0, env=clean_environment())
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)

        def children():
            child.stdin.write(b"\n")
            return [int(n) for n in child.stdout.readline().split()]

        while children()[0] < 20:
            time.sleep(0.01)
        for _ in range(120):
            load(subprocess.run([CKPT, "now", "--only", "--json", str(child.pid)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=clean_environment()))
        made, with_ring = children()
        self.assertGreater(made, 120)
        self.assertEqual(with_ring, 0)


if __name__ == "__main__":
    unittest.main()
