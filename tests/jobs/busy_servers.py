#!/usr/bin/env python3
"""Servers that always have connections which they have not accepted yet, with requests in them: a checkpoint is taken all the same,
and each request is answered once, in order, also after restarts."""
import os
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import Tree, root_of, wait_for

# Eight clients, each with one request a connection: its number and that of the request. Whoever serves it takes a
# millisecond, and keeps the last number of each client in memory that all share: a request that is lost or comes twice ends all.
PROGRAM = r"""
import mmap, os, select, signal, socket, struct, sys, threading, time

kind = sys.argv[1]
CLIENTS = 8
last = mmap.mmap(-1, 4096)
served = os.open('served', os.O_CREAT | os.O_RDWR, 0o600)  # of the test: how many requests were answered

def fail(what):
    print('WRONG', what, flush=True)
    os.killpg(0, signal.SIGKILL)

def make_listening(family, name):
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(name)
    s.listen(64)
    return s

def receive(c):
    message = b''
    while len(message) < 8:
        part = c.recv(8 - len(message))
        if not part: return None
        message += part
    return message

def answer(c):
    message = receive(c)
    who, number = struct.unpack('II', message)
    before = struct.unpack_from('I', last, 4 * who)[0]
    if number != before + 1: fail('client %d: request %d after %d' % (who, number, before))
    until = time.thread_time() + 0.001
    while time.thread_time() < until: pass
    struct.pack_into('I', last, 4 * who, number)
    os.pwrite(served, b'%d' % sum(struct.unpack_from('8I', last)), 0)
    c.sendall(message)
    c.close()

def serve(s, forks=False):
    while True:
        try: c, _ = s.accept()
        except InterruptedError: continue
        if not forks:
            answer(c)
            continue
        if os.fork() == 0:
            answer(c)
            os._exit(0)
        c.close()
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0: break
            except ChildProcessError: break

def forward(s, name):
    while True:
        c, _ = s.accept()
        up = socket.socket(socket.AF_INET)
        up.connect(name)
        up.sendall(receive(c))
        c.sendall(receive(up))
        up.close()
        c.close()

def ask(who, number, family, name):
    c = socket.socket(family)
    if kind == 'limited': c.settimeout(60)
    c.connect(name)
    c.sendall(struct.pack('II', who, number))
    got = receive(c)
    if got != struct.pack('II', who, number): fail('client %d: answer %r to %d' % (who, got, number))
    c.close()

def be_client(who, family, name):
    number = 0
    if kind == 'signals':  # connect ends with EINTR, and goes on in the background
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    while not os.path.exists('end'):
        number += 1
        if kind == 'young':
            child = os.fork()
            if child == 0:
                ask(who, number, family, name)
                os._exit(0)
            if os.waitpid(child, 0)[1] != 0: fail('client %d: its child failed' % who)
        else: ask(who, number, family, name)

def process(function, *arguments):
    pid = os.fork()
    if pid == 0:
        function(*arguments)
        os._exit(0)
    return pid

if kind == 'unix': family, name = socket.AF_UNIX, 'server'
elif kind == 'abstract': family, name = socket.AF_UNIX, '\0ckpt-busy-%d' % os.getpid()
else: family, name = socket.AF_INET, ('127.0.0.1', 0)
s = make_listening(family, name)
name = s.getsockname()
servers = []
if kind == 'threads':
    threading.Thread(target=serve, args=(s,), daemon=True).start()
    clients = [threading.Thread(target=be_client, args=(i, family, name)) for i in range(CLIENTS)]
    for t in clients: t.start()
    print('up', flush=True)
    for t in clients: t.join()
else:
    for _ in range(3 if kind == 'workers' else 1): servers.append(process(serve, s, kind == 'forking'))
    if kind == 'proxy':
        front = make_listening(socket.AF_UNIX, 'front')
        for _ in range(2): servers.append(process(forward, front, name))
        family, name = socket.AF_UNIX, 'front'
        front.close()
    s.close()
    clients = [process(be_client, i, family, name) for i in range(CLIENTS)]
    with open('last client', 'w') as f: f.write(str(clients[-1]))
    print('up', flush=True)
    for p in clients:
        if os.waitpid(p, 0)[1] != 0: fail('a client ended')
    for p in servers:
        os.kill(p, signal.SIGKILL)
        os.waitpid(p, 0)
counts = struct.unpack_from('8I', last)
print('right' if min(counts) > 0 else 'WRONG %r' % (counts,), flush=True)
"""


