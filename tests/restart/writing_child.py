#!/usr/bin/env python3
"""The child that writes the image in mode fork: a program sees nothing of it in what it shares."""

import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from own_network import enter_own_ipc  # noqa: E402
from stepped_program import CKPT, environment
from stepped_test import SteppedTest


class WritingChild(SteppedTest):
    settings = {"CKPT_MODE": "fork"}

    def state(self, pid):
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rpartition(") ")[2][0]

    def test_shared_memory_is_not_mapped_there(self):
        self.start(CKPT_TEST_POINT="fork.table=stop")
        self.do("libc.shmat.restype = ctypes.c_void_p", "segment = libc.shmget(0, 8192, 0o1600)", "at = libc.shmat(segment, None, 0)",
                "ctypes.memset(at, 65, 8192)", "state = ctypes.create_string_buffer(112)",
                "def attached():\\n    libc.shmctl(segment, 2, state)\\n    return struct.unpack_from('q', state, 88)[0], struct.unpack_from('i', state, 84)[0] == os.getpid()",
                "sealed = os.memfd_create('sealed', os.MFD_ALLOW_SEALING)", "os.truncate(sealed, 4096)", "m = mmap.mmap(sealed, 4096)", "m[0] = 66")
        self.assertEqual(self.ask("attached()"), "(1, True)")
        with subprocess.Popen([CKPT, "now", str(self.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()) as asker:
            # Both stop: the program has gone on before that, so what it does from here on is what it could have done all the while.
            while self.state(self.pid) != "T":
                self.assertIsNone(asker.poll())
            children = []
            for task in os.listdir(f"/proc/{self.pid}/task"):
                with open(f"/proc/{self.pid}/task/{task}/children", encoding="utf-8") as f:
                    children += [int(pid) for pid in f.read().split()]
            child = children[-1]
            while self.state(child) != "T":
                self.assertIsNone(asker.poll())
            try:
                os.kill(self.pid, signal.SIGCONT)
                self.assertEqual(self.ask("attached()"), "(1, True)")
                self.do("m.close()")
                self.assertEqual(self.ask("attempt(fcntl.fcntl, sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)"), "0")
                # A child of the program's own has both, as ever.
                self.do("p = os.fork()\\nif p == 0: os._exit(attached()[0] + ctypes.string_at(at, 1)[0])")
                self.assertEqual(self.ask("os.waitstatus_to_exitcode(os.waitpid(p, 0)[1])"), str(2 + 65))
            finally:
                os.kill(child, signal.SIGCONT)
            said = asker.communicate(timeout=60)[1]
        self.assertEqual(asker.returncode, 0, said)
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("attached()[0], ctypes.string_at(at, 3), m[0]"), "(1, b'AAA', 66)")

    def test_memory_that_is_mapped_and_advised_while_the_checkpoint_begins(self):
        """Flags of memory are read before the program stands; until it does it goes on to map memory and to give advice. Our threads have the
        personality that the program had when they began."""
        self.start(CKPT_TEST_POINT="prepare.ready=wait")
        self.do("new_memory = lambda size: mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)", "old, gone = new_memory(16384), new_memory(16384)", "old[0] = 64",
                "gone.madvise(mmap.MADV_DONTFORK)", "at = lambda m: ctypes.addressof(ctypes.c_char.from_buffer(m))",
                "def flags(m):\\n    for line in open('/proc/self/smaps'):\\n        word = line.split()[0]\\n        if '-' in word: here = int(word.split('-')[0], 16) <= at(m) < int(word.split('-')[1], 16)"
                "\\n        if here and word == 'VmFlags:': return {'dc', 'dd'} & set(line.split())")
        waits = self.path(f"{self.pid:010}.waits")
        with subprocess.Popen([CKPT, "now", str(self.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()) as asker:
            while not os.path.exists(waits):
                self.assertIsNone(asker.poll())
            self.do("new = new_memory(1 << 20)", "new.madvise(mmap.MADV_DONTFORK)", "new[5] = 65", "old.madvise(mmap.MADV_DONTDUMP)", "old[1] = 66",
                    "gone.madvise(mmap.MADV_DOFORK)", "gone[2] = 67", "persona = call(135, 0x4000000)")
            question = "call(135, 0xffffffff), flags(new), flags(old), flags(gone), new[5], old[0], old[1], gone[2]"
            before = self.ask(question)
            os.unlink(waits)
            said = asker.communicate(timeout=60)[1]
        self.assertEqual(asker.returncode, 0, said)
        self.assertEqual(before, "(67108864, {'dc'}, {'dd'}, set(), 65, 64, 66, 67)")
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask(question), before)


if __name__ == "__main__":
    enter_own_ipc()  # its segment stays there
    unittest.main()
