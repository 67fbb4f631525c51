#!/usr/bin/env python3
"""A line that was begun in a terminal of the job (no newline yet) comes back, and the look at it is not noticed: by who has the
terminal, nor after a restart or `ckpt back`. Programs and terminals of their own, parts of lines, several generations."""
import fcntl
import json
import os
import struct
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import CKPT, Tree

# The parent has the master and does what it is told; the child has the other end and says what it reads. Both tell what they see.
PROGRAM = r"""
import fcntl, os, select, signal, struct, sys, termios, time
m, s = os.openpty()
if sys.argv[1] == 'packets': fcntl.ioctl(m, termios.TIOCPKT, struct.pack('i', 1))
child = os.fork()
if child == 0:
    if sys.argv[1] != 'both': os.close(m)
    with open('lines', 'ab', 0) as lines:
        while line := os.read(s, 5000): lines.write(repr(line).encode() + b'\n')
    os._exit(0)
def wait(name):
    while not os.path.exists(name): time.sleep(0.002)
def settled():
    # With a whole line to read the poll waits for nothing: the line may be there ahead of its echo. The settings' lock is free when both are.
    select.select([s], [], [], 0)
    termios.tcsetattr(s, termios.TCSANOW, termios.tcgetattr(s))
    got = b''
    while select.select([m], [], [m], 0)[0]: got += os.read(m, 5000)
    return got
def read_all(f, size):
    # An echo is written a byte at a time, and can be read as it comes.
    got = b''
    while len(got) < size: got += os.read(f, 5000)
    return got
def facts(): return termios.tcgetattr(s), struct.unpack('i', fcntl.ioctl(s, termios.FIONREAD, bytes(4))), settled()
print('up', flush=True)
n = 0
while True:
    wait(f'do{n}')
    with open(f'do{n}') as f: value = eval(f.read())
    with open('told.tmp', 'w') as f: f.write(repr(value))
    os.rename('told.tmp', f'told{n}')
    n += 1
"""


class Program:
    def __init__(self, test, kind="plain"):
        self.tree = Tree("begun", ["python3", "-c", PROGRAM, kind])
        test.addCleanup(self.tree.close, False)
        self.tree.run()
        self.root = self.tree.child.pid
        self.n = 0

    def tell(self, what):
        path = os.path.join(self.tree.work, f"do{self.n}")
        with open(path + ".tmp", "w", encoding="utf-8") as f:
            f.write(what)
        os.rename(path + ".tmp", path)
        told = os.path.join(self.tree.work, f"told{self.n}")
        self.n += 1
        job_tree.wait_for(lambda: os.path.exists(told), f"the answer to {what}: {self.tree.said()}")
        with open(told, encoding="utf-8") as f:
            return eval(f.read())  # pylint: disable=eval-used

    def type(self, what):
        """Answers with the echo."""
        return self.tell(f"(os.write(m, {what!r}), settled())[1]")

    def lines(self, count):
        path = os.path.join(self.tree.work, "lines")

        def read():
            with open(path, encoding="ascii") as f:
                return [eval(line) for line in f]  # pylint: disable=eval-used

        job_tree.wait_for(lambda: os.path.exists(path) and len(read()) >= count, f"{count} lines: {self.tree.said()}")
        return read()

    def now(self):
        self.image = self.tree.checkpoint(self.root)
        return self.image

    def restart(self):
        self.tree.kill()
        report = self.tree.restart(self.image)
        self.root = job_tree.root_of(report)
        return report