class Busy(unittest.TestCase):
    def started(self, kind):
        job_tree.enter_own_network()
        tree = Tree("busy-" + kind, ["/usr/bin/python3", "-c", PROGRAM, kind])
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: tree.output() == b"up\n" or tree.child.poll() is not None, "the program")
        return tree

    def check(self, kind, checkpoints=3):
        tree = self.started(kind)
        images = [tree.checkpoint(tree.child.pid) for _ in range(checkpoints)]
        for image in images[-2:]:  # older ones are gone
            tree.kill()
            pid = root_of(tree.restart(image))
        tree.checkpoint(pid)
        self.ends_right(tree)

    def ends_right(self, tree):
        with open(os.path.join(tree.work, "end"), "wb"):
            pass
        code, output = tree.finish()
        self.assertEqual((code, output.replace(b"up\n", b"")), (0, b"right\n"), tree.said())

    def led_by_the_last_client(self, point, how):
        """It stops or dies at that point of the attempt which holds connections: the others are served all the same."""
        os.environ["JOB_TREE_SETTINGS"] = f"CKPT_TEST_POINT={point}={how}"
        self.addCleanup(os.environ.pop, "JOB_TREE_SETTINGS", None)
        tree = self.started("tcp")
        with open(os.path.join(tree.work, "last client"), encoding="utf-8") as f:
            leader = int(f.read())
        askers = []

        def comes_there():
            # A checkpoint that finds each connection accepted, as it may, holds none: it does not come to the point.
            if not askers or askers[-1].poll() == 0 and not self.stands_or_ended(leader):
                askers.append(subprocess.Popen([job_tree.CKPT, "now", str(leader)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                self.addCleanup(askers[-1].wait)
                self.addCleanup(askers[-1].kill)
            return self.stands_or_ended(leader)

        wait_for(comes_there, point)
        before = self.served(tree)
        # More than could have been under way: each of seven clients has one request at a time.
        wait_for(lambda: self.served(tree) > before + 20, "requests are answered")
        if how == "stop":
            os.kill(leader, signal.SIGCONT)
        self.assertEqual(askers[-1].wait(job_tree.PATIENCE) == 0, how == "stop")
        if how == "stop":
            tree.checkpoint(leader)  # it comes to the point for the second time
            self.ends_right(tree)

    @staticmethod
    def stands_or_ended(pid):
        """Its first thread may wait for a page in the middle of a system call; that one runs on in the kernel until the page is there."""
        states = [job_tree.state_of(f"{pid}/task/{tid}") for tid in os.listdir(f"/proc/{pid}/task")]
        return "T" in states or set(states) <= {"Z"}

    @staticmethod
    def served(tree):
        with open(os.path.join(tree.work, "served"), encoding="ascii") as f:
            return int(f.read() or 0)

    def test_leader_that_stops(self):
        for point in ("coordinator.connects", "coordinator.accepts"):
            with self.subTest(point=point):
                self.led_by_the_last_client(point, "stop")

    def test_leader_that_is_killed(self):
        for point in ("coordinator.connects", "coordinator.accepts"):
            with self.subTest(point=point):
                self.led_by_the_last_client(point, "kill")

    def test_signals_that_end_connect(self):
        self.check("signals")

    def test_tcp(self):
        self.check("tcp")

    def test_unix(self):
        self.check("unix")

    def test_abstract(self):
        self.check("abstract")

    def test_threads_of_one_process(self):
        self.check("threads")

    def test_server_that_forks(self):
        self.check("forking")

    def test_several_workers(self):
        self.check("workers")

    def test_proxy(self):
        self.check("proxy")

    def test_calls_with_a_time_limit(self):
        self.check("limited")

    def test_clients_made_for_each_request(self):
        self.check("young")


job_tree.adopt_orphans()
if __name__ == "__main__":
    unittest.main()
