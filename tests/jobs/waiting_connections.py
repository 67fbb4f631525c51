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
import errno, json, os, socket, struct, sys, time

def client(family, server, port):
    c = socket.socket(family)
    c.settimeout(60)
    if port: c.bind((host, port))
    c.connect((host if server[0] == '::' else server[0], server[1]))
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

# Connections that wait in all these, without clients that could answer.
def accept_gone(listening):
    got = []
    for s in listening:
        while True:
            try: a, peer = s.accept()
            except BlockingIOError: break
            a.settimeout(60)
            try: end = a.recv(9).decode()
            except OSError as e: end = errno.errorcode[e.errno]
            got.append([peer[1], peer[0], end])
    return sorted(got)

def leave(how, clients):
    for c in clients:
        if how == 'half': c.shutdown(socket.SHUT_WR)
        if how == 'bytes': c.send(b'x')
        if how == 'reset': c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        if how != 'half': c.close()

family, host = (socket.AF_INET6, '::1' if sys.argv[1] == 'six' else '::ffff:127.0.0.1') if sys.argv[1] != 'four' else (socket.AF_INET, '127.0.0.1')
how, _, port = sys.argv[2].partition(':')
def listening(name):
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, how == 'group')
    s.bind(name)
    s.listen(16)
    s.setblocking(False)
    return s
ports = [int(p) for p in sys.argv[3:]]
tried = []  # The kernel may choose one that a client is to have.
while not tried or tried[-1].getsockname()[1] in ports: tried.append(listening(('::' if sys.argv[1] == 'mapped' else host, int(port or 0))))
s = tried.pop()
for other in tried: other.close()
group = [s] + ([listening(s.getsockname()) for _ in range(3)] if how == 'group' else [])
parts = [ports[0::2], ports[1::2]] if how == 'processes' else [ports]
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
how = {'group': 'closed', 'alone': '', 'processes': ''}.get(how, how)
if how: leave(how, clients)
print('up', flush=True)
wait_for('go')
results = accept_gone(group) if how else accept_all(s, clients)
if how == 'half':
    for c in clients: results.append([c.getsockname()[1], c.recv(9).decode()])
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
        # Another run's connections hold the ports for a minute.
        if ":" not in arguments[1]:
            job_tree.enter_own_network()
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

    def come_back_gone(self, family, how, ports, uid=0):
        """As come_back(): what the program would have accepted without any checkpoint."""
        plain = self.started(family, how, *ports, uid=uid)
        expected = self.results(plain)
        self.assertEqual(len([e for e in expected if len(e) == 3]), len(ports))
        plain.kill()
        tree, image = self.image_of(family, how, *ports, uid=uid)
        self.assertEqual([row[1:] for row in self.results(tree)], [row[1:] for row in expected], "in the program that went on")
        tree = self.started(family, how, *ports, uid=uid)
        image = tree.checkpoint(tree.child.pid)
        for _ in range(2):
            tree.kill()
            report = tree.restart(image)
            image = tree.checkpoint(job_tree.root_of(report))
        got = self.results(tree)
        self.assertEqual([row[1:] for row in got], [row[1:] for row in expected], tree.said())
        return got, expected, report

    def come_back_closed(self, family, how, ports, uid=0):
        got, expected, _ = self.come_back_gone(family, how, ports, uid)
        self.assertEqual([row[0] for row in got if row[0] in ports], [row[0] for row in expected if row[0] in ports])

    def test_closed_by_their_clients(self):
        self.come_back_closed("four", "closed", BELOW + ABOVE + IN + CHOSEN)

    def test_closed_by_their_clients_as_user(self):
        self.come_back_closed("four", "closed", BELOW + ABOVE + IN + CHOSEN, NOBODY)

    def test_closed_by_their_clients_of_ipv6(self):
        self.come_back_closed("six", "closed", BELOW + ABOVE + IN + CHOSEN)

    def test_closed_by_their_clients_of_ipv4_in_ipv6(self):
        self.come_back_closed("mapped", "closed", BELOW + ABOVE + IN + CHOSEN)

    def test_closed_by_their_clients_in_a_group(self):
        """Of several sockets with one port each is told of by one alone."""
        self.come_back_closed("four", "group", BELOW + ABOVE + IN + CHOSEN)

    def test_another_program_at_the_same_port(self):
        """Its connections are its own, at the checkpoint and at the restart."""
        job_tree.enter_own_network()
        with socket.create_server(("127.0.0.2", 0)) as other:
            other.setblocking(False)
            port = other.getsockname()[1]
            client = socket.create_connection(other.getsockname())
            client.close()
            tree = self.started("four", f"closed:{port}", *CHOSEN)
            image = tree.checkpoint(tree.child.pid)
            tree.kill()
            other.accept()[0].close()
            tree.restart(image)
            self.assertEqual([row[2] for row in self.results(tree)], ["", ""], tree.said())
            self.assertRaises(BlockingIOError, other.accept)

    def test_half_closed(self):
        self.come_back_closed("four", "half", BELOW + ABOVE + IN + CHOSEN)

    def test_reset_by_their_clients(self):
        self.come_back_gone("four", "reset", CHOSEN + CHOSEN)

    def test_bytes_of_clients_that_are_gone_are_refused(self):
        tree = self.started("four", "bytes", *CHOSEN)
        with self.assertRaisesRegex(AssertionError, "exit code 76: (?s:.*)what it has written can be read by nobody"):
            tree.checkpoint(tree.child.pid)

    def test_ports_of_every_kind(self):
        self.come_back("four", BELOW + ABOVE + IN + CHOSEN)

    def test_ports_of_every_kind_as_user(self):
        self.come_back("four", BELOW + ABOVE + IN + CHOSEN, NOBODY)

    def test_ports_of_every_kind_of_ipv6(self):
        self.come_back("six", BELOW + ABOVE + IN + CHOSEN)


job_tree.adopt_orphans()
if __name__ == "__main__":
    unittest.main()
