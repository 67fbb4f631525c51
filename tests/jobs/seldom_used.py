#!/usr/bin/env python3
"""Uses of kernel objects that ordinary programs make now and then, each lost, or the restart refused, once. As odd_objects.py: what
the programs say before the checkpoint they say after the restart."""
import os
import shutil
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY, Tree
from odd_objects import COMMON, come_back, wait_for

ALONE = COMMON + r"""
# Being connected: the queue of the listening socket is full.
full = socket.socket()
full.bind(('127.0.0.1', 0))
full.listen(0)
first = socket.create_connection(full.getsockname())
second = socket.socket()
second.setblocking(False)
second.connect_ex(full.getsockname())
facts['state of a socket that is being connected'] = lambda: second.getsockopt(6, socket.TCP_INFO, 8)[0]
def accept_both():
    accepted = [full.accept()[0] for _ in range(2)]  # the second when it asks again: after twice as long each time
    return select.select([], [second], [])[1] == [second] and second.getsockopt(1, socket.SO_ERROR)
last['both are accepted'] = accept_both

# A queue that holds one connection more than its length says.
queue = socket.socket()
queue.bind(('127.0.0.1', 0))
queue.listen(0)
early = socket.create_connection(queue.getsockname())
last['the one that waited'] = lambda: queue.accept()[1] == early.getsockname()

listener = socket.socket()
error_of(listener.setsockopt, 6, socket.TCP_MAXSEG, 1000)
error_of(listener.setsockopt, 0, 23, 1)
listener.bind(('127.0.0.1', 0))
listener.listen()
facts['largest segment'] = lambda: option(listener, 6, socket.TCP_MAXSEG)
facts['checksums'] = lambda: option(listener, 0, 23)

# An urgent byte among the others (SO_OOBINLINE).
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
server.setsockopt(1, socket.SO_OOBINLINE, 1)
client.send(b'ab')
client.send(b'!', socket.MSG_OOB)
client.send(b'cd')
poll = select.poll()
poll.register(server, select.POLLPRI)
poll.poll()
facts['urgent byte in line'] = lambda: server.getsockopt(1, socket.SO_OOBINLINE)
def read_all():
    got = b''
    while len(got) < 5: got += server.recv(5)
    return got.decode()
last['its stream'] = read_all

# A program in a memfd.
program = os.memfd_create('program')
os.write(program, open('/bin/true', 'rb').read())
def execute():
    return os.waitpid(os.posix_spawn(f'/proc/{os.getpid()}/fd/{program}', ['true'], {}), 0)[1]
last['executed'] = lambda: error_of(execute)

# A memfd that nobody may write to any more, and a view of it, as those that are handed to other programs.
sealed = os.memfd_create('sealed', os.MFD_ALLOW_SEALING)
os.write(sealed, b's' * 5000)
fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
view = error_of(lambda: facts.__setitem__('a view of it', lambda m=mmap.mmap(sealed, 5000, prot=mmap.PROT_READ): m[:].decode()))
facts['seals'] = lambda: (fcntl.fcntl(sealed, fcntl.F_GET_SEALS), error_of(os.pwrite, sealed, b'x', 0))

# A relative name of a directory that the program has left; a file that was renamed.
home = os.getcwd()
os.mkdir('room')
os.chdir('room')
relative = socket.socket(socket.AF_UNIX)
relative.bind('here')
relative.listen()
os.chdir(home)
renamed = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
renamed.bind('new')
os.rename('new', 'final')
# A restart that binds them anew gets other inodes.
os.link('final', 'room/other name')
os.link('room/here', 'other name')
def reach():
    socket.socket(socket.AF_UNIX).connect('room/here')
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'found', 'final')
    return relative.accept()[0].getsockname(), error_of(renamed.recv, 9, socket.MSG_DONTWAIT), renamed.getsockname(), os.path.exists('new')
last['by their names'] = lambda: error_of(reach)

# Datagrams from an IPv4 socket in one that takes both; of UDP-Lite, where the kernel has it.
both = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
both.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
error_of(both.bind, ('::', 0))
four = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
four.bind(('127.0.0.1', 0))
four.sendto(b'four', ('127.0.0.1', both.getsockname()[1]))
def of_both():
    data, sender = both.recvfrom(9, socket.MSG_DONTWAIT)
    return data, sender[1] == four.getsockname()[1]
last['of both'] = lambda: error_of(of_both)
try: lite = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)
except OSError: lite = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
lite.bind(('127.0.0.1', 0))
lite.sendto(b'lite', lite.getsockname())
for s in (both, lite): select.select([s], [], [])
last['of UDP-Lite'] = lambda: error_of(lite.recv, 9, socket.MSG_DONTWAIT)

# A file that shuts its user out.
shut = open('shut', 'w+')
os.chmod('shut', 0)
print('it goes on', file=shut, flush=True)
last['shut'] = lambda: (shut.seek(0), shut.read(), oct(os.stat('shut').st_mode))

# The signal that a lease gives.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
leased = os.open('leased alone', os.O_RDONLY | os.O_CREAT)
fcntl.fcntl(leased, 10, signal.SIGUSR1)
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_RDLCK)
facts['lease'] = lambda: (fcntl.fcntl(leased, fcntl.F_GETLEASE), fcntl.fcntl(leased, 11), fcntl.fcntl(leased, fcntl.F_GETOWN) == os.getpid())

# An epoll that waits in a socket.
watched, writes = os.pipe()
sent = select.epoll()
sent.register(watched, select.EPOLLIN)
here, there = socket.socketpair()
socket.send_fds(here, [b'e'], [sent.fileno()])
sent.close()
def received():
    epoll = select.epoll.fromfd(socket.recv_fds(there, 1, 1)[1][0])
    before = epoll.poll(0)
    os.write(writes, b'x')
    return before, epoll.poll(10) == [(watched, select.EPOLLIN)]
last['received'] = received
live()
"""

