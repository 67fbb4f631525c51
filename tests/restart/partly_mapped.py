#!/usr/bin/env python3
"""Memory files of which one process of a job has a descriptor and maps a part: what is in the rest comes back as well."""

import unittest

from stepped_test import SteppedTest


class PartlyMapped(SteppedTest):
    def comes_back_whole(self, make, mode):
        code, said = self.comes_back_as_job("""
def rest(name):
    while not os.path.exists(name): time.sleep(0.001)
child = os.fork()
if child == 0:
    open('child', 'w').close()
    rest('go')
    os._exit(7)
rest('child')
%s
os.fchmod(f, %d)
[os.pwrite(f, b'page %%d' %% i, i * 4096) for i in range(6)]
m = mmap.mmap(f, 4096, offset=4096)
m[:6] = b'mapped'
open('up', 'w').close()
rest('go')
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
held = [os.pread(f, 6, i * 4096) for i in range(6)]
assert held == [b'page 0', b'mapped', b'page 2', b'page 3', b'page 4', b'page 5'], held
s = os.fstat(f)
assert (s.st_size, s.st_mode & 0o777, s.st_nlink) == (5 * 4096 + 6, %d, 0), s
m[:6] = b'shared'
assert os.pread(f, 6, 4096) == b'shared'
sys.exit(5)
""" % (make, mode, mode))
        self.assertEqual(code, 5, said)

    def test_memfd(self):
        self.comes_back_whole("f = os.memfd_create('partly')", 0o640)

    def test_file_without_a_name(self):
        self.comes_back_whole("f = os.open('gone', os.O_RDWR | os.O_CREAT); os.unlink('gone')", 0o604)

    def test_sealed(self):
        """F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE: the mapping of before may still write."""
        code, said = self.comes_back_as_job("""
child = os.fork()
if child == 0:
    while not os.path.exists('go'): time.sleep(0.001)
    os._exit(7)
f = os.memfd_create('partly', os.MFD_ALLOW_SEALING)
os.write(f, bytes(4096) + b'end')
m = mmap.mmap(f, 4096)
fcntl.fcntl(f, 1033, 2 | 16)
open('up', 'w').close()
while not os.path.exists('go'): time.sleep(0.001)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
m[:6] = b'sealed'
assert (os.pread(f, 6, 0), os.pread(f, 3, 4096), fcntl.fcntl(f, 1034), attempt(os.write, f, b'x')) == (b'sealed', b'end', 2 | 16, 'EPERM')
sys.exit(5)
""")
        self.assertEqual(code, 5, said)


if __name__ == "__main__":
    unittest.main()
