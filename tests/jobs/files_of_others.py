#!/usr/bin/env python3
"""Files that one process of a job makes, and another has only open or mapped, are there again when the job removes them after
the checkpoint: an archive that `ar` has made and `ld` reads, what a launcher maps for its ranks. So are directories that one of
them has open, or has a socket in.
  files_of_others.py
"""
import os
import shutil
import time
import unittest

from job_tree import PATIENCE, Tree, adopt_orphans

# The reader begins after the files are complete: it is younger than they are. It could write to one, as ranks may.
MAKER = r"""
import os, subprocess, sys, time
for name in 'archive', 'segment':
    with open(name, 'w') as f: f.write(name * 300_000)
os.mkdir('open')
os.mkdir('sockets')
# The kernel tells when a process began in ticks of 10 ms.
while time.time_ns() - os.stat('segment').st_ctime_ns < 20_000_000: time.sleep(0.005)
sys.exit(subprocess.run([sys.executable, '-c', '''
import ctypes, os, socket, sys, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
archive = open('archive')
f = os.open('segment', os.O_RDWR)
memory = libc.mmap(None, ctypes.c_size_t(2_100_000), 3, 1, f, ctypes.c_long(0))
os.close(f)
directory = os.open('open', os.O_RDONLY)
listener = socket.socket(socket.AF_UNIX)
listener.bind(os.path.abspath('sockets/listener'))
listener.listen()
print('up', flush=True)
while not os.path.exists('go'): time.sleep(0.005)
print(archive.read() == 'archive' * 300_000, ctypes.string_at(memory, 2_100_000) == b'segment' * 300_000, end=' ')
socket.socket(socket.AF_UNIX).connect(os.path.abspath('sockets/listener'))
print(os.listdir(directory), flush=True)
''']).returncode)
"""


class FilesOfOthers(unittest.TestCase):
    def test_are_kept(self):
        tree = Tree("files", ["python3", "-c", MAKER])
        self.addCleanup(tree.close, False)
        tree.run()
        deadline = time.monotonic() + PATIENCE
        while tree.output() != b"up\n":
            self.assertLess(time.monotonic(), deadline, tree.said())
            time.sleep(0.005)
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        for name in ("archive", "segment"):
            os.unlink(os.path.join(tree.work, name))
        for name in ("open", "sockets"):  # as mkdtemp(3) has them, and who uses it at its end
            shutil.rmtree(os.path.join(tree.work, name))
        tree.restart(image)
        with open(os.path.join(tree.work, "go"), "w"):
            pass
        self.assertEqual(tree.finish(), (0, b"up\nTrue True []\n"), tree.said())


adopt_orphans()
if __name__ == "__main__":
    unittest.main()
