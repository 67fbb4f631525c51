#!/usr/bin/env python3
"""TCP connections that wait to be accepted: as many as waited, each from the port that it came from, with its client or without one.
The same in the program that goes on, after several checkpoints, and after restarts."""
import json
import os
import socket
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY, Tree, wait_for

PROGRAM = r"""
import errno, json, os, socket, sys, time

def client(family, server, port):
    c = socket.socket(family)
    c.settimeout(60)
    if port: c.bind((server[0], port))
    c.connect(server[:2])
    return c

# What waits, then why there is no more. Each client is asked which connection is its own.
def accept_all(s, clients):
    got = []
    while True:
        try: a, peer = s.accept()
        except BlockingIOError: break
        a.settimeout(60)
        own = [c for c in clients if c.getsockname()[1] == peer[1]]
        if not own: answer = 'nobody'
        else:
            a.send(b'to you')
            own[0].send(b'back')
            answer = [own[0].recv(9).decode(), a.recv(9).decode()]
        got.append([peer[1], answer])
    return got

family, host = (socket.AF_INET6, '::1') if sys.argv[1] == 'six' else (socket.AF_INET, '127.0.0.1')
s = socket.socket(family)
s.bind((host, 0))
s.listen(16)
s.setblocking(False)
ports = [int(p) for p in sys.argv[3:]]
parts = [ports[0::2], ports[1::2]] if sys.argv[2] == 'processes' else [ports]
up = []
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.005)
if len(parts) > 1:
    # Clients of another process: what it hears it writes into a file.
    r, w = os.pipe()
    if os.fork() == 0:
        name = s.getsockname()
        s.close()
        clients = [client(family, name, p) for p in parts[1]]
        os.write(w, b'x')
        wait_for('go')
        for c in clients:
            c.send(b'back')
            with open('heard.%d' % c.getsockname()[1], 'w') as f: f.write(c.recv(9).decode())
        time.sleep(999)
    os.read(r, 1)
clients = [client(family, s.getsockname(), p) for p in parts[0]]
print('up', flush=True)
wait_for('go')
results = accept_all(s, clients)
with open('results.tmp', 'w') as f: json.dump(results, f)
os.rename('results.tmp', 'results')
"""

BELOW = [20001, 20003, 20005]
ABOVE = [62001, 62003]
IN = [40001, 40003]
CHOSEN = [0, 0]


class Waiting(unittest.TestCase):
    maxDiff = None

    def started(self, *arguments, uid=0):
        tree = Tree("waiting", ["/usr/bin/python3", "-c", PROGRAM, *map(str, arguments)], uid=uid)
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: tree.output() == b"up\n" or tree.child.poll() is not None, "the program")
        self.assertEqual(tree.output(), b"up\n", tree.said())
        return tree

    def results(self, tree):
        go, path = (os.path.join(tree.work, n) for n in ("go", "results"))
        open(go, "w").close()
        wait_for(lambda: os.path.exists(path) or tree.child.poll() is not None, "the results")
        self.assertTrue(os.path.exists(path), tree.said())
        with open(path, encoding="utf-8") as f:
            got = json.load(f)
        os.remove(path)
        os.remove(go)
        return got

    def image_of(self, *arguments, uid=0):
        tree = self.started(*arguments, uid=uid)
        image = tree.checkpoint(tree.child.pid)
        return tree, image

    def come_back(self, family, ports, uid=0):
        """Twice: once from the image of the program, once from an image of what came back."""
        tree, image = self.image_of(family, "alone", *ports, uid=uid)
        for _ in range(2):
            tree.kill()
            root = job_tree.root_of(tree.restart(image))
            image = tree.checkpoint(root)
            got = self.results(tree)
            self.assertEqual([answer for _, answer in got], [["to you", "back"]] * len(ports), tree.said())
            self.assertEqual([port for (port, _), wanted in zip(got, ports) if wanted], [p for p in ports if p], tree.said())

    def test_a_port_that_another_program_has(self):
        """The connection has another port then, and a line says so."""
        tree, image = self.image_of("four", "alone", *BELOW, *IN)
        tree.kill()
        taken = [BELOW[1], IN[0]]
        sockets = [socket.socket() for _ in taken]
        for s, port in zip(sockets, taken):
            s.bind(("127.0.0.1", port))
        try:
            report = tree.restart(image)
            got = self.results(tree)
        finally:
            for s in sockets:
                s.close()
        self.assertEqual([answer for _, answer in got], [["to you", "back"]] * 5, tree.said())
        self.assertEqual([port in taken for port, _ in got], [False] * 5)
        self.assertEqual([port for port, _ in got if port in BELOW + IN], [p for p in BELOW + IN if p not in taken])
        for port in taken:
            self.assertIn(f"port {port} cannot be had again", "\n".join(report["notes"]))

    def test_clients_of_two_processes(self):
        tree, image = self.image_of("four", "processes", *BELOW, *IN, *ABOVE)
        tree.kill()
        tree.restart(image)
        ports = BELOW + IN + ABOVE
        got = dict(self.results(tree))
        self.assertEqual(got, {p: "nobody" if i % 2 else ["to you", "back"] for i, p in enumerate(ports)}, tree.said())

    def test_ports_of_every_kind(self):
        self.come_back("four", BELOW + ABOVE + IN + CHOSEN)

    def test_ports_of_every_kind_as_user(self):
        self.come_back("four", BELOW + ABOVE + IN + CHOSEN, NOBODY)

    def test_ports_of_every_kind_of_ipv6(self):
        self.come_back("six", BELOW + ABOVE + IN + CHOSEN)


job_tree.adopt_orphans()
job_tree.enter_own_network()
if __name__ == "__main__":
    unittest.main()