class BegunLines(unittest.TestCase):
    def comes_back(self, begun, rest, line, kind="plain", before=None):
        """At the checkpoint nothing is to be noticed; then twice over a restart."""
        p = Program(self, kind)
        if before is not None:
            p.tell(before)
        p.type(begun)
        facts = p.tell("facts()")
        self.assertEqual(facts[1], (0,))
        p.now()
        self.assertEqual(p.tell("facts()"), facts)
        for _ in range(2):
            p.restart()
            self.assertEqual(p.tell("facts()"), facts)
            p.now()
        echo = p.type(rest)
        self.assertEqual(p.lines(1), [line])
        return echo

    def test_plain(self):
        echo = self.comes_back(b"half a", b" line\n", b"half a line\n")
        self.assertEqual(echo, b" line\r\n")

    def test_erasing_goes_on(self):
        echo = self.comes_back(b"half as", b"\x7f\x7f line\n", b"half  line\n")
        self.assertEqual(echo, b"\b \b\b \b line\r\n")

    def test_bytes_that_are_keys(self):
        odd = b"".join(bytes([0x16, b]) for b in range(256) if b != 10) + b"\x16\n"
        plain = bytes(b for b in range(256) if b != 10) + b"\n"
        self.comes_back(odd, b".\n", plain + b".\n")

    def test_the_next_byte_is_taken_as_it_is(self):
        self.comes_back(b"a\x16", b"\x03b\n", b"a\x03b\n")

    def test_a_password(self):
        off = "(lambda a: termios.tcsetattr(s, termios.TCSANOW, a[:3] + [a[3] & ~termios.ECHO] + a[4:]))(termios.tcgetattr(s))"
        echo = self.comes_back(b"sec", b"ret\n", b"secret\n", before=off)
        self.assertEqual(echo, b"")

    def test_long(self):
        self.comes_back(b"x" * 4000, b"y\n", b"x" * 4000 + b"y\n")

    def test_packets(self):
        self.comes_back(b"half a", b" line\n", b"half a line\n", kind="packets")

    def test_two_have_the_master(self):
        self.comes_back(b"half a", b" line\n", b"half a line\n", kind="both")

    def test_too_long_is_said(self):
        p = Program(self)
        p.type(b"x" * 4095)
        facts = p.tell("facts()")
        p.now()
        self.assertEqual(p.tell("facts()"), facts)
        self.assertEqual(len([n for n in p.tree.cost["notes"] if "too long to be seen" in n]), 1, p.tree.cost)

    def is_not_looked_at(self, p, why, *options):
        """Nobody notices anything, and a note says what is not seen."""
        p.tell("globals().update(signals=0)")
        p.tell("str(signal.signal(signal.SIGIO, lambda *a: globals().update(signals=signals + 1)))")
        facts = p.tell("facts()")
        done = subprocess.run([CKPT, "now", "--json", *options, str(p.root)], capture_output=True, text=True, check=False,
                              env=job_tree.environment())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len([n for n in json.loads(done.stdout)["notes"] if why in n]), 1, done.stdout)
        self.assertEqual(p.tell("facts()"), facts)
        self.assertEqual(p.tell("signals"), 0)

    def test_signals_for_what_arrives(self):
        p = Program(self)
        p.type(b"half a")
        p.tell("fcntl.fcntl(m, fcntl.F_SETOWN, os.getpid())")
        p.tell("fcntl.fcntl(m, fcntl.F_SETFL, fcntl.fcntl(m, fcntl.F_GETFL) | os.O_ASYNC)")
        self.is_not_looked_at(p, "signals are sent for what arrives there")

    def test_of_one_process_alone(self):
        p = Program(self)
        p.type(b"half a")
        self.is_not_looked_at(p, "other processes run meanwhile", "--only")
        p.type(b" line\n")
        self.assertEqual(p.lines(1), [b"half a line\n"])

    def test_behind_an_end_of_input(self):
        p = Program(self)
        p.tell("globals().update(other=os.openpty())")
        p.tell("os.write(other[0], b'\\x04half a')")
        self.assertEqual(p.tell("read_all(other[0], 6)"), b"half a")
        self.is_not_looked_at(p, "an end of input (Ctrl-D) waits there")
        self.assertEqual(p.tell("os.read(other[1], 100)"), b"")
        p.tell("os.write(other[0], b' line\\n')")
        self.assertEqual(p.tell("os.read(other[1], 100)"), b"half a line\n")

    def test_a_terminal_without_keys(self):
        """EXTPROC: whatever is typed can be read at once."""
        p = Program(self)
        p.tell("(lambda a: termios.tcsetattr(s, termios.TCSANOW, a[:3] + [a[3] | 0o200000] + a[4:]))(termios.tcgetattr(s))")
        facts = p.tell("facts()")
        p.now()
        self.assertEqual(p.tell("facts()"), facts)
        self.assertFalse([n for n in p.tree.cost.get("notes", []) if "line" in n], p.tree.cost)
        p.type(b"half a")
        self.assertEqual(p.lines(1), [b"half a"])

    def test_going_back(self):
        p = Program(self)
        p.type(b"half a")
        facts = p.tell("facts()")
        p.now()
        at_checkpoint = p.n
        for _ in range(2):
            p.type(b"nother one")
            for n in range(at_checkpoint, p.n):  # it is to wait for the same orders again
                os.unlink(os.path.join(p.tree.work, f"do{n}"))
                os.unlink(os.path.join(p.tree.work, f"told{n}"))
            p.n = at_checkpoint
            done = subprocess.run([CKPT, "back", "--json", p.image], capture_output=True, text=True, check=False,
                                  env=job_tree.environment())
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(p.tell("facts()"), facts)
        p.type(b" line\n")
        self.assertEqual(p.lines(1), [b"half a line\n"])

    def test_of_an_emulator_above_the_job(self):
        """Its master is touched by nobody else: a note says what cannot be seen."""
        master, slave = os.openpty()
        self.addCleanup(os.close, master)
        self.addCleanup(os.close, slave)
        tree = Tree("above", ["python3", "-c", "import sys, time; print('up', flush=True); time.sleep(1000)"])
        self.addCleanup(tree.close, False)
        os.set_inheritable(master, True)
        os.write(master, b"half a")
        echo = b""
        while len(echo) < 6:  # it is written a byte at a time
            echo += os.read(master, 100)
        self.assertEqual(echo, b"half a")
        kept, subprocess.Popen = subprocess.Popen, lambda *args, **more: kept(*args, pass_fds=(master,), **more)
        try:
            tree.run()
        finally:
            subprocess.Popen = kept
        tree.checkpoint(tree.child.pid)
        self.assertEqual(len([n for n in tree.cost["notes"] if "a process outside the job has the terminal" in n]), 1, tree.cost)
        self.assertEqual(struct.unpack("i", fcntl.ioctl(master, 0x541B, bytes(4))), (0,))
        os.write(master, b" line\n")
        self.assertEqual(os.read(slave, 100), b"half a line\n")


job_tree.adopt_orphans()
if __name__ == "__main__":
    unittest.main()
