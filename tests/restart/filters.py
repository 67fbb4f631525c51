#!/usr/bin/env python3
"""Filters of system calls (seccomp) that a program has set for itself: each thread has them again after a restart, and where they
cannot be told or set again, a note says so."""

import os
import subprocess
import sys
import unittest

from stepped_program import CKPT, environment
from stepped_test import SteppedTest, needs_root

TEXT = """
class Instruction(ctypes.Structure): _fields_ = [('code', ctypes.c_ushort), ('jt', ctypes.c_ubyte), ('jf', ctypes.c_ubyte), ('k', ctypes.c_uint)]
class Filter(ctypes.Structure): _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.POINTER(Instruction))]
def forbids(number, error):
    code = (Instruction * 4)(Instruction(0x20, 0, 0, 0), Instruction(0x15, 0, 1, number), Instruction(0x06, 0, 0, 0x50000 | error), Instruction(0x06, 0, 0, 0x7fff0000))
    return Filter(4, code)
def by_prctl(number, error): return libc.prctl(22, 2, ctypes.byref(forbids(number, error)), 0, 0)
def by_seccomp(number, error, flags): return call(317, 1, flags, ctypes.byref(forbids(number, error)))
def alone(): return libc.prctl(38, 1, 0, 0, 0)
MKDIR, SECCOMP, CHROOT = 83, 317, 161
def mkdir(): return call(MKDIR, b'/nowhere/at/all', 0)
def filters(): return [[l.split()[1] for l in open('/proc/self/task/%s/status' % t) if l.startswith('Seccomp_filters')][0] for t in sorted(os.listdir('/proc/self/task'), key=int)]
asked, told = threading.Semaphore(0), threading.Semaphore(0)
answers = []
def other():
    while True:
        asked.acquire()
        answers.append(mkdir())
        told.release()
def start_other(): threading.Thread(target=other, daemon=True).start()
def of_other():
    asked.release(); told.acquire()
    return answers[-1]
"""


# As OpenSSH's server has it for a client that is not known yet: a handler could not return.
RT_SIGRETURN, CLONE, KILL = 15, 56, 0x80000000


class Deadly(SteppedTest):
    program_text = TEXT + f"""
def kills(number, last=0x06):
    code = (Instruction * 4)(Instruction(0x20, 0, 0, 0), Instruction(0x15, 0, 1, number), Instruction(0x06, 0, 0, {KILL}), Instruction(last, 0, 0, 0x7fff0000))
    return libc.prctl(22, 2, ctypes.byref(Filter(4, code)), 0, 0)
"""

    def check_refused(self, number):
        """No checkpoint is taken, and none ends the program."""
        self.start()
        self.do(f"alone(); assert kills({number}) == 0")
        asked = subprocess.run([CKPT, "now", str(self.pid)], capture_output=True, text=True, timeout=60, env=environment())
        self.assertEqual(asked.returncode, 78, asked.stderr)
        self.assertIn("seccomp", asked.stderr)
        self.assertEqual(self.ask("1 + 1"), "2")

    def test_no_handler_may_return(self):
        self.check_refused(RT_SIGRETURN)

    def test_no_thread_may_be_made(self):
        self.check_refused(CLONE)

    def test_one_that_the_kernel_does_not_take(self):
        self.start()
        self.assertEqual(self.ask(f"(alone(), kills({RT_SIGRETURN}, last=0xff))"), "(0, -1)")
        self.checkpoint()
        self.assertEqual(self.ask("1 + 1"), "2")


