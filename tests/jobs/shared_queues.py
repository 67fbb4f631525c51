#!/usr/bin/env python3
"""Messages that wait in sockets which two members of a job have. The kernel shows a message without a byte to the member that
looks first, and to no other: it comes back whichever member that is."""
import concurrent.futures
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import Tree, wait_for

# Its child runs a program with a point of its own at which it waits, and has files of other numbers.
PROGRAM = r"""
import os, select, socket, sys, time
other = sys.argv[1]
datagrams = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
packets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(('127.0.0.1', 0))
udp.connect(udp.getsockname())
plain, pidfd = os.open('plain', os.O_RDWR | os.O_CREAT), os.pidfd_open(os.getpid())
os.write(plain, b'plain')
for near, far in (datagrams, packets, (udp, udp)):
    near.send(b'')
    near.send(b'before')
    if near is udp: near.send(b'')
    else: socket.send_fds(near, [b''], [plain])
    if near is packets[0]: socket.send_fds(near, [b'self'], [pidfd])
    near.send(b'behind')
os.close(plain)
os.close(pidfd)
if os.fork() == 0:
    more = [os.open('/dev/null', os.O_RDONLY) for _ in range(10)]
    for fd in [s.fileno() for s in (*datagrams, *packets, udp)] + more: os.set_inheritable(fd, True)
    code = "import os, time\nopen('other', 'w').write(str(os.getpid()))\nwhile not os.path.exists('end'): time.sleep(0.005)"
    os.execve(sys.executable, [sys.executable, '-c', code], dict(os.environ, CKPT_TEST_POINT=other))
while not os.path.exists('other'): time.sleep(0.005)
open('before', 'w').close()
while not os.path.exists('go'): time.sleep(0.005)
for s in (datagrams[1], packets[1], udp):
    row = []
    while select.select([s], [], [], 0)[0]:
        data, fds, _, _ = socket.recv_fds(s, 100, 10)
        row.append(data.decode())
        for fd in fds:
            line = [l for l in open(f'/proc/self/fdinfo/{fd}') if l.startswith('Pid:')]
            row.append(int(line[0].split()[1]) == os.getpid() if line else os.pread(fd, 10, 0).decode())
    print(row)
open('end', 'w').close()
os.wait()
"""
ALL = b"""['', 'before', '', 'plain', 'behind']
['', 'before', '', 'plain', 'self', True, 'behind']
['', 'before', '', 'behind']
"""


class SharedQueues(unittest.TestCase):
    maxDiff = None

    def come_back(self, held, other):
        """held, other: the points at which the two members wait until both are there."""
        tree = Tree("shared-queues", ["env", f"CKPT_TEST_POINT={held}=wait", sys.executable, "-c", PROGRAM, other + "=wait"])
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "before")) or tree.child.poll() is not None, "the program")
        both = [os.path.join(tree.work, f"{pid:010}.waits") for pid in (tree.child.pid, *job_tree.descendants(tree.child.pid))]
        self.assertEqual(len(both), 2, tree.said())
        with concurrent.futures.ThreadPoolExecutor() as pool:
            image = pool.submit(tree.checkpoint, tree.child.pid)
            wait_for(lambda: image.done() or all(map(os.path.exists, both)), "two members that wait")
            for path in both:
                os.remove(path)
            job = image.result()
        self.assertEqual(tree.cost["job_attempts"], 1, tree.said())
        tree.kill()
        tree.restart(job)
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish(), (0, ALL), tree.said())

    def test_who_makes_the_checkpoint_looks_first(self):
        self.come_back("stop.looked", "member.standing")

    def test_who_makes_the_checkpoint_looks_last(self):
        self.come_back("coordinator.samples", "stop.looked")


job_tree.adopt_orphans()

if __name__ == "__main__":
    job_tree.enter_own_network()
    unittest.main()
