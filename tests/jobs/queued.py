#!/usr/bin/env python3
"""What waits in queues of which the kernel shows little: messages without a byte, connections whose clients have ended their streams
or are gone before the program has accepted them. The same in the program that goes on, after several checkpoints, and after restarts."""
import json
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY, Tree, wait_for

PROGRAM = r"""
import json, os, socket, struct, sys, time

results, cases = {}, []
def case(name):
    # Connections are those of which the name has a colon.
    def add(make):
        if (':' in name) == (sys.argv[2] == 'connections'): cases.append((name, make()))
    return add

def all_of(receive, most=40):
    # Every message that waits, then why there is no more.
    got = []
    while len(got) < most:
        try: got.append(receive())
        except OSError as e:
            got.append(e.errno)
            break
    return got

def text(s): return lambda: s.recv(99, socket.MSG_DONTWAIT).decode()

MESSAGES = {'first': [b'', b'a'], 'between': [b'a', b'', b'b', b'', b''], 'alone': [b''], 'several': [b'', b'', b''], 'last': [b'a', b'']}
for kind, type in (('dgram', socket.SOCK_DGRAM), ('seqpacket', socket.SOCK_SEQPACKET)):
    for which, messages in MESSAGES.items():
        @case(f'unix {kind} {which}')
        def _():
            a, b = socket.socketpair(socket.AF_UNIX, type)
            for m in messages: a.send(m)
            def finish(keep=a): return all_of(text(b))
            return finish

@case('packets behind which the stream has ended')
def _():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for m in (b'a', b'', b'b', b''): a.send(m)
    a.close()
    return lambda: all_of(text(b), 8)

for which, messages in MESSAGES.items():
    @case(f'udp {which}')
    def _():
        b = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        b.bind(('127.0.0.1', 0))
        senders = []
        for m in messages:
            a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            a.bind(('127.0.0.1', 0))
            a.sendto(m, b.getsockname())
            senders.append(a)
        names = {a.getsockname(): i for i, a in enumerate(senders)}
        def receive():
            data, sender = b.recvfrom(99, socket.MSG_DONTWAIT)
            return data.decode(), names.get(sender)
        return lambda keep=senders: all_of(receive)

# Some are received between checkpoints.
@case('taken from in between')
def _():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for m in (b'0', b'', b'1', b'', b'2', b'', b'3', b''): a.send(m)
    def between(): return [b.recv(99).decode() for _ in range(3)]
    between.finish = lambda keep=a: all_of(text(b))
    return between

# The same of UDP, while messages come from others: each with its own sender, also the one that takes the place of
# another in what is remembered.
@case('udp, taken from while others send')
def _():
    b = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    b.bind(('127.0.0.1', 0))
    senders = []
    def send(message):
        a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        a.bind(('127.0.0.1', 0))
        a.sendto(message, b.getsockname())
        senders.append(a)
    for m in (b'', b'D1', b'', b'D2', b'', b'D3'): send(m)
    def receive():
        data, sender = b.recvfrom(99, socket.MSG_DONTWAIT)
        return data.decode(), [a.getsockname() for a in senders].index(sender)
    def between():
        got = [receive() for _ in range(2)]
        for m in (b'', b'D4'): send(m)
        return got
    between.finish = lambda: all_of(receive)
    return between

def listener(family, name):
    s = socket.socket(family)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a user has no port again in less than a minute
    s.bind(name)
    s.listen(8)
    return s

for kind, family, name in (('unix', socket.AF_UNIX, '\0queued%d' % os.getpid()), ('tcp', socket.AF_INET, ('127.0.0.1', 0)),
                           ('tcp6', socket.AF_INET6, ('::1', 0))):
    @case(f'{kind}: half closed before it is accepted')
    def _():
        s = listener(family, name)
        clients = []
        for ends in (True, False, True):
            c = socket.socket(family)
            c.connect(s.getsockname())
            if ends: c.shutdown(socket.SHUT_WR)
            clients.append(c)
        def finish():
            got = []
            for _ in clients:
                a, _ = s.accept()
                try: got.append(a.recv(9, socket.MSG_DONTWAIT).decode())
                except OSError as e: got.append(e.errno)
                a.send(b'to you')
            return sorted(map(str, got)) + [c.recv(9).decode() for c in clients]
        return finish

for kind, family, host in (('tcp', socket.AF_INET, '127.0.0.1'), ('tcp6', socket.AF_INET6, '::1'),
                           ('mapped', socket.AF_INET6, '::ffff:127.0.0.1')):
    @case(f'{kind}: closed before it is accepted')
    def _():
        s = listener(family, (host if kind != 'mapped' else '::', 0))
        ports = []
        for _ in range(3):
            c = socket.socket(family)
            c.connect((host, s.getsockname()[1]))
            ports.append(c.getsockname()[1])
            c.close()
        stays = socket.create_connection((host, s.getsockname()[1]))
        def finish():
            got, s_ports = [], []
            for _ in range(4):
                a, peer = s.accept()
                s_ports.append(peer[1])
                try: got.append(a.recv(9, socket.MSG_DONTWAIT).decode())
                except OSError as e: got.append(e.errno)
            s.setblocking(False)
            return [sorted(map(str, got)), all_of(lambda: str(s.accept())), len(set(s_ports))]
        return lambda keep=stays: finish()

for kind, family, host in (('tcp', socket.AF_INET, '127.0.0.1'), ('tcp6', socket.AF_INET6, '::1')):
    @case(f'{kind}: reset before it is accepted')
    def _():
        s = listener(family, (host, 0))
        for _ in range(2):
            c = socket.socket(family)
            c.connect(s.getsockname())
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
            c.close()
        s.setblocking(False)
        def read():
            a, peer = s.accept()
            try: return peer[0], a.recv(9, socket.MSG_DONTWAIT).decode()
            except OSError as e: return peer[0], e.errno
        return lambda: all_of(read)

# Has every socket too, and looks at it in each checkpoint.
if sys.argv[1] == 'child' and os.fork() == 0:
    while True: time.sleep(1)
print('up', flush=True)
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.005)
wait_for('between')
for i, (name, finish) in enumerate(cases):
    if not hasattr(finish, 'finish'): continue
    results[name + ', between'] = finish()
    cases[i] = (name, finish.finish)
print('between', flush=True)
wait_for('go')
for name, finish in cases:
    try: results[name] = finish()
    except Exception as e: results[name] = {'error': repr(e)}
with open('results.tmp', 'w') as f: json.dump(results, f)
os.rename('results.tmp', 'results')
"""

