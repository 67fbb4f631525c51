#!/usr/bin/env python3
"""POSIX message queues of a tree: what waited in them at the checkpoint waits in them after a restart.
  message_queues.py
"""
import ctypes
import json
import os
import struct
import subprocess
import unittest

from job_tree import PATIENCE, RESTART, Tree, adopt_orphans, environment, wait_for

MESSAGE_QUEUES = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mq_open.restype = libc.mq_receive.restype = ctypes.c_long
class Attributes(ctypes.Structure):
    _fields_ = [(n, ctypes.c_long) for n in ('flags', 'most', 'size', 'now', 'a', 'b', 'c', 'd')]
def make(name):
    queue = libc.mq_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, ctypes.byref(Attributes(0, 4, 16)))
    assert queue >= 0, os.strerror(ctypes.get_errno())
    return queue
def send(queue, *messages):
    for text, priority in messages: assert libc.mq_send(queue, text, len(text), priority) == 0
def receive(queue):
    buffer = ctypes.create_string_buffer(16)
    n = libc.mq_receive(queue, buffer, 16, None)
    assert n >= 0, os.strerror(ctypes.get_errno())
    return buffer.raw[:n]
name, other = b'/ckpt-test-%d' % os.getpid(), b'/ckpt-test-%d-removed' % os.getpid()
named, removed, empty = make(name), make(other), make(other + b'-empty')
libc.mq_unlink(other)
ready, told = os.pipe()
if os.fork() == 0:
    own = libc.mq_open(name, os.O_RDONLY)
    os.write(told, b'x')
    while not os.path.exists('go'): time.sleep(0.005)
    got = [receive(own) for _ in range(4)] + [receive(removed) for _ in range(2)]
    send(empty, (b'through', 0))
    print(got, flush=True)
    os._exit(0)
send(named, (b'a', 1), (b'', 5), (b'b', 1), (b'c', 5))  # full
send(removed, (b'0', 0), (b'1', 1))
os.read(ready, 1)
print('up', flush=True)
print(receive(empty), flush=True)
os.wait()
libc.mq_unlink(name)
libc.mq_unlink(other + b'-empty')
"""
QUEUES_SAY = b"up\n[b'', b'c', b'a', b'b', b'1', b'0']\nb'through'\n"


class MessageQueues(unittest.TestCase):
    def test_message_queues(self):
        """Messages that wait at the checkpoint wait again: after some were taken and others sent, in a queue that was removed since,
        and in one that had no name any more. A checkpoint alone changes nothing."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mq_open.restype = ctypes.c_long
        for since in ("nothing", "other messages", "removed"):
            with self.subTest(since=since):
                tree = Tree("queues", ["python3", "-c", MESSAGE_QUEUES])
                try:
                    tree.run()
                    wait_for(lambda: b"up" in tree.output(), "all processes")
                    image = tree.checkpoint(tree.child.pid)
                    pid = next(m["pid"] for m in json.load(open(os.path.join(image, "manifest.json")))["members"])
                    name = b"/ckpt-test-%d" % pid
                    if since != "nothing":
                        queue = libc.mq_open(name, os.O_RDWR)
                        for _ in range(2):
                            self.assertGreaterEqual(libc.mq_receive(queue, ctypes.create_string_buffer(16), 16, None), 0)
                        self.assertEqual(libc.mq_send(queue, b"x", 1, 9), 0)
                        os.close(queue)
                        tree.kill()
                        if since == "removed":
                            self.assertEqual(libc.mq_unlink(name), 0)
                        tree.restart(image)
                    with open(os.path.join(tree.work, "go"), "w"):
                        pass
                    code, output = tree.finish()
                    self.assertEqual((code, sorted(output.splitlines())), (0, sorted(QUEUES_SAY.splitlines())), tree.said())
                finally:
                    tree.close(False)

    def test_a_message_queue_of_another_size(self):
        """What has its name now is not the queue of the checkpoint: refused before anything is touched."""
        tree = Tree("queues", ["python3", "-c", MESSAGE_QUEUES])
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: b"up" in tree.output(), "all processes")
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        pid = next(m["pid"] for m in json.load(open(os.path.join(image, "manifest.json")))["members"])
        libc, name = ctypes.CDLL(None, use_errno=True), b"/ckpt-test-%d" % pid
        for n in (name, name + b"-removed-empty"):
            self.assertEqual(libc.mq_unlink(n), 0)
        other = libc.mq_open(name, os.O_RDWR | os.O_CREAT, 0o600, struct.pack("8q", 0, 3, 16, 0, 0, 0, 0, 0))
        self.assertGreaterEqual(other, 0)
        self.addCleanup(libc.mq_unlink, name)
        os.close(other)
        for options in ((), ("--check",)):
            done = subprocess.run([RESTART, *options, image], env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
            self.assertEqual(done.returncode, 72, done.stderr)
            self.assertIn("has room for 3 messages", done.stderr)


adopt_orphans()
if __name__ == "__main__":
    unittest.main()
