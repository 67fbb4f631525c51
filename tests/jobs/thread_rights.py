#!/usr/bin/env python3
"""Threads of one process with different rights: users, groups, capabilities, secure bits. What each has before the checkpoint it has
after the restart: no more, and no less. As odd_objects.py."""
import json
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import CKPT, environment
from odd_objects import COMMON, come_back, wait_for

# work(): what the thread makes of itself; it lives until the end. A call that fails ends the program.
THREADS = COMMON + r"""
import threading
LINES = ('Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs')
SETUID, SETGID, SETPCAP, NET_ADMIN = 7, 6, 8, 12
ALL = int(next(l for l in open('/proc/self/status') if l.startswith('CapPrm:')).split()[1], 16)
def done(result):
    if result < 0:
        print(errno.errorcode[ctypes.get_errno()], flush=True)
        os._exit(9)
    return result
def call(number, *arguments): return done(libc.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
def set_capabilities(effective, permitted, inheritable=0):
    words = [v >> shift & 0xffffffff for shift in (0, 32) for v in (effective, permitted, inheritable)]
    call(126, struct.pack('Ii', 0x20080522, 0), struct.pack('IIIIII', *words))
def become(user): call(117, user, user, user)
def status_of(tid):
    lines = open(f'/proc/self/task/{tid}/status').read().splitlines()
    return [l for l in lines if l.split(':')[0] in LINES]
def filter_calls():
    # Nothing is forbidden.
    rule = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))
    call(157, 22, 2, struct.pack('HxxxxxxQ', 1, ctypes.addressof(rule)))
threads, asked, bits, ready, answered = [], [], [], threading.Semaphore(0), threading.Semaphore(0)
def live_apart(work, asked):
    work()
    ready.release()
    while True:
        asked.acquire()
        bits.append(libc.prctl(27, 0, 0, 0, 0))
        answered.release()
def start(*works):
    for work in works:
        asked.append(threading.Semaphore(0))
        threads.append(threading.Thread(target=live_apart, args=(work, asked[-1]), daemon=True))
        threads[-1].start()
        ready.acquire()
def secure_bits():
    bits.clear()
    for question in asked:
        question.release()
        answered.acquire()
    return bits + [libc.prctl(27, 0, 0, 0, 0)]
facts['threads'] = lambda: [status_of(t.native_id) for t in threads]
facts['first'] = lambda: status_of(os.getpid())
facts['secure bits'] = secure_bits
"""

# The first thread has given up the right to choose users. The others are nobody, have all rights, or other sets of them.
FIRST_HAS_LESS = THREADS + r"""
def nobody(): become(65534)
def has_all(): pass
def smaller_sets():
    done(libc.prctl(24, NET_ADMIN, 0, 0, 0))
    set_capabilities(ALL, ALL, 1 << SETUID)
    done(libc.prctl(47, 2, SETUID, 0, 0))
# A user of the file system that is none of its others.
def serves_files():
    done(libc.prctl(8, 1, 0, 0, 0))
    become(65534)
    set_capabilities(1 << SETUID | 1 << SETGID, ALL)
    libc.syscall(122, ctypes.c_long(1234))
    set_capabilities(0, 0)
# Root's to lower, and root's file once a thread has become nobody.
def score(): return open('/proc/self/oom_score_adj').read()
def lower_score():
    with open('/proc/self/oom_score_adj', 'w') as f: f.write('-100')
error_of(lower_score)
facts['score'] = score
start(nobody, has_all, smaller_sets, serves_files)
rest = ALL & ~(1 << SETUID | 1 << SETGID | 1 << SETPCAP)
set_capabilities(rest, rest)
live()
"""

# More groups than are remembered, and a thread without any.
MANY_GROUPS = THREADS + r"""
os.setgroups(range(3000, 3040))
start(lambda: call(116, 0, 0))
live()
"""

# All under a filter, as in a container, with secure bits of their own.
FILTERED = THREADS + r"""
filter_calls()
done(libc.prctl(28, 1 << 2, 0, 0, 0))
start(lambda: become(65534), lambda: call(116, 1, struct.pack('I', 4321)), lambda: set_capabilities(0, 1 << NET_ADMIN))
live()
"""

# The first alone has a filter.
FIRST_IS_FILTERED = THREADS + r"""
start(lambda: become(65534))
filter_calls()
live()
"""

# A thread that has fewer rights than the first ends after the checkpoint.
ENDS_LATER = THREADS + r"""
over = threading.Event()
def worker():
    become(65534)
    ready.release()
    over.wait()
thread = threading.Thread(target=worker, daemon=True)
thread.start()
ready.acquire()
#FIRST
done(libc.prctl(4, 1))
facts['dumpable'] = lambda: libc.prctl(3)
facts['worker'] = lambda: status_of(thread.native_id)
tell('before')
while not os.path.exists('end'):
    time.sleep(0.005)
    if not os.path.exists('ask'): continue
    tell('after')
    os._exit(0)
over.set()
thread.join()
while os.path.exists(f'/proc/self/task/{thread.native_id}'): time.sleep(0.001)  # Python's has ended, the kernel's may be about to
open('ended', 'w').close()
time.sleep(1000)
"""

