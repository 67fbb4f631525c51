#!/usr/bin/env python3
"""Events of inotify that wait come to nobody after a restart: the program is told that some were lost (IN_Q_OVERFLOW), as the kernel tells it."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY, Tree, wait_for

PROGRAM = r"""
import ctypes, json, os, struct, time
libc = ctypes.CDLL(None)
inotify = libc.inotify_init1(os.O_NONBLOCK)
def write():
    with open('watched', 'a') as f: f.write('x')
write()
libc.inotify_add_watch(inotify, b'watched', 2)
write()
def events():
    try: got = os.read(inotify, 4096)
    except OSError as e: return e.errno
    return [struct.unpack_from('iI', got, at) for at in range(0, len(got), 16)]
print('up', flush=True)
while not os.path.exists('go'): time.sleep(0.005)
results = {'waiting': events()}
write()
results['then'] = events()
with open('results.tmp', 'w') as f: json.dump(results, f)
os.rename('results.tmp', 'results')
"""


class LostEvents(unittest.TestCase):
    def trial(self, uid=0):
        tree = Tree("lost-events", ["/usr/bin/python3", "-c", PROGRAM], uid=uid)
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: tree.output() == b"up\n", "the program")
        root = tree.child.pid
        for _ in range(2):
            image = tree.checkpoint(root)
            self.assertEqual(["IN_Q_OVERFLOW" in n for n in tree.cost["notes"]], [True], tree.cost)
            tree.kill()
            root = job_tree.root_of(tree.restart(image))
        open(os.path.join(tree.work, "go"), "wb").close()
        path = os.path.join(tree.work, "results")
        wait_for(lambda: os.path.exists(path) or tree.child.poll() is not None, "the results")
        self.assertTrue(os.path.exists(path), tree.said())
        with open(path, encoding="utf-8") as f:
            self.assertEqual(json.load(f), {"waiting": [[-1, 0x4000]], "then": [[1, 2]]})
        tree.kill()

    def test_as_root(self):
        self.trial()

    def test_as_user(self):
        self.trial(NOBODY)


if __name__ == "__main__":
    job_tree.adopt_orphans()
    unittest.main()
