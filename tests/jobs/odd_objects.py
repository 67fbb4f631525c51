#!/usr/bin/env python3
"""Kernel objects in states that are seldom met: each was lost without a word once. One process with many of them, and a
tree that shares some. What they say before the checkpoint they say after the restart."""
import json
import os
import shutil
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY, Tree

COMMON = r"""
import ctypes, errno, fcntl, json, mmap, os, select, signal, socket, struct, sys, termios, threading, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
facts, last = {}, {}

def error_of(call, *args):
    try: return str(call(*args))
    except OSError as e: return errno.errorcode[e.errno]

def child(work):
    pid = os.fork()
    if pid == 0:
        try: work()
        finally: os._exit(0)
    return pid

def wait_for(name):
    while not os.path.exists(name): time.sleep(0.005)

def option(s, level, name, size=4): return error_of(lambda: s.getsockopt(level, name, size).hex())

def tell(name):
    with open(name + '.tmp', 'w') as f: json.dump({k: v() for k, v in facts.items()}, f)
    os.rename(name + '.tmp', name)

def live():
    tell('before')
    wait_for('go')
    tell('after')
    with open('last.tmp', 'w') as f: json.dump({k: v() for k, v in last.items()}, f)
    os.rename('last.tmp', 'last')
"""

ALONE = COMMON + r"""
# A periodic timer that nobody has read since it went off.
timer = libc.syscall(283, 1, os.O_NONBLOCK)
libc.syscall(286, timer, 0, struct.pack('qqqq', 1000, 0, 0, 1), 0)
select.select([timer], [], [])
def time_left():
    left = ctypes.create_string_buffer(32)
    libc.syscall(287, timer, left)
    return struct.unpack('qqqq', left.raw)[2] > 0
facts['a periodic timer runs'] = time_left
last['its expiration'] = lambda: error_of(os.read, timer, 8)

# What the kernel counts anew, and a setting in a file of /proc/self.
while time.process_time() < 0.2: pass
last['processor time goes on'] = lambda: time.process_time() >= 0.2
with open('/proc/self/coredump_filter', 'w') as f: f.write('0x11')
facts['core filter'] = lambda: open('/proc/self/coredump_filter').read()

# What prctl(2) has set. An older kernel refuses some, before and after.
for name, get, *set_it in (('keep capabilities', 7, 8, 1), ('machine check', 34, 33, 1, 1), ('merge', 68, 67, 1), ('no new code', 66, 65, 1)):
    libc.prctl(*(set_it + [0] * 5)[:5])
    facts[name] = lambda get=get: libc.prctl(get, 0, 0, 0, 0)

# The first line of /proc/PID/status is the name: no other line may be found in it.
libc.prctl(15, b'Umask:0')
os.umask(0o027)
facts['umask'] = lambda: [l for l in open('/proc/self/status') if l.startswith('Umask:')]

# Who may connect; screen(1) takes a file of other rights for somebody else's.
bound = socket.socket(socket.AF_UNIX)
bound.bind('bound')
os.chmod('bound', 0o640)
bound.listen()
facts['rights of the socket file'] = lambda: (oct(os.stat('bound').st_mode), os.stat('bound').st_uid)

# The other end was closed before all was read there; the read offset of peeks.
broken, other = socket.socketpair()
broken.send(b'unread')
other.close()
last['reset'] = lambda: error_of(broken.recv, 10)
peeked, _peeker = socket.socketpair()
peeked.setsockopt(1, 42, 0)
facts['peek offset'] = lambda: option(peeked, 1, 42)

# Signals of one number that wait, one for the thread and two for the process.
signal.pthread_sigmask(signal.SIG_BLOCK, {44, signal.SIGUSR2})
signal.pthread_kill(threading.get_ident(), 44)
for number in (44, 44, signal.SIGUSR2): os.kill(os.getpid(), number)
last['signals'] = lambda: [signal.sigtimedwait({44, signal.SIGUSR2}, 0).si_signo for _ in range(4)]

# Options that any socket takes.
OF_ANY = ((37, 0x58), (40, 1), (45, 1), (46, 50), (47, 1234567), (61, struct.pack('ii', 1, 1)), (69, 1), (75, 1), (82, 1))
for kind, s in (('unix', peeked), ('netlink', socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))):
    for number, value in OF_ANY: error_of(s.setsockopt, 1, number, value)
    facts[kind] = lambda s=s: [option(s, 1, number, 8) for number, _ in OF_ANY]
lite = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)
for number in (10, 11): lite.setsockopt(136, number, 20)
facts['checksums'] = lambda: [option(lite, 136, number) for number in (10, 11)]

# Options that only some sockets have.
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(('127.0.0.1', 0))
error_of(udp.setsockopt, 17, 103, 500)
error_of(udp.setsockopt, 1, 37, 0x58)
facts['segments'] = lambda: option(udp, 17, 103)
facts['time stamps'] = lambda: option(udp, 1, 37, 8)
udp.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton('127.0.0.1'))
group = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
group.bind(('', 0))
group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton('239.77.1.2') + socket.inet_aton('127.0.0.1'))
def to_the_group():
    udp.sendto(b'all', ('239.77.1.2', group.getsockname()[1]))
    group.settimeout(10)
    return error_of(group.recv, 5)
last['a group'] = to_the_group
listener = socket.socket()
listener.setsockopt(1, socket.SO_REUSEADDR, 1)
listener.bind(('127.0.0.1', 0))
listener.listen()
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
error_of(client.setsockopt, 6, socket.TCP_CONGESTION, b'reno')
facts['congestion control'] = lambda: option(client, 6, socket.TCP_CONGESTION, 16)
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
if error_of(six.bind, ('::1', 0)) == 'None':
    flow = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    flow.setsockopt(41, 33, 1)
    flow.connect(('::1', six.getsockname()[1], 0x12345, 0))
    facts['flow label'] = lambda: flow.getpeername()[2]
if os.geteuid() == 0:
    packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    packet.bind(('lo', 3))
    for number, value in ((10, 1), (14, 1), (20, 1), (18, 0x10007)): packet.setsockopt(263, number, value)
    facts['packet socket'] = lambda: (packet.getsockname()[:2], [option(packet, 263, number) for number in (10, 14, 20, 18)])
    segment = libc.shmget(0, ctypes.c_size_t(8192), 0o1640)
    libc.shmat(segment, None, 0)
    libc.shmctl(segment, 0, None)
    def mode():
        state = ctypes.create_string_buffer(256)
        return libc.shmctl(segment, 2, state), struct.unpack_from('<I', state.raw, 20)[0]
    facts['removed segment'] = mode

# A watch that has reported once reports nothing more, not even the end.
watched, end = socket.socketpair()
epoll = select.epoll()
end.send(b'x')
epoll.register(watched, select.EPOLLIN | select.EPOLLONESHOT)
assert len(epoll.poll(10)) == 1
def after_the_end():
    end.close()
    return epoll.poll(0)
last['a spent watch'] = after_the_end

# Nobody has the other end of this terminal any more.
master, slave = os.openpty()
os.close(slave)
os.set_blocking(master, False)
# A terminal of its own does not make it a program of a terminal: it leads its session.
own_terminal = os.openpty()
os.set_blocking(own_terminal[1], False)
termios.tcflow(own_terminal[1], termios.TCOOFF)
facts['its output is stopped'] = lambda: error_of(os.write, own_terminal[1], b'x')
facts['leads its session'] = lambda: os.getsid(0) == os.getpid()
last['a terminal that was left'] = lambda: error_of(os.read, master, 1)
live()
"""

