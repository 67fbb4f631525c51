#!/usr/bin/env python3
"""Facts that no look at a single object shows, each lost without a word once. As odd_objects.py: what the programs say before the
checkpoint they say after the restart."""
import json
import os
import resource
import shutil
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY, Tree
from odd_objects import COMMON, come_back, wait_for

LOCKS = COMMON + r"""
import threading
def lock_of(path):
    f = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try: return error_of(fcntl.flock, f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally: os.close(f)
def send_locked(socket_of_it):
    sent = os.open('sent', os.O_RDWR | os.O_CREAT)
    fcntl.flock(sent, fcntl.LOCK_EX)
    sealed = os.memfd_create('sent', os.MFD_ALLOW_SEALING)
    fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    socket.send_fds(socket_of_it, [b's'], [sent, sealed])
    os.close(sent)
    os.close(sealed)
facts['lock of one that was sent'] = lambda: lock_of('sent')
"""

ALONE = LOCKS + r"""
# flock(2) takes whatever is open.
os.mkdir('locked')
os.mkfifo('fifo')
held = [os.open('locked', os.O_RDONLY), os.open('fifo', os.O_RDWR), os.memfd_create('locked')]
for f in held: fcntl.flock(f, fcntl.LOCK_EX)
facts['locks'] = lambda: [lock_of('locked'), lock_of('fifo'), lock_of(f'/proc/self/fd/{held[2]}')]
here, there = socket.socketpair()
send_locked(here)
last['seals of one that was sent'] = lambda: fcntl.fcntl(socket.recv_fds(there, 1, 2)[1][1], fcntl.F_GET_SEALS)

# What waits is sent again at the restart: it does not show.
listener = socket.create_server(('127.0.0.1', 0))
def connected():
    client = socket.create_connection(listener.getsockname())
    return client, listener.accept()[0]
client, server = connected()
client.sendall(b'waits')
facts['delay'] = lambda: (client.getsockopt(6, socket.TCP_NODELAY), server.getsockopt(6, socket.TCP_NODELAY))

# The urgent byte was taken, what is before its mark and behind it was not.
sender, receiver = connected()
sender.sendall(b'ab')
sender.send(b'!', socket.MSG_OOB)
select.select([], [], [receiver])
receiver.recv(1, socket.MSG_OOB)
sender.sendall(b'cd')
receiver.setsockopt(1, socket.SO_RCVLOWAT, 4)
select.select([receiver], [], [])
receiver.setsockopt(1, socket.SO_RCVLOWAT, 1)
receiver.setblocking(False)
def pieces(): return [error_of(receiver.recv, 9) for _ in range(2)]
last['around the mark'] = pieces

# The name by which it was connected is another socket's now, of another type.
named = socket.socket(socket.AF_UNIX)
named.bind('name')
named.listen()
by_name = socket.socket(socket.AF_UNIX)
by_name.bind('client')
by_name.connect('name')
accepted = named.accept()[0]
named.close()
os.unlink('name')
packets = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
packets.bind('name')
packets.listen()
facts['names'] = lambda: (by_name.getpeername(), accepted.getpeername(), accepted.getsockname(), packets.getsockname())
def by_both():
    by_name.send(b'stream')
    new = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    new.connect('name')
    new.send(b'packet')
    return [str(accepted.recv(9)), str(packets.accept()[0].recv(9))]
last['by one name'] = by_both

# Options: of who asks the kernel itself, of how it tells the time, of who may have the port too.
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
link.setsockopt(1, socket.SO_PASSCRED, 1)
server.setsockopt(1, socket.SO_REUSEPORT, 1)
told = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
options_of_told = ((1, 41), (1, 43), (1, 63), (1, 82), (41, 2), (41, 3), (41, 4), (41, 5), (41, 8), (41, 30))
for level, name in options_of_told: error_of(told.setsockopt, level, name, 1)
error_of(client.setsockopt, 1, 11, 1)
error_of(client.setsockopt, 6, 34, 1)
error_of(client.setsockopt, 1, 74, 0)
error_of(client.setsockopt, 6, 37, 100)
facts['options'] = lambda: [option(link, 1, socket.SO_PASSCRED), option(server, 1, socket.SO_REUSEPORT), option(client, 1, 74), option(client, 6, 37),
                            option(client, 1, 11), option(client, 6, 34), *(option(told, level, name) for level, name in options_of_told)]

# Sockets that share an address have each what it had.
def of_group(option, name, members):
    made = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(members)]
    for s in made:
        s.setsockopt(1, option, 1)
        s.bind((name, made[0].getsockname()[1]))
        s.setblocking(False)
    return made
def taken(s):
    got = []
    while (one := error_of(s.recv, 9)) != 'EAGAIN': got.append(one)
    return got
workers = of_group(socket.SO_REUSEPORT, '127.0.0.1', 3)
senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(12)]
for n, s in enumerate(senders): s.sendto(str(n).encode(), workers[0].getsockname())
facts['who has some'] = lambda: [bool(select.select([s], [], [], 0)[0]) for s in workers]
last['of the workers'] = lambda: sorted(sum((taken(s) for s in workers), []))
audience = of_group(socket.SO_REUSEADDR, '', 2)
for s in audience: s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton('239.77.1.3') + socket.inet_aton('127.0.0.1'))
senders[0].setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('127.0.0.1'))
for n in range(2): senders[0].sendto(str(n).encode(), ('239.77.1.3', audience[0].getsockname()[1]))
last['of the audience'] = lambda: [taken(s) for s in audience]

# A program of the group's own chooses by the first byte who gets a datagram; nobody can ask for it. The last one counts,
# whichever of the sockets it was set on; one that was taken away does not, nor one that the kernel has refused.
def choose(s, *code):
    program = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *i) for i in code))
    s.setsockopt(1, 51, struct.pack('HxxxxxxQ', len(code), ctypes.addressof(program)))
LOAD, GIVE = (0x30, 0, 0, 0), (0x16, 0, 0, 0)
chosen, unchosen = (of_group(socket.SO_REUSEPORT, '127.0.0.1', 3) for _ in range(2))
choose(chosen[2], (0x06, 0, 0, 0))
choose(chosen[0], LOAD, (0x14, 0, 0, 0x30), GIVE)
error_of(choose, chosen[1], (0xffff, 0, 0, 0))
choose(unchosen[0], (0x06, 0, 0, 1))
unchosen[1].setsockopt(1, 68, 0)  # another of the group
def by_choice():
    for n in range(6): senders[0].sendto(str(n % 3).encode(), chosen[0].getsockname())
    return awaited(chosen, 6)
def awaited(members, count):
    got = [[] for _ in members]
    while count > 0 and (ready := select.select(members, [], [], 20)[0]):
        for s in ready: got[members.index(s)].append(s.recv(9).decode())
        count -= len(ready)
    return got
facts['by choice'] = by_choice
def by_the_kernel():
    for s in senders: s.sendto(b'k', unchosen[0].getsockname())
    return [len(got) for got in awaited(unchosen, len(senders))]
last['by nobody'] = lambda: max(by_the_kernel()) < len(senders)
last['still by choice'] = by_choice

# A nice value that the policy has no use for.
def idle():
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 9))  # an ordinary user may not take it back
    is_idle.set()
    threading.Event().wait()
is_idle = threading.Event()
idler = threading.Thread(target=idle, daemon=True)
idler.start()
is_idle.wait()
facts['nice'] = lambda: (os.sched_getscheduler(idler.native_id), os.getpriority(os.PRIO_PROCESS, idler.native_id))

# Whom signals of a file go to: a thread; nobody yet.
ends = os.pipe()
fcntl.fcntl(ends[0], 15, struct.pack('ii', 0, idler.native_id))
fcntl.fcntl(ends[1], 10, signal.SIGUSR2)
facts['owner'] = lambda: (struct.unpack('ii', fcntl.fcntl(ends[0], 16, bytes(8))) == (0, idler.native_id), fcntl.fcntl(ends[1], 11), fcntl.fcntl(ends[1], 9))

# An rseq area of the program's own, instead of libc's.
signature, own, pointer = 0x53053053, mmap.mmap(-1, 4096), ctypes.c_long()
area = ctypes.addressof(ctypes.c_char.from_buffer(own))
def of_libc(name, kind): return kind.in_dll(ctypes.CDLL('libc.so.6'), name).value
libc.syscall(158, 0x1003, ctypes.byref(pointer))
try:
    size = max(32, of_libc('__rseq_size', ctypes.c_uint))
    unregistered = libc.syscall(334, ctypes.c_long(pointer.value + of_libc('__rseq_offset', ctypes.c_long)), size, 1, signature)
except ValueError: unregistered = 0
if unregistered == 0: libc.syscall(334, ctypes.c_long(area), 32, 0, signature)
facts['rseq'] = lambda: (unregistered, libc.syscall(334, ctypes.c_long(area), 32, 0, signature), ctypes.get_errno())
live()
"""

