#!/usr/bin/env python3
"""Alternate signal stacks (sigaltstack). Some programs give all their threads the same: they handle nothing there but a fault, after which they end."""

import unittest

from stepped_test import SteppedTest


class SharedStack(SteppedTest):
    program_text = """
PRIVATE, SIZE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 1 << 17
shared = mmap.mmap(-1, SIZE, PRIVATE)
turns, end = [0] * 8, threading.Event()
def set_stack(memory, how=libc.sigaltstack):
    stack = struct.pack('QiQ', ctypes.addressof(ctypes.c_char.from_buffer(memory)), 0, len(memory))
    assert how(stack, None) == 0
def work(k, memory, how):
    set_stack(memory, how)
    while not end.is_set():
        turns[k] += 1
        time.sleep(0.0005)
def begin(memory_of, how=libc.sigaltstack):
    global threads
    threads = [threading.Thread(target=work, args=(k, memory_of(k), how)) for k in range(len(turns))]
    for t in threads: t.start()
def all_go_on():
    for k in range(len(turns)):
        n = turns[k]
        while turns[k] < n + 2: time.sleep(0.001)
    return sum(t.is_alive() for t in threads)
def finish():
    end.set()
    for t in threads: t.join()
"""

    def check(self):
        for _ in range(3):
            self.assertEqual(self.ask("all_go_on()"), "8")
            self.checkpoint()
        for _ in range(2):
            self.come_back()
            self.assertEqual(self.ask("all_go_on()"), "8")
            self.checkpoint()
        self.do("finish()")
        self.end()

    def test_one_for_all_threads(self):
        self.start()
        self.do("begin(lambda k: shared)")
        self.check()

    def test_one_for_all_threads_by_syscall(self):
        self.start()
        self.do("begin(lambda k: shared, how=lambda *a: libc.syscall(131, *a))")
        self.check()

    def test_one_each(self):
        self.start()
        self.do("begin(lambda k: mmap.mmap(-1, SIZE, PRIVATE))")
        self.check()


if __name__ == "__main__":
    unittest.main()