TREE = COMMON + r"""
# As a directory service gives them: what /proc/PID/status says of signals lies far behind.
if os.geteuid() == 0: os.setgroups(range(4_000_000_000, 4_000_000_500))
facts['groups'] = lambda: sorted(os.getgroups())[-3:]
def waits():
    open('waits', 'w').close()
    wait_for('end')
pid = child(waits)
wait_for('waits')
ended = child(lambda: None)
os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
pidfd, of_ended = os.pidfd_open(pid), os.pidfd_open(ended)
status = os.open(f'/proc/{pid}/status', os.O_RDONLY)
signal.signal(signal.SIGIO, signal.SIG_IGN)
leased = os.open('leased', os.O_RDWR | os.O_CREAT)
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(('127.0.0.1', 0))
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'', udp.getsockname())

def is_ready(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return len(poll.poll(0))
facts['it runs'] = lambda: (is_ready(pidfd), error_of(signal.pidfd_send_signal, pidfd, 0))
facts['it has ended'] = lambda: is_ready(of_ended)
facts['its file'] = lambda: [l for l in os.pread(status, 4096, 0).decode().splitlines() if l.startswith('Pid:')] == [f'Pid:\t{pid}']
facts['lease'] = lambda: fcntl.fcntl(leased, fcntl.F_GETLEASE)
def inherited():
    tell('inherited.before')
    wait_for('go')
    tell('inherited.after')
heir = child(inherited)
wait_for('inherited.before')
def end():
    wait_for('inherited.after')  # while the other child still runs
    open('end', 'w').close()
    os.waitpid(heir, 0)
    return [os.waitid(os.P_PIDFD, f, os.WEXITED).si_status for f in (pidfd, of_ended)]
udp.setblocking(False)
last['an empty datagram'] = lambda: error_of(udp.recv, 5)
last['ends'] = end
live()
"""