# Children that send another signal than SIGCHLD, or none, at their end. One has ended.
TREE = LOCKS + r"""
kClone = -0x80000000
came = []
signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
def child(end_signal, work):
    pid = libc.syscall(56, end_signal, 0, 0, 0, 0)
    if pid == 0:
        work()
        os._exit(7)
    return pid
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.005)
def sends():
    send_locked(here)
    here.close()
    open('sent by child', 'w').close()
    wait_for('end')
    os.read(socket.recv_fds(for_child, 1, 1)[1][0], 3)
here, there = socket.socketpair()

# One that waits for the child, and that its sender has as well, is one open file.
for_child, to_child = socket.socketpair()
kept = os.open('kept', os.O_RDWR | os.O_CREAT)
os.write(kept, b'0123456789')
os.lseek(kept, 2, os.SEEK_SET)
socket.send_fds(to_child, [b'k'], [kept])

# What this epoll watches the child has; here its number leads to something else.
watched, other_end = socket.socketpair()
epoll = select.epoll()
number = watched.fileno()
epoll.register(number, select.EPOLLIN)
ended = child(signal.SIGUSR1, lambda: None)
silent = child(0, sends)
here.close()
for_child.close()
watched.close()
os.dup2(kept, number)
wait_for('sent by child')
while not came: time.sleep(0.005)
def end():
    other_end.send(b'x')
    reported = epoll.poll(20) == [(number, select.EPOLLIN)]
    open('end', 'w').close()
    fds = socket.recv_fds(there, 1, 2)[1]
    return [error_of(os.waitpid, ended, 0), os.waitpid(ended, kClone)[1] >> 8, os.waitpid(silent, kClone)[1] >> 8, fcntl.fcntl(fds[1], fcntl.F_GET_SEALS), len(came),
            reported, os.lseek(kept, 0, os.SEEK_CUR)]
last['end'] = end
live()
"""