EVENTS = r"""
import ctypes, json, os, struct, time
libc = ctypes.CDLL(None)
inotify = libc.inotify_init1(os.O_NONBLOCK)
def write():
    with open('watched', 'a') as f: f.write('x')
write()
libc.inotify_add_watch(inotify, b'watched', 2)
write()
def events():
    try: got = os.read(inotify, 4096)
    except OSError as e: return e.errno
    return [struct.unpack_from('iI', got, at) for at in range(0, len(got), 16)]
print('up', flush=True)
while not os.path.exists('go'): time.sleep(0.005)
results = {'waiting': events()}
write()
results['then'] = events()
with open('results.tmp', 'w') as f: json.dump(results, f)
os.rename('results.tmp', 'results')
"""


class Queued(unittest.TestCase):
    maxDiff = None

    def tell(self, tree, name):
        open(os.path.join(tree.work, name), "w").close()

    def results(self, tree):
        self.tell(tree, "go")
        path = os.path.join(tree.work, "results")
        wait_for(lambda: os.path.exists(path) or tree.child.poll() is not None, "the results")
        self.assertTrue(os.path.exists(path), tree.said())
        with open(path, encoding="utf-8") as f:
            got = json.load(f)
        os.remove(path)
        os.remove(os.path.join(tree.work, "go"))
        return got

    def started(self, what, who, uid, program=PROGRAM):
        tree = Tree("queued", ["/usr/bin/python3", "-c", program, who, what], uid=uid)
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: tree.output() == b"up\n", "the program")
        return tree

    def what_waits(self, what, who="alone", uid=0):
        plain = self.started(what, who, uid)
        self.tell(plain, "between")
        expected = self.results(plain)
        plain.kill()  # the child outlives its parent
        self.assertEqual([v for v in expected.values() if isinstance(v, dict)], [])
        tree = self.started(what, who, uid)
        root = tree.child.pid
        for _ in range(2):
            tree.checkpoint(root)
        self.tell(tree, "between")
        wait_for(lambda: tree.output() == b"up\nbetween\n", "what is between")
        image = tree.checkpoint(root)
        self.assertEqual(self.results(tree), expected, "in the program that went on")
        tree.kill()
        root = job_tree.root_of(tree.restart(image))
        image = tree.checkpoint(root)
        image = tree.checkpoint(root)
        tree.kill()
        tree.restart(image)
        self.addCleanup(tree.kill)
        self.assertEqual(self.results(tree), expected, "after the restarts")

    def events_are_lost(self, uid=0):
        tree = self.started("", "", uid, EVENTS)
        root = tree.child.pid
        for _ in range(2):
            image = tree.checkpoint(root)
            self.assertEqual(["IN_Q_OVERFLOW" in n for n in tree.cost["notes"]], [True], tree.cost)
            tree.kill()
            root = job_tree.root_of(tree.restart(image))
        self.assertEqual(self.results(tree), {"waiting": [[-1, 0x4000]], "then": [[1, 2]]})

    def test_events(self):
        self.events_are_lost()

    def test_events_of_a_user(self):
        self.events_are_lost(NOBODY)

    def test_messages(self):
        self.what_waits("messages")

    def test_messages_of_a_user(self):
        self.what_waits("messages", uid=NOBODY)

    def test_messages_in_sockets_of_two_processes(self):
        self.what_waits("messages", "child")

    def test_messages_in_sockets_of_two_processes_of_a_user(self):
        self.what_waits("messages", "child", NOBODY)

    def test_connections(self):
        self.what_waits("connections")

    def test_connections_of_a_user(self):
        self.what_waits("connections", uid=NOBODY)


job_tree.adopt_orphans()
if __name__ == "__main__":
    unittest.main()