# The child's first thread has ended, as by pthread_exit in main. The parent kills it as soon as programs run.
TREE = r"""
import ctypes, os, signal, threading, time
libc = ctypes.CDLL(None)
pid = os.fork()
if pid == 0:
    def sleep_on():
        while True: time.sleep(1)
    for _ in range(60): threading.Thread(target=sleep_on).start()
    libc.syscall(60, 0)
while open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0] != 'Z': time.sleep(0.005)
open('before', 'w').close()
while not os.path.exists('go'): time.sleep(0.005)
os.kill(pid, signal.SIGKILL)
print(os.waitpid(pid, 0)[1])
"""

# What a thread has of its own: directory, umask, machine check and memory policy; as root users, groups and capabilities.
THREAD = COMMON + r"""
import threading
root = os.geteuid() == 0
def status_of(tid):
    lines = open(f'/proc/self/task/{tid}/status').read().splitlines()
    return [l for l in lines if l.split(':')[0] in ('Umask', 'Uid', 'Gid', 'Groups', 'CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'NoNewPrivs')]
def live_apart(work):
    work()
    apart.release()
    asked.acquire()
    told.append([libc.prctl(34, 0, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0), policy(), error_of(os.stat, 'inside')[:6], os.getcwd()])
    answered.release()
    threading.Event().wait()
def policy():
    mode, nodes = ctypes.c_int(), ctypes.create_string_buffer(128)
    return 'none' if libc.syscall(239, ctypes.byref(mode), nodes, ctypes.c_long(1025), 0, 0) else 0, mode.value, nodes.raw[0]
def done(result): assert result >= 0, errno.errorcode[ctypes.get_errno()]
def of_own():
    done(libc.prctl(33, 1, 1, 0, 0))
    libc.syscall(238, 3, struct.pack('Q', 1).ljust(128, b'\0'), ctypes.c_long(1025))  # a kernel without nodes refuses it
    done(libc.unshare(0x200))
    os.chdir('room')
    os.umask(0o027)
    if root:
        done(libc.syscall(116, 2, struct.pack('II', 4321, 1234)))
        done(libc.syscall(119, 1234, 1234, 0))
        done(libc.syscall(117, 1000, 65534, 0))
def of_file_server():
    done(libc.prctl(33, 1, 0, 0, 0))
    if root:
        done(libc.prctl(28, 1 << 2, 0, 0, 0))
        libc.setfsuid(65534)
        libc.setfsgid(65534)
        assert (libc.setfsuid(-1), libc.setfsgid(-1)) == (65534, 65534)
def with_less():
    done(libc.prctl(38, 1, 0, 0, 0))
    done(libc.syscall(126, struct.pack('Ii', 0x20080522, 0), struct.pack('IIIIII', 0, 1 << 10 if root else 0, 0, 0, 0, 0)))
os.mkdir('room')
open('room/inside', 'w').close()
apart, asked, answered = (threading.Semaphore(0) for _ in range(3))
told = []
threads = [threading.Thread(target=live_apart, args=(w,), daemon=True) for w in (of_own, of_file_server, with_less)]
for t in threads:
    t.start()
    apart.acquire()
facts['threads'] = lambda: [status_of(t.native_id) for t in threads]
facts['first'] = lambda: [status_of(os.getpid()), os.getcwd(), policy(), libc.prctl(34, 0, 0, 0, 0), libc.prctl(3, 0, 0, 0, 0)]
def of_themselves():
    answers = []
    for _ in threads:
        asked.release()
        answered.acquire()
    return sorted(told, key=str)
last['themselves'] = of_themselves
last['where'] = os.getcwd
live()
"""