# A thread has a child, and the first one waits for its own alone: it has none. By libc, by syscall(2), and past both.
WAITS = r"""
import ctypes, mmap, os, threading, time
def live():
    if os.fork() == 0: time.sleep(1000)
    has_child.set()
    time.sleep(1000)
has_child = threading.Event()
threading.Thread(target=live, daemon=True).start()
has_child.wait()
if HOW == 'libc':
    try: os.waitpid(-1, 0x20000000)
    except ChildProcessError: open('before', 'w').close()
elif HOW == 'wait3':
    if ctypes.CDLL(None).wait3(None, 0x20000001, None) == -1: open('before', 'w').close()
elif HOW == 'syscall':
    if ctypes.CDLL(None).syscall(61, -1, None, 0x20000001, None) == -1: open('before', 'w').close()
else:
    # wait4(-1, nullptr, __WNOTHREAD, nullptr) for a child of its own that does not end.
    if os.fork() == 0: time.sleep(1000)
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(bytes.fromhex('48c7c7ffffffff' '31f6' 'ba00000020' '4d31d2' 'b83d000000' '0f05' 'c3'))
    wait = ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    def tell_when_it_waits():
        while not open(f'/proc/self/task/{os.getpid()}/syscall').read().startswith('61 '): time.sleep(0.005)
        open('before', 'w').close()
    threading.Thread(target=tell_when_it_waits).start()
    wait()
time.sleep(1000)
"""

OWN_FILES = r"""
import ctypes, os, threading, time
def live_apart():
    ctypes.CDLL(None).unshare(0x400)
    os.open('/dev/null', os.O_RDONLY)
    open('before', 'w').close()
    while True: time.sleep(0.05)
threading.Thread(target=live_apart, daemon=True).start()
time.sleep(1000)
"""

# It becomes a program in C, for there Python can do nothing.
DISPATCH = r"""
import os
os.execv(PATH, [PATH])
""".replace("PATH", repr(os.path.join(job_tree.BUILD, "bin", "catches_calls")))

NOT_DUMPABLE = r"""
import ctypes, os, time
if os.fork() == 0:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    open('before', 'w').close()
time.sleep(1000)
"""

LAST = {"seals of one that was sent": 2, "around the mark": ["b'ab'", "b'cd'"], "by one name": ["b'stream'", "b'packet'"],
        "of the workers": sorted(str(str(n).encode()) for n in range(12)),
        "of the audience": [["b'0'", "b'1'"]] * 2,
        "by nobody": True, "still by choice": [["0", "0"], ["1", "1"], ["2", "2"]]}


# The agent is sent SIGXFSZ, which is not the program's; that some signal waits makes the stop look at all that do.
LIMITED = r"""
import os, resource, signal, time
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
open('before', 'w').close()
time.sleep(1000)
"""


