"""A program that forks all the while: no child has anything of a checkpoint that its parent is in."""

import ctypes
import time

from support import *

STORM = os.environ["CKPT_FORK_STORM"]


# Page faults of a child that does nothing, the fewest of many; mappings of its parent.
CHILD = """
import os
def faults():
    pid = os.fork()
    if pid == 0: os._exit(0)
    return os.wait4(pid, 0)[2].ru_minflt
print(min(faults() for _ in range(50)), len(open('/proc/self/maps').readlines()))
"""


def at_fixed_addresses():
    """For preexec_fn. The kernel maps 64 KiB around a fault: how often a child faults depends on where in these its libraries are."""
    ctypes.CDLL(None).personality(0x0040000)  # ADDR_NO_RANDOMIZE; where it is refused, the least of some


class Forks(CkptTest):
    def test_a_child_copies_little_of_ours(self):
        """A child that puts itself right at once copied 18 pages more than without the library; each mapping costs a fork 1.3 us."""
        def counted(**settings):
            said = [subprocess.run(["/usr/bin/python3", "-c", CHILD], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                   env=clean_environment(PYTHONHASHSEED="0", **settings), preexec_fn=at_fixed_addresses).stdout for _ in range(5)]
            return [min(int(n) for n in column) for column in zip(*(one.split() for one in said))]

        without, with_library = counted(), counted(LD_PRELOAD=LIBRARY, CKPT_DIR=self.path("images"))
        faults, mappings = (b - a for a, b in zip(without, with_library))
        self.assertLessEqual(faults, 6, (without, with_library))
        self.assertLessEqual(mappings, 10, (without, with_library))

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
            before = children()[0]
            load(subprocess.run([CKPT, "now", "--only", "--json", str(child.pid)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=clean_environment()))
            while children()[0] <= before:  # some of each checkpoint's time have ended
                time.sleep(0.001)
        self.assertEqual(children()[1], 0)


if __name__ == "__main__":
    unittest.main()