# Two threads that have one directory together, which is not the first one's.
TOGETHER = COMMON + r"""
import threading
def live_apart():
    libc.unshare(0x200)
    os.chdir('/')
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    apart.set()
    threading.Event().wait()
apart = threading.Event()
threading.Thread(target=live_apart, daemon=True).start()
apart.wait()
facts['directory of the first'] = os.getcwd
live()
"""

URGENT = r"""
import socket, time
here, there = socket.socketpair()
here.send(b'ab')
here.send(b'!', socket.MSG_OOB)
open('before', 'w').close()
time.sleep(1000)
"""

CLOCKS = r"""
import ctypes, os, time
if ctypes.CDLL(None).unshare(0x80) == 0:
    with open('/proc/self/timens_offsets', 'w') as f: f.write('monotonic 100000 0\n')
    if os.fork() == 0:
        open('before', 'w').close()
        time.sleep(1000)
else:
    open('before', 'w').close()
time.sleep(1000)
"""

# A relative name of a directory that is removed after the checkpoint.
REMOVED = r"""
import os, socket, stat, time
home = os.getcwd()
os.mkdir('room')
os.chdir('room')
listener = socket.socket(socket.AF_UNIX)
listener.bind('s')
listener.listen()
os.chdir(home)
open('before', 'w').close()
while not os.path.exists('go'): time.sleep(0.02)
client = socket.socket(socket.AF_UNIX)
client.connect('room/s')
listener.accept()[0].send(b'answer')
print(os.listdir('room'), client.recv(9), stat.S_ISSOCK(os.stat('s').st_mode))
"""

# Connected by a relative name, not of the directory in which ckpt-restart works.
RELATIVE = r"""
import os, socket, time
home = os.getcwd()
os.mkdir('room')
os.chdir('room')
listener = socket.socket(socket.AF_UNIX)
listener.bind('s')
listener.listen()
if os.fork() == 0:
    client = socket.socket(socket.AF_UNIX)
    client.connect('s')
    client.recv(1)
    client.send(b'answer')
    os._exit(0)
server = listener.accept()[0]
waits = socket.socket(socket.AF_UNIX)
waits.connect('s')
datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
datagrams.bind('d')
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'datagram', 'd')
open(os.path.join(home, 'before'), 'w').close()
while not os.path.exists(os.path.join(home, 'go')): time.sleep(0.005)
server.send(b'x')
answer = server.recv(9)
accepted = listener.accept()[0]
waits.send(b'y')
print(answer, accepted.recv(1), datagrams.recv(9), sorted(os.listdir()), os.wait()[1])
"""

# What is lost is said: rules of landlock, and what the kernel has answered.
LOST = r"""
import ctypes, os, socket, struct, time
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
rules = libc.syscall(444, struct.pack('Q', 1 << 7), 8, 0)
if rules >= 0 and libc.syscall(446, rules, 0) == 0: open('landlocked', 'w').close()
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
link.send(struct.pack('IHHIIB', 17, 18, 0x301, 1, 0, 0))
open('before', 'w').close()
while not os.path.exists('go'): time.sleep(0.005)
print('end')
"""

# A child that has become a user who may not pass through the directories above the images.
OTHER_USER = r"""
import ctypes, os, time
ready, tell = os.pipe()
hear, go = os.pipe()
pid = os.fork()
if pid == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    os.write(tell, b'r')
    os._exit(int(os.read(hear, 1)) + os.getuid() - 65534)
os.read(ready, 1)
open('before', 'w').close()
while not os.path.exists('go'): time.sleep(0.005)
os.write(go, b'7')
print(os.waitpid(pid, 0)[1] >> 8)
"""

# A working directory whose path has more bytes than the kernel tells.
DEEP = r"""
import os, time
home = os.open('.', os.O_RDONLY)
for n in range(20):
    name = f'{n:03}' + 'd' * 240
    os.mkdir(name)
    os.chdir(name)
here = os.stat('.').st_ino
open('kept', 'w').close()
os.close(os.open('before', os.O_CREAT, dir_fd=home))
def has_gone():
    try: return os.stat('go', dir_fd=home)
    except FileNotFoundError: return None
while not has_gone(): time.sleep(0.005)
print(len(os.getcwd()) > 4096, os.stat('.').st_ino == here, os.listdir())
"""

LAST = {"shut": [0, "it goes on\n", "0o100000"], "by their names": "('here', \"b'found'\", 'new', False)", "of both": "(b'four', True)", "of UDP-Lite": "b'lite'", "both are accepted": 0, "the one that waited": True, "its stream": "ab!cd", "executed": "0", "received": [[], True]}