class Overlooked(unittest.TestCase):
    def alone(self, name, uid):
        told = come_back(self, name, ALONE, uid)
        self.assertEqual(told["last"], LAST)
        before = told["before"]
        self.assertEqual((before["locks"], before["lock of one that was sent"]), (["EAGAIN"] * 3, "EAGAIN"))
        self.assertEqual(before["by choice"], LAST["still by choice"])
        self.assertEqual((before["delay"], before["nice"], before["owner"]), ([0, 0], [5, min(19, os.nice(0) + 9)], [True, 12, 0]))

    def test_alone(self):
        self.alone("overlooked", 0)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_alone_as_user(self):
        self.alone("overlooked-user", NOBODY)

    def test_tree(self):
        told = come_back(self, "overlooked-tree", TREE)
        self.assertEqual(told["last"], {"end": ["ECHILD", 7, 7, 2, 1, True, 5]})
        self.assertEqual(told["before"]["lock of one that was sent"], "EAGAIN")

    def refused(self, name, program, why, code=76, uid=0, then=lambda tree: None):
        tree = Tree(name, [sys.executable if uid == 0 else "/usr/bin/python3", "-c", program], uid=uid)
        try:
            tree.run()
            wait_for(os.path.join(tree.work, "before"), tree)
            with self.assertRaisesRegex(AssertionError, f"(?s)exit code {code}.*{why}"):
                tree.checkpoint(tree.child.pid)
            then(tree)
        finally:
            tree.close(False)

    @unittest.skipUnless(os.geteuid() == 0, "needs root")
    def test_an_image_that_meets_a_limit_ends_no_program(self):
        def with_room(tree):
            hard = resource.prlimit(tree.child.pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(tree.child.pid, resource.RLIMIT_FSIZE, (hard, hard))
            tree.checkpoint(tree.child.pid)
            self.assertIsNone(tree.child.poll(), tree.said())
        self.refused("overlooked-limit", LIMITED, "larger than a file may be", 74, then=with_room)

    def test_descriptors_of_a_threads_own_are_named(self):
        self.refused("overlooked-files", OWN_FILES, "descriptors of its own")

    def test_waits_for_children_of_one_thread_are_named(self):
        for how in ("libc", "wait3", "syscall", "past both"):
            self.refused("overlooked-waits", WAITS.replace("HOW", repr(how)), "__WNOTHREAD")

    def catches_calls(self, name, uid):
        last = come_back(self, name, DISPATCH, uid)["last"]
        if "kernel" not in last:
            self.assertEqual(last, {"answers": [4711, 1, 4711], "caught": 2, "changed": 0})

    def test_a_thread_that_catches_its_system_calls(self):
        self.catches_calls("overlooked-dispatch", 0)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_a_thread_of_a_user_that_catches_its_system_calls(self):
        self.catches_calls("overlooked-dispatch-user", NOBODY)

    def test_a_handler_that_is_met_by_the_next_stop_on_the_way_back_from_one(self):
        """The way back of the second was that of the first, whose handler then returned to where the second had been."""
        tree = Tree("overlooked-nested", [os.path.join(job_tree.BUILD, "bin", "catches_calls"), "nested"])
        failed = True
        try:
            tree.run()
            path = lambda name: os.path.join(tree.work, name)
            wait_for(path("before"), tree)
            for _ in range(20):
                image = tree.checkpoint(tree.child.pid)
                if os.path.exists(path("waits")):
                    image = tree.checkpoint(tree.child.pid)
                    break
            tree.kill()
            tree.restart(image)
            with open(path("go"), "w"):
                pass
            self.assertEqual(tree.finish()[0], 0, tree.said())
            with open(path("last")) as f:
                last = json.load(f)
            if "kernel" not in last:
                self.assertEqual(last, {"met": 1})
            failed = False
        finally:
            tree.close(failed)

    def test_threads_that_share_a_selector_are_named(self):
        tree = Tree("overlooked-selector", [os.path.join(job_tree.BUILD, "bin", "catches_calls"), "shared"])
        try:
            tree.run()
            wait_for(os.path.join(tree.work, "before"), tree)
            if not os.path.exists(os.path.join(tree.work, "unknown")):
                with self.assertRaisesRegex(AssertionError, "one selector"):
                    tree.checkpoint(tree.child.pid)
                self.assertIsNone(tree.child.poll())
        finally:
            tree.close(False)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_a_member_that_may_not_be_looked_at_is_named(self):
        self.refused("overlooked-hidden", NOT_DUMPABLE, "is not dumpable", 78, NOBODY)


job_tree.adopt_orphans()

if __name__ == "__main__":
    job_tree.enter_own_network()
    unittest.main()
