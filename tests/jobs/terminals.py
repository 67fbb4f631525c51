#!/usr/bin/env python3
"""Sessions on a terminal of the job: who has it, and who is in the foreground, is the same after the restart. A process has the
controlling terminal that its parent had when it was born, so it must not matter who leads the session."""
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import PATIENCE, Tree

SESSION = r"""
import fcntl, os, signal, struct, termios, time

def facts():
    with open('/proc/self/stat') as f: fields = f.read().rsplit(')', 1)[1].split()
    try:
        fd = os.open('/dev/tty', os.O_RDWR | os.O_NOCTTY)
        dev_tty = os.tcgetpgrp(fd) == os.tcgetpgrp(slave) and struct.unpack('i', fcntl.ioctl(fd, 0x5429, bytes(4)))[0] == os.getsid(0)
        os.close(fd)
    except OSError as e:
        dev_tty = e.errno
    return (os.getpid(), fields[4] != '0', int(fields[5]), dev_tty)

def live(name):
    for when in ('before', 'after'):
        while when == 'after' and not os.path.exists('go'): time.sleep(0.01)
        with open(f'{when}.{name}.tmp', 'w') as f: f.write(str(facts()))
        os.rename(f'{when}.{name}.tmp', f'{when}.{name}')

def child(name, what):
    pid = os.fork()
    if pid == 0:
        what()
        live(name)
        os._exit(0)
    return pid

def give_up():
    fcntl.ioctl(slave, termios.TIOCNOTTY)

def nested():
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(slave, os.getpid())
    os.write(told, b'x')  # it is in the foreground
    child('foreground_child', lambda: None)
    give_up()
    child('child_of_one_without', lambda: None)

told_by, told = os.pipe()
master, slave = os.openpty()  # 0x5429: TIOCGSID
root = child('other_session', os.setsid)
leader = os.fork()
if leader == 0:
    os.setsid()
    child('before_it_was_taken', lambda: None)
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    child('nested', nested)
    os.read(told_by, 1)
    child('background', lambda: os.setpgid(0, 0))
    child('of_leader', lambda: None)
    child('without', give_up)
    live('leader')
    while not os.path.exists('end'): time.sleep(0.01)
    os._exit(0)
live('root')
print('up', flush=True)
os.waitpid(leader, 0)
"""
NAMES = ["root", "other_session", "leader", "before_it_was_taken", "background", "of_leader", "without", "nested", "foreground_child",
         "child_of_one_without"]
HAVE_IT = ["leader", "background", "of_leader", "foreground_child"]


class Terminals(unittest.TestCase):
    def facts(self, tree, when):
        deadline = time.monotonic() + PATIENCE
        names = {n: os.path.join(tree.work, f"{when}.{n}") for n in NAMES}
        while not all(os.path.exists(p) for p in names.values()):
            self.assertLess(time.monotonic(), deadline, f"{when}: {os.listdir(tree.work)} {tree.said()}")
            time.sleep(0.01)
        got = {}
        for name, path in names.items():
            with open(path, encoding="utf-8") as f:
                got[name] = f.read()
        return got

    def test_who_has_the_terminal(self):
        tree = Tree("terminals", ["python3", "-c", SESSION])
        self.addCleanup(tree.close, False)
        tree.run()
        before = self.facts(tree, "before")
        self.assertEqual([n for n in NAMES if ", True, " in before[n]], HAVE_IT, before)
        root = tree.child.pid
        for _ in range(2):
            image = tree.checkpoint(root)
            tree.kill()
            root = job_tree.root_of(tree.restart(image))
        open(os.path.join(tree.work, "go"), "w").close()
        after = self.facts(tree, "after")
        self.assertEqual(after, before)
        open(os.path.join(tree.work, "end"), "w").close()
        self.assertEqual(tree.finish()[0], 0)


job_tree.adopt_orphans()
if __name__ == "__main__":
    unittest.main()