# The other way: the first has given up one since it has started the worker.
FIRST_GIVES_UP = ENDS_LATER.replace("    become(65534)\n", "").replace("#FIRST", "set_capabilities(ALL & ~(1 << NET_ADMIN), ALL & ~(1 << NET_ADMIN))")


@unittest.skipUnless(os.geteuid() == 0, "needs root")
class ThreadRights(unittest.TestCase):
    def about_threads(self, name, program):
        said = []
        before = come_back(self, name, program, hear=said.append)["before"]
        self.assertEqual([n for n in said[0].get("notes", []) if "thread" in n], [])
        return before

    def value(self, status, name):
        return next(line.split("\t")[1:] for line in status if line.startswith(name + ":"))

    def test_the_first_thread_has_given_up_more_than_others(self):
        nobody, has_all, sets, files = self.about_threads("rights-less", FIRST_HAS_LESS)["threads"]
        self.assertEqual(self.value(nobody, "Uid"), ["65534"] * 4)
        self.assertEqual(self.value(files, "Uid"), ["65534"] * 3 + ["1234"])
        self.assertEqual(self.value(nobody, "CapPrm"), ["0" * 16])
        self.assertEqual(int(self.value(has_all, "CapPrm")[0], 16) & 1 << 7, 1 << 7)
        self.assertEqual(int(self.value(sets, "CapBnd")[0], 16) & 1 << 12, 0)
        self.assertEqual(self.value(sets, "CapAmb"), [f"{1 << 7:016x}"])

    def test_a_thread_without_the_many_groups_of_the_first(self):
        self.assertEqual(self.value(self.about_threads("rights-groups", MANY_GROUPS)["threads"][0], "Groups"), [" "])

    def test_threads_under_filters(self):
        before = self.about_threads("rights-filtered", FILTERED)
        self.assertEqual(before["secure bits"], [4, 4, 4, 4])
        self.assertEqual(self.value(before["threads"][0], "Uid"), ["65534"] * 4)

    def makes_again(self, name, program):
        """What it told before and after going back, and what that said."""
        tree = job_tree.Tree(name, [sys.executable, "-c", program])
        path = lambda name: os.path.join(tree.work, name)
        failed = True
        try:
            tree.run()
            wait_for(path("before"), tree)
            image = tree.checkpoint(tree.child.pid)
            open(path("end"), "w").close()
            wait_for(path("ended"), tree)
            os.remove(path("end"))
            back = subprocess.run([CKPT, "back", str(tree.child.pid), image], capture_output=True, text=True, timeout=job_tree.PATIENCE,
                                  env=environment(), check=False)
            self.assertEqual(back.returncode, 0, back.stderr)
            open(path("ask"), "w").close()
            self.assertEqual(tree.finish()[0], 0, tree.said())
            told = []
            for name in "before", "after":
                with open(path(name), encoding="ascii") as f:
                    told.append(json.load(f))
            self.assertEqual([t["dumpable"] for t in told], [1, 1])
            failed = False
            return told[0]["worker"], told[1]["worker"], back.stdout + back.stderr
        finally:
            tree.close(failed)

    def test_a_thread_that_going_back_makes_again(self):
        before, after, said = self.makes_again("rights-back", ENDS_LATER)
        self.assertEqual(before, after)
        self.assertEqual(self.value(after, "Uid"), ["65534"] * 4)
        self.assertNotIn("fewer capabilities", said)

    def test_a_thread_with_more_rights_than_the_first_that_going_back_makes_again(self):
        before, after, said = self.makes_again("rights-back-less", FIRST_GIVES_UP)
        gone = int(self.value(before, "CapPrm")[0], 16) ^ int(self.value(after, "CapPrm")[0], 16)
        self.assertEqual(gone, 1 << 12)
        self.assertIn("fewer capabilities", said)

    def test_the_first_alone_has_a_filter(self):
        self.assertEqual(self.value(self.about_threads("rights-first", FIRST_IS_FILTERED)["threads"][0], "Uid"), ["65534"] * 4)


job_tree.adopt_orphans()

@unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
class OfAUser(unittest.TestCase):
    def test_groups_that_the_restart_may_not_choose(self):
        """In the user namespace of a restart without rights they are nobody's: no thread has others than the first for that."""
        tree = job_tree.Tree("user-groups", ["/usr/bin/python3", "-c", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
                                             "print('went on')"], uid=65534)
        tree.groups = "--groups=1,2,3"
        failed = True
        try:
            tree.run()
            image = tree.checkpoint(tree.child.pid)
            tree.kill()
            notes = tree.restart(image)["notes"]
            with open(os.path.join(tree.work, "go"), "w", encoding="ascii"):
                pass
            self.assertEqual(tree.finish(), (0, b"went on\n"), tree.said())
            self.assertEqual([n for n in notes if "groups" in n], [])
            failed = False
        finally:
            tree.close(failed)


if __name__ == "__main__":
    unittest.main()
