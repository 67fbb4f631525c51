#!/usr/bin/env python3
"""What a program has said of parts of its memory holds after the restart: guard regions, policies, seals. As odd_objects.py."""
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY
from odd_objects import COMMON, come_back

# What was said of parts of memory: guard regions, a policy, a seal. A kernel that does not know them refuses, before and after.
MEMORY = COMMON + r"""
PAGE = 4096
def mapped(pages):
    memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b'm' * len(memory)
    kept.append(memory)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
def checked(r): return r if r >= 0 else errno.errorcode[ctypes.get_errno()]
def called(number, *arguments): return checked(libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
kept, ends = [], os.pipe()
def read(address):
    if called(1, ends[1], address, 1) == 'EFAULT': return 'EFAULT'
    return os.read(ends[0], 9).decode()
libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
guarded, with_policy, sealed = mapped(7), mapped(4), mapped(3)
# Moved to far from where the call went.
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
def with_moved_guard():
    before = libc.mmap(None, 3 * PAGE, 3, 0x22, -1, 0)
    ctypes.memset(before, ord('m'), 3 * PAGE)
    libc.madvise(before + PAGE, PAGE, 102)
    called(237, before + 2 * PAGE, PAGE, 3, struct.pack('Q', 1).ljust(128, b'\0'), 1025, 0)
    return [libc.mremap(before + n * PAGE, PAGE, PAGE, 3, 0x200000000000 + n * PAGE) for n in range(3)][0]
moved = with_moved_guard()
assert moved == 0x200000000000
said = {'guard': [checked(libc.madvise(guarded + n * PAGE, pages * PAGE, 102)) for n, pages in ((1, 1), (3, 2))],
        'policy': called(237, with_policy + PAGE, 2 * PAGE, 3, struct.pack('Q', 1).ljust(128, b'\0'), 1025, 0),
        'seal': called(462, sealed, PAGE, 0)}
facts['said'] = lambda: said
facts['guards'] = lambda: [read(guarded + n * PAGE) for n in range(7)]
facts['moved guards'] = lambda: [read(moved + n * PAGE) for n in range(3)]
def policy_at(address):
    mode, nodes = ctypes.c_int(), ctypes.create_string_buffer(128)
    return called(239, ctypes.byref(mode), nodes, 1025, address, 2), mode.value, nodes.raw[0]
facts['policies'] = lambda: [policy_at(with_policy + n * PAGE) for n in range(4)]
facts['moved policy'] = lambda: policy_at(moved + 2 * PAGE)
facts['seals'] = lambda: [checked(libc.mprotect(sealed + n * PAGE, PAGE, 3)) for n in range(3)]
live()
"""


class SaidOfMemory(unittest.TestCase):
    def memory(self, name, uid):
        said = []
        before = come_back(self, name, MEMORY, uid, hear=said.append)["before"]
        if before["said"]["guard"] == [0, 0]:
            self.assertEqual(before["guards"], ["m", "EFAULT", "m", "EFAULT", "EFAULT", "m", "m"])
            self.assertEqual(before["moved guards"], ["m", "EFAULT", "m"])
        if before["said"]["policy"] == 0:
            self.assertEqual(before["policies"], [[0, 0, 0], [0, 3, 1], [0, 3, 1], [0, 0, 0]])
            self.assertEqual(before["moved policy"], [0, 3, 1])
        if before["said"]["seal"] == 0:
            self.assertEqual(before["seals"], ["EPERM", 0, 0])
        self.assertEqual(said[0].get("notes", []), [])

    def test_what_was_said_of_memory(self):
        self.memory("said-of-memory", 0)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_what_a_user_has_said_of_memory(self):
        self.memory("said-of-memory-user", NOBODY)


job_tree.adopt_orphans()

if __name__ == "__main__":
    job_tree.enter_own_network()
    job_tree.enter_own_ipc()
    unittest.main()
