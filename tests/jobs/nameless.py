#!/usr/bin/env python3
"""What lost its name, or never had one, is after a restart one thing for all that have it.
  nameless.py
"""
import os
import unittest

from job_tree import NOBODY, Tree, adopt_orphans, root_of, wait_for

# Each says what it sees before the checkpoint, and again when `go` is there.
PROGRAM = """
import fcntl, os, time
os.mkdir('d', 0o750)
directories = [os.open('d', os.O_RDONLY | os.O_DIRECTORY) for _ in range(2)]
path_only = os.open('d', os.O_PATH)
made = os.open('.', os.O_TMPFILE | os.O_WRONLY | os.O_APPEND, 0o600)
files = [made] + [os.open(f'/proc/self/fd/{made}', flags) for flags in (os.O_RDWR, os.O_RDONLY | os.O_NONBLOCK)]
made_for_both = os.open('.', os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
os.write(made, b'text')
ready, up = os.pipe()
def seen():
    same = len({os.fstat(fd).st_ino for fd in directories + [path_only]})
    return same, oct(os.fstat(path_only).st_mode), os.fstat(path_only).st_nlink, [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in files + [made_for_both]]
child = os.fork()
if child == 0:
    directories.append(os.open('d', os.O_RDONLY | os.O_DIRECTORY))
    os.write(up, b'x')
    while not os.path.exists('gone'): time.sleep(0.005)
    before = seen()
    os.write(up, b'x')
    while not os.path.exists('go'): time.sleep(0.005)
    print('child', seen() == before or (before, seen()), flush=True)
    with open('child', 'w') as f: f.write(str(os.fstat(directories[-1]).st_ino))
    while not os.path.exists('compared'): time.sleep(0.005)
    os._exit(0)
os.read(ready, 1)
os.rmdir('d')
open('gone', 'w').close()
before = seen()
os.read(ready, 1)
print('up', flush=True)
while not os.path.exists('child') or not os.path.getsize('child'): time.sleep(0.005)
print('parent', seen() == before or (before, seen()), os.fstat(directories[0]).st_ino == int(open('child').read()), flush=True)
os.write(made, b' and more')
print(os.pread(files[1], 100, 0), flush=True)
open('compared', 'w').close()
os.waitpid(child, 0)
"""


class Nameless(unittest.TestCase):
    def check(self, uid):
        tree = Tree("nameless", ["python3", "-c", PROGRAM], uid=uid)
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: b"up" in tree.output(), "all processes")
        root = tree.child.pid
        for _ in range(2):
            image = tree.checkpoint(root)
            tree.kill()
            root = root_of(tree.restart(image))
        with open(os.path.join(tree.work, "go"), "w", encoding="ascii"):
            pass
        code, output = tree.finish()
        self.assertEqual((code, output.decode()), (0, "up\nchild True\nparent True True\nb'text and more'\n"), tree.said())

    def test_nameless(self):
        self.check(0)

    def test_nameless_as_user(self):
        self.check(NOBODY)


adopt_orphans()
if __name__ == "__main__":
    unittest.main()