# As ssh-agent: nobody else of its user may look at its memory, and what it has in /proc is root's.
UNDUMPABLE = COMMON + r"""
while time.process_time() < 0.2: pass
last['processor time goes on'] = lambda: time.process_time() >= 0.2
with open('/proc/self/coredump_filter', 'w') as f: f.write('0x11')
libc.prctl(4, 0)
facts['dumpable'] = lambda: libc.prctl(3)
def core_filter():
    libc.prctl(4, 1)
    try: return open('/proc/self/coredump_filter').read()
    finally: libc.prctl(4, 0)
last['core filter'] = core_filter
live()
"""

# No call reads the program that chooses among sockets of packets.
FANOUT = COMMON + r"""
packet = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
packet.bind(('lo', 3))
packet.setsockopt(263, 18, 6 << 16 | 8)
rule = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0))
packet.setsockopt(263, 22, struct.pack('HxxxxxxQ', 1, ctypes.addressof(rule)))
facts['group'] = lambda: option(packet, 263, 18)
live()
"""

# Each datagram to a group comes to all of its members: what waits in one of them only that one gets again.
GROUPS = COMMON + r"""
GROUP, SIX = '239.77.1.3', 'ff15::7701'
def bound_to(address, *options):
    s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_DGRAM)
    for level, name, value in ((1, socket.SO_REUSEADDR, 1), *options): s.setsockopt(level, name, value)
    s.bind((address, port))
    return s
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind(('', 0))
port = one.getsockname()[1]
one.close()
SHOWN = ((0, 8, 1), (0, 12, 1))  # IP_PKTINFO, IP_RECVTTL
ON_LO = struct.pack('4s4si', socket.inet_aton(GROUP), socket.inet_aton('127.0.0.1'), 1)
members = [bound_to(GROUP, *SHOWN, (0, socket.IP_ADD_MEMBERSHIP, ON_LO)) for i in range(2)]
members.append(bound_to('', *SHOWN))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.bind(('127.0.0.1', 0))
sender.setsockopt(0, socket.IP_MULTICAST_TTL, 5)
sender.setsockopt(0, socket.IP_MULTICAST_IF, socket.inet_aton('127.0.0.1'))
sent = [(sender, GROUP)]
sixes = []
if 'groups0' in [name for _, name in socket.if_nameindex()]:
    number = socket.if_nametoindex('groups0')
    sender_six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sender_six.setsockopt(41, socket.IPV6_MULTICAST_IF, number)
    sixes = [bound_to(SIX, (41, socket.IPV6_JOIN_GROUP, socket.inet_pton(10, SIX) + struct.pack('i', number))) for i in range(2)]
    sent.append((sender_six, SIX))
def send(data):
    for s, group in sent: s.sendto(data, (group, port))
def next_of(s):
    select.select([s], [], [], 10)
    data, about, _, name = s.recvmsg(100, 1000, socket.MSG_DONTWAIT)
    values = {kind: value for _, kind, value in about}
    where = [socket.inet_ntoa(values[8][8:12]) == GROUP, struct.unpack('i', values[2])[0]] if s in members[:2] else []
    return [data.decode(), *where]
send(b'one')
send(b'two')
assert next_of(members[0]) == ['one', True, 5] and [next_of(s) for s in sixes[:1]] in ([], [['one']])
def all_that_waits():
    send(b'new')
    told = []
    for s in members + sixes:
        told.append([])
        while not told[-1] or told[-1][-1][0] != 'new': told[-1].append(next_of(s))
        told[-1].append(error_of(s.recv, 5, socket.MSG_DONTWAIT))
    return told
last['waited'] = all_that_waits
live()
"""

LAST_ALONE = {"its expiration": repr((1).to_bytes(8, "little")), "reset": "ECONNRESET", "a spent watch": [],
              "a terminal that was left": "EIO", "a group": "b'all'", "signals": [44, 12, 44, 44],
              "processor time goes on": True}


def wait_for(path, tree):
    deadline = time.monotonic() + job_tree.PATIENCE
    while not os.path.exists(path):
        if tree.child.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the program never told what it has: {tree.said()}")
        time.sleep(0.01)