class Filters(SteppedTest):
    program_text = TEXT

    def stay(self, *questions):
        """In two generations, with a checkpoint and a restart that have nothing to note."""
        before = [self.ask(q) for q in questions]
        for _ in range(2):
            self.assertEqual(self.come_back(), [])
            self.assertEqual(self.notes, [])
            self.assertEqual([self.ask(q) for q in questions], before)
        return before

    def test_of_the_first_thread_before_there_are_others(self):
        self.start()
        self.do("alone(); by_prctl(MKDIR, errno.ENOTUNIQ); start_other()")
        self.assertEqual(self.stay("mkdir()", "of_other()", "filters()")[:2], ["ENOTUNIQ", "ENOTUNIQ"])

    def test_of_all_threads(self):
        self.start()
        self.do("alone(); start_other(); by_seccomp(MKDIR, errno.ENOTUNIQ, 1)")
        self.assertEqual(self.stay("mkdir()", "of_other()", "filters()")[:2], ["ENOTUNIQ", "ENOTUNIQ"])

    def test_one_that_forbids_the_call_by_which_it_was_set(self):
        self.start()
        self.do("alone(); by_seccomp(SECCOMP, errno.ENOANO, 0); by_prctl(MKDIR, errno.ENOTUNIQ); by_prctl(CHROOT, errno.ENOMSG)")
        self.assertEqual(self.stay("mkdir()", "by_seccomp(1000, 1, 0)", "call(CHROOT, b'/')", "filters()")[:3],
                         ["ENOTUNIQ", "ENOANO", "ENOMSG"])

    def test_one_more_after_a_restart(self):
        self.start()
        self.do("alone(); by_prctl(MKDIR, errno.ENOTUNIQ)")
        self.stay("filters()")
        self.do("by_prctl(CHROOT, errno.ENOMSG)")
        self.assertEqual(self.stay("mkdir()", "call(CHROOT, b'/')", "filters()")[:2], ["ENOTUNIQ", "ENOMSG"])

    def test_one_that_forbids_to_ask_for_limits(self):
        self.start()
        self.do("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (400, 500)); alone(); by_prctl(302, errno.ENOTUNIQ)")
        limits = self.stay("list(open('/proc/self/limits'))", "call(302, 0, 7, 0, ctypes.create_string_buffer(16))")
        self.assertEqual(limits[1], "ENOTUNIQ")
        self.assertIn("400", limits[0])

    def test_one_that_forbids_to_ask_for_interval_timers(self):
        self.start()
        self.do("signal.setitimer(signal.ITIMER_REAL, 1000); alone(); by_prctl(36, errno.ENOTUNIQ)")
        self.assertIn("getitimer", " ".join(self.come_back()))

    def test_of_one_thread_alone(self):
        self.start()
        self.do("alone(); start_other(); by_prctl(MKDIR, errno.ENOTUNIQ)")
        notes = self.come_back()
        self.assertIn("seccomp", " ".join(notes))
        self.assertEqual(self.ask("mkdir()"), "ENOENT")

    def lose(self, calls):
        """A note, and no filter after the restart: mkdir looks for its directory, chroot for its rights."""
        before = self.ask(calls)
        notes = self.come_back()
        self.assertIn("seccomp", " ".join(notes))
        self.assertNotEqual(self.ask(calls), before)
        self.assertEqual(self.ask("filters()"), "['0']")
        # Of what is set from then on nothing is lost.
        self.do("by_prctl(MKDIR, errno.ENOTUNIQ)")
        self.stay("mkdir()", "filters()")

    def test_of_a_thread_that_has_ended(self):
        self.start()
        self.do("alone(); t = threading.Thread(target=by_prctl, args=(MKDIR, errno.ENOTUNIQ)); t.start(); t.join()",
                "by_prctl(CHROOT, errno.ENOMSG)")
        if self.ask("mkdir(), call(CHROOT, b'/nowhere')") != "('ENOENT', 'ENOMSG')":
            self.fail("the filter of a thread is another's")
        before = self.ask("filters()")
        self.come_back()
        # libc knows that the process has one thread again, or not: then a note has said that there is none.
        self.assertIn((self.ask("mkdir()"), self.ask("filters()")), [("ENOENT", before), ("ENOENT", "['0']")])

    def test_one_with_a_listener(self):
        self.start()
        self.do("alone(); listener = by_seccomp(CHROOT, errno.ENOMSG, 8); os.close(listener); by_prctl(MKDIR, errno.ENOTUNIQ)")
        self.lose("mkdir(), call(CHROOT, b'/nowhere')")

    def test_of_a_tree(self):
        code, said = self.comes_back_as_job("""
alone(); by_prctl(MKDIR, errno.ENOTUNIQ)
if os.fork() == 0:
    by_prctl(CHROOT, errno.ENOMSG)
    while not os.path.exists('go'): time.sleep(0.001)
    os._exit(0 if (mkdir(), call(CHROOT, b'/')) == ('ENOTUNIQ', 'ENOMSG') else 1)
open('up', 'w')
while not os.path.exists('go'): time.sleep(0.001)
sys.exit(os.wait()[1] if mkdir() == 'ENOTUNIQ' else 3)
""")
        self.assertEqual(code, 0, said)
        self.assertNotIn("seccomp", said)

    @needs_root
    def test_what_may_not_be_set_again(self):
        os.chmod(self.directory, 0o755)
        os.mkdir(self.images, 0o700)
        os.chown(self.images, 65534, 65534)
        self.start()
        self.do("by_prctl(MKDIR, errno.ENOTUNIQ); os.setgroups([]); os.setgid(65534); os.setuid(65534)")
        self.assertEqual(self.ask("mkdir()"), "ENOTUNIQ")
        self.come_back(how=["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"])
        self.assertIn("seccomp", " ".join(self.notes))
        self.assertEqual(self.ask("mkdir()"), "ENOENT")


if __name__ == "__main__":
    sys.exit(unittest.main())
