#!/usr/bin/env python3
"""Who is at the other end of a Unix socket (SO_PEERCRED), and who sent a message (SCM_CREDENTIALS): the processes of a job say
the same of each other after a restart, also of one that has ended since."""
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY
from odd_objects import COMMON, come_back

PROGRAM = COMMON + r"""
def maker_of(s): return struct.unpack('iII', s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))

def change_user():
    if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)

# Made before the fork: both ends name the parent.
before_fork, for_child = socket.socketpair()
facts['a pair that was made before the fork'] = lambda: maker_of(before_fork)

# The parent listens at one, a child connects to it as another user; a child listens, the parent connects.
server = socket.socket(socket.AF_UNIX)
server.bind('\0peer' + str(os.getpid()))
server.listen()
sent, receiving = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
receiving.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
stream_out, stream_in = socket.socketpair()
stream_in.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
told, tells = socket.socketpair()

def lives():
    change_user()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind('\0child' + str(os.getpid()))
    listener.listen()
    client = socket.socket(socket.AF_UNIX)
    client.connect(server.getsockname())
    mine, yours = socket.socketpair()
    sent.send(b'a datagram')
    stream_out.send(b'a stream')
    socket.send_fds(tells, [listener.getsockname()], [yours.fileno()])
    with socket.socket(socket.AF_UNIX) as other:
        accepted = listener.accept()[0]
        facts.clear()
        for name, s in (('client', client), ('its pair', mine), ('accepted', accepted), ('listener', listener), ('inherited', for_child)):
            facts[name] = lambda s=s: maker_of(s)
        tell('inherited.before')
        while not os.path.exists('go'): time.sleep(0.005)
        tell('inherited.after')
        tells.recv(1)

os.chmod('.', 0o777)
pid = child(lives)
accepted = server.accept()[0]
name, fds, _, _ = socket.recv_fds(told, 100, 1)
from_child = socket.socket(fileno=fds[0])
client = socket.socket(socket.AF_UNIX)
client.connect(name)

# One that makes a pair and ends.
def ends():
    a, b = socket.socketpair()
    socket.send_fds(tells, [b'x'], [a.fileno(), b.fileno()])
ended = child(ends)
of_ended = [socket.socket(fileno=fd) for fd in socket.recv_fds(told, 1, 2)[1]]
os.waitpid(ended, 0)

for what, s in (('server', server), ('accepted', accepted), ('client', client), ('pair of the child', from_child),
                ('pair of one that has ended', of_ended[0]), ('its other end', of_ended[1])):
    facts[what] = lambda s=s: maker_of(s)
facts['they are what they should be'] = lambda: [maker_of(s)[0] - base for s, base in ((accepted, pid), (client, pid), (of_ended[0], ended))]
def sender(s):
    message, control, _, _ = s.recvmsg(100, 100)
    level, kind, value = control[0]
    return message.decode(), kind == socket.SCM_CREDENTIALS, struct.unpack('iII', value)[0] - pid
last['who sent the datagram'] = lambda: sender(receiving)
last['who sent the stream'] = lambda: sender(stream_in)
while not os.path.exists('inherited.before'): time.sleep(0.005)
live()
while not os.path.exists('inherited.after'): time.sleep(0.005)
told.send(b'x')
os.waitpid(pid, 0)
"""


class PeerCredentials(unittest.TestCase):
    def come_back(self, name, uid=0):
        told = come_back(self, name, PROGRAM, uid, options=[] if uid else ["--trust"])
        self.assertEqual(told["before"]["they are what they should be"], [0, 0, 0])
        self.assertEqual(told["inherited.before"], told["inherited.after"])
        self.assertEqual(told["last"], {"who sent the datagram": ["a datagram", True, 0],
                                        "who sent the stream": ["a stream", True, 0]})

    def test_as_root(self):
        self.come_back("peer-credentials")

    # In a new user and pid namespace.
    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_as_user(self):
        self.come_back("peer-credentials-user", NOBODY)


job_tree.adopt_orphans()

if __name__ == "__main__":
    job_tree.enter_own_network()
    unittest.main()