def come_back(test, name, program, uid=0, go_early=False, look=None, options=(), hear=None, lives=1):
    """What it told, by the name of the file. go_early: it goes on as soon as it is back; its output. look: at the
    image. hear: what `ckpt now` said. lives: how often it is restarted."""
    tree = Tree(name, [sys.executable if uid == 0 else "/usr/bin/python3", "-c", program], uid=uid)
    failed = True
    try:
        tree.run()
        path = lambda name: os.path.join(tree.work, name)
        wait_for(path("before"), tree)
        pid = tree.child.pid
        image = tree.checkpoint(pid)
        tree.kill()
        for _ in range(lives - 1):
            pid = job_tree.root_of(tree.restart(image, *options))
            image = tree.checkpoint(pid)
            tree.kill()
        if look is not None:
            look(image)
        if hear is not None:
            hear(tree.cost)
        if not go_early:
            tree.restart(image, *options)
        with open(path("go"), "w"):
            pass
        if go_early:
            tree.restart(image, *options)
        code, output = tree.finish()
        test.assertEqual(code, 0, tree.said())
        told = {}
        for name in ("before", "after", "last", "inherited.before", "inherited.after"):
            if os.path.exists(path(name)) and not go_early:
                with open(path(name)) as f:
                    told[name] = json.load(f)
        test.assertEqual(told.get("before"), told.get("after"), tree.said())
        failed = False
        return output.decode().strip() if go_early else told
    finally:
        tree.close(failed)


class OddObjects(unittest.TestCase):
    def test_alone(self):
        told = come_back(self, "odd-alone", ALONE)
        self.assertEqual(told["last"], LAST_ALONE)
        self.assertTrue(told["before"]["a periodic timer runs"])

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_alone_as_user(self):
        self.assertEqual(come_back(self, "odd-alone-user", ALONE, NOBODY)["last"], LAST_ALONE)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_an_undumpable_program_of_a_user(self):
        told = come_back(self, "odd-undumpable", UNDUMPABLE, NOBODY)
        self.assertEqual(told["before"], {"dumpable": 0})
        self.assertEqual(told["last"], {"processor time goes on": True, "core filter": "00000011\n"})

    def check_groups(self, uid):
        told = come_back(self, "odd-groups", GROUPS, uid)["last"]["waited"]
        all_three = lambda *where: [[name, *where] for name in ("one", "two", "new")] + ["EAGAIN"]
        self.assertEqual(told[:3], [all_three(True, 5)[1:], all_three(True, 5), all_three()])
        self.assertIn(told[3:], ([], [all_three()[1:], all_three()]))

    def test_what_waits_in_members_of_groups(self):
        self.check_groups(0)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_what_waits_in_members_of_groups_as_user(self):
        self.check_groups(NOBODY)

    @unittest.skipUnless(os.geteuid() == 0, "needs root")
    def test_a_program_that_chooses_among_packet_sockets_is_named(self):
        said = []
        come_back(self, "odd-fanout", FANOUT, hear=said.append)
        self.assertEqual(len([n for n in said[0].get("notes", []) if "PACKET_FANOUT_DATA" in n]), 1, said)

    def test_tree(self):
        told = come_back(self, "odd-tree", TREE)
        self.assertEqual(told["last"], {"an empty datagram": "b''", "ends": [0, 0]})
        self.assertEqual(told["inherited.before"], told["inherited.after"])
        self.assertEqual(told["before"]["it runs"], [0, "None"])


def add_interface():
    """For groups of IPv6, which do not come to lo. Without the right to it, or without the program for it: none."""
    try:
        with open("/proc/sys/net/ipv6/conf/default/accept_dad", "w") as f:  # its address can be used at once
            f.write("0")
        for line in ("add groups0 type veth peer name groups1", "set groups0 up", "set groups1 up"):
            subprocess.run(["ip", "link", *line.split()], check=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return
    # Some time after both ends are up the kernel gives it an address, and some time after that takes it into use. Before, nothing
    # can be sent.
    job_tree.wait_for(lambda: has_address("groups0"), "the address of the interface")


IFA_F_TENTATIVE = 0x40


def has_address(interface):
    with open("/proc/self/net/if_inet6", encoding="ascii") as f:
        return any(fields[5] == interface and int(fields[4], 16) & IFA_F_TENTATIVE == 0 for fields in map(str.split, f))


job_tree.adopt_orphans()

if __name__ == "__main__":
    network = os.readlink("/proc/self/ns/net")
    job_tree.enter_own_network()
    job_tree.enter_own_ipc()
    if os.readlink("/proc/self/ns/net") != network:
        add_interface()
    unittest.main()