class SeldomUsed(unittest.TestCase):
    def test_alone(self):
        told = come_back(self, "seldom-alone", ALONE)
        self.assertEqual(told["last"], LAST)
        self.assertEqual(told["before"]["state of a socket that is being connected"], 2)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_alone_as_user(self):
        self.assertEqual(come_back(self, "seldom-alone-user", ALONE, NOBODY)["last"], LAST)

    def test_alone_again(self):
        """A restart binds sockets anew: their files are others, and the library has seen none of these calls."""
        self.assertEqual(come_back(self, "seldom-again", ALONE, lives=3)["last"], LAST)

    def test_members_that_end_each_other_at_once(self):
        self.assertEqual(come_back(self, "seldom-tree", TREE, go_early=True), "9")

    def thread_with_its_own(self, name, uid):
        said = []
        told = come_back(self, name, THREAD, uid, hear=said.append)
        late, early, by_default = told["last"]["themselves"]  # by what each has said of machine checks
        place = told["last"]["where"]
        self.assertEqual([late[0], early[0], by_default[0]], [0, 1, 2])
        self.assertEqual([late[4], early[4], by_default[4]], [place, os.path.join(place, "room"), place])
        self.assertEqual((late[1], by_default[1]), (0, 1))
        self.assertIn(early[2], (["none", 0, 0], [0, 3, 1]))  # a kernel without nodes
        self.assertEqual([n for n in said[0].get("notes", []) if "thread" in n], [])

    def test_what_a_thread_has_of_its_own(self):
        self.thread_with_its_own("seldom-thread", 0)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_what_a_thread_of_a_user_has_of_its_own(self):
        self.thread_with_its_own("seldom-thread-user", NOBODY)

    def test_a_directory_of_two_threads_is_named(self):
        said = []
        come_back(self, "seldom-together", TOGETHER, hear=said.append)
        self.assertIn("has a working directory and umask of its own", str(said[0].get("notes", [])))

    @unittest.skipUnless(os.geteuid() == 0, "needs root to become another user")
    def test_a_child_of_another_user_below_a_directory_of_roots(self):
        said = []
        self.assertEqual(come_back(self, "seldom-user", OTHER_USER, go_early=True, options=["--trust"], hear=said.append), "7")
        self.assertRegex(str(said[0]["notes"]), "user 65534.*--trust")

    def test_relative_names_of_unix_sockets(self):
        self.assertEqual(come_back(self, "seldom-relative", RELATIVE, go_early=True), "b'answer' b'y' b'datagram' ['d', 's'] 0")

    def test_relative_name_of_a_directory_that_is_removed(self):
        """It was bound, and a socket of that name removed, in the directory in which ckpt-restart works."""
        decoy = socket.socket(socket.AF_UNIX)
        self.addCleanup(decoy.close)

        def look(image):
            work = os.path.join(os.path.dirname(image), "..", "work")
            shutil.rmtree(os.path.join(work, "room"))
            here = os.getcwd()
            self.addCleanup(os.chdir, here)
            os.chdir(work)
            decoy.bind("s")
            decoy.close()  # nobody listens: as one that was left over

        self.assertEqual(come_back(self, "seldom-removed", REMOVED, go_early=True, look=look), "['s'] b'answer' True")

    def test_a_directory_with_a_long_path(self):
        self.assertEqual(come_back(self, "seldom-deep", DEEP, go_early=True), "True True ['kept']")

    def test_what_is_lost_is_named(self):
        seen = []
        def look(image):
            seen.append(subprocess.run([job_tree.CKPT, "show", image], capture_output=True, text=True, check=True).stdout)
            seen.append(os.path.exists(os.path.join(os.path.dirname(image), "..", "work", "landlocked")))
        come_back(self, "seldom-lost", LOST, go_early=True, look=look)
        self.assertIn("messages wait in it, which cannot be saved", seen[0])
        self.assertEqual("landlock" in seen[0], seen[1])

    def refused(self, name, program, why):
        tree = Tree(name, [sys.executable, "-c", program])
        try:
            tree.run()
            wait_for(os.path.join(tree.work, "before"), tree)
            with self.assertRaisesRegex(AssertionError, f"(?s)exit code 76.*{why}"):
                tree.checkpoint(tree.child.pid)
        finally:
            tree.close(False)

    def test_an_urgent_byte_of_a_unix_socket_is_named(self):
        self.refused("seldom-urgent", URGENT, "urgent byte")

    @unittest.skipUnless(os.geteuid() == 0 and os.path.exists("/proc/self/timens_offsets"), "needs root and time namespaces")
    def test_clocks_of_a_members_own_are_named(self):
        self.refused("seldom-clocks", CLOCKS, "clocks of its own")


job_tree.adopt_orphans()

if __name__ == "__main__":
    job_tree.enter_own_network()
    unittest.main()
