#!/usr/bin/env python3
"""TCP streams that nobody reads: a checkpoint moves what waits at the sender into the receiver's queue, and gives no more room than that, so
that the next ones can be taken too. In the program that goes on, and from one restart to the next."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import Tree, wait_for

# Both ends in a process of their own. The sender writes more than all queues hold. Each byte tells its place.
PROGRAM = r"""
import hashlib, os, socket, time
SIZE = 40 << 20
data = b''.join(b'%016d' % i for i in range(SIZE >> 4))
l = socket.create_server(('127.0.0.1', 0))
c = socket.create_connection(l.getsockname())
a, _ = l.accept()
if os.fork() == 0:
    a.close()
    c.sendall(data)
    os._exit(0)
c.close()
print('up', flush=True)
while not os.path.exists('go'): time.sleep(0.005)
got = bytearray()
while len(got) < SIZE:
    part = a.recv(1 << 20)
    assert part
    got += part
assert a.recv(1) == b''
print('same' if got == data else 'other', flush=True)
"""


def queues():
    """Bytes that wait at both ends of the connection, and have stopped to become more."""
    with open("/proc/self/net/tcp", encoding="ascii") as f:
        ends = [line.split() for line in f.readlines()[1:]]
    return sorted(tuple(int(n, 16) for n in e[4].split(":")) for e in ends if e[3] == "01")


class FullStreams(unittest.TestCase):
    def test_several_checkpoints(self):
        job_tree.enter_own_network()
        # As the kernel has it since Linux 6.17, and a smaller room for the sender.
        for name, value in (("tcp_rmem", "4096 131072 33554432"), ("tcp_wmem", "4096 16384 1048576")):
            with open(f"/proc/sys/net/ipv4/{name}", "w", encoding="ascii") as f:
                f.write(value)
        tree = Tree("full", ["/usr/bin/python3", "-c", PROGRAM])
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: tree.output() == b"up\n" and self.is_full(), "the program")
        root = tree.child.pid
        for _ in range(2):
            for _ in range(2):
                image = tree.checkpoint(root)
                wait_for(self.is_full, "the queues")
            tree.kill()
            root = job_tree.root_of(tree.restart(image))
            wait_for(self.is_full, "the queues after the restart")
        with open(os.path.join(tree.work, "go"), "w", encoding="ascii"):
            pass
        code, output = tree.finish()
        self.assertEqual((code, output), (0, b"up\nsame\n"), tree.said())

    @staticmethod
    def is_full():
        """The sender waits: twice the same, and something waits on both sides."""
        first = queues()
        job_tree.time.sleep(0.05)
        return first == queues() and sum(sent for sent, _ in first) != 0 and sum(received for _, received in first) != 0


job_tree.adopt_orphans()
if __name__ == "__main__":
    unittest.main()
