#!/usr/bin/env python3
"""State of the kernel that few programs ask for, and that was lost, or read wrongly, once. As odd_objects.py: what the programs say
before the checkpoint they say after the restart."""
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from odd_objects import COMMON, come_back

# Readers of FIFOs that nobody has written to, and readers whose writer has gone.
FIFOS = r"""
def seen(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return poll.poll(0)
def read_and_write(name, fd):
    waiting = os.read(fd, 10).decode()
    writer = os.open(name, os.O_WRONLY)
    os.write(writer, b'new')
    os.close(writer)
    return waiting, os.read(fd, 10).decode(), seen(fd) == [(fd, select.POLLHUP)]
def written(name):
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(name, os.O_WRONLY)
    os.write(writer, b'old')
    os.close(writer)
    return fd
def late(name): return os.open(name, os.O_RDONLY | os.O_NONBLOCK)
for name in ('unwritten', 'late', 'both', 'ended'): os.mkfifo(name)
readers = {'unwritten': late('unwritten'), 'ended': written('ended'), 'late': written('late')}
for name in ('unwritten', 'late'): readers[name + ' again'] = late(name)
readers['both'] = late('both')
both = os.open('both', os.O_WRONLY)
for name, fd in readers.items(): facts[name] = lambda fd=fd: [what for _, what in seen(fd)]
"""
SHARED_FIFOS = COMMON + FIFOS + r"""
pid = os.fork()
if pid == 0:
    os.close(readers['unwritten again'])
    for name in ('unwritten', 'late'): facts['own ' + name] = lambda fd=late(name): [what for _, what in seen(fd)]
    tell('inherited.before')
    while not os.path.exists('go'): time.sleep(0.005)
    tell('inherited.after')
    os._exit(0)
while not os.path.exists('inherited.before'): time.sleep(0.005)
last['the child'] = lambda: os.waitpid(pid, 0)[1]
live()
"""
ALONE_FIFOS = COMMON + FIFOS + r"""
for name in ('unwritten', 'ended'): last[name] = lambda name=name: read_and_write(name, readers[name])
live()
"""


class SmallState(unittest.TestCase):
    maxDiff = None

    def test_readers_of_fifos_that_nobody_has_written_to(self):
        told = come_back(self, "small-fifos", ALONE_FIFOS)
        quiet = {name for name, what in told["before"].items() if not what}
        self.assertEqual(quiet, {"unwritten", "unwritten again", "both"})
        self.assertEqual(told["last"], {"unwritten": ["", "new", True], "ended": ["old", "new", True]})

    def test_readers_of_fifos_that_a_tree_shares(self):
        told = come_back(self, "small-fifos-shared", SHARED_FIFOS)
        self.assertEqual(told["inherited.before"], told["inherited.after"])
        self.assertEqual(told["inherited.before"]["own unwritten"], [])
        self.assertEqual(told["last"], {"the child": 0})


job_tree.adopt_orphans()

if __name__ == "__main__":
    job_tree.enter_own_network()
    unittest.main()
