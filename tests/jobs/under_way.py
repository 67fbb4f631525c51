#!/usr/bin/env python3
"""What is about a process of the job and waits to be received (SCM_RIGHTS) at the checkpoint: pidfds, files of /proc. Received
after a restart it is about that process, and the other messages of its queue are where they were."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY, PATIENCE, RESTART, Tree, environment, wait_for
from odd_objects import COMMON, come_back

PROGRAM = COMMON + r"""
PASSPIDFD, THREAD = 76, os.O_EXCL
def pair(kind=socket.SOCK_STREAM): return socket.socketpair(socket.AF_UNIX, kind)
def send_fds(s, data, *fds): socket.send_fds(s, [data], fds)
def is_ready(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return len(poll.poll(0))
def close(*fds):
    for fd in fds: os.close(fd)

# Who is killed by its pidfd at the end; the zombie; the process itself; a child that is stopped.
def waits():
    s = from_child
    send_fds(s, b'of its sender', its_own := os.pidfd_open(os.getpid()))
    s.send(b'behind')
    close(its_own)
    shows.send(b'who')
    open('waits', 'w').close()
    signal.pause()
to_parent, from_child = pair(socket.SOCK_SEQPACKET)
to_parent.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
shown, shows = pair(socket.SOCK_DGRAM)
try: shown.setsockopt(socket.SOL_SOCKET, PASSPIDFD, 1)
except OSError: shown = None
running = child(waits)
wait_for('waits')
from_child.close()
shows.close()
zombie = child(lambda: os._exit(5))
os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
NAMES = {running: 'running', zombie: 'zombie', os.getpid(): 'self', -1: 'gone'}
def about(fd):
    [line] = [l for l in open(f'/proc/self/fdinfo/{fd}') if l.startswith('Pid:')]
    pid = int(line.split()[1])
    return NAMES.get(pid, 'another'), is_ready(fd), error_of(signal.pidfd_send_signal, fd, 0)
def receive(s, size=100):
    data, fds, _, address = socket.recv_fds(s, size, 10)
    return data.decode(), fds
def read(s, size=100):
    data, fds = receive(s, size)
    return [data] + [about(fd) for fd in fds]

of_running, of_self, of_zombie = os.pidfd_open(running), os.pidfd_open(os.getpid()), os.pidfd_open(zombie)

# A stream: bytes before and behind. (Those before it and the pidfd the kernel shows as one message, as long as they wait.)
near, far = pair()
near.send(b'12')
send_fds(near, b'3', of_running)
near.send(b'45')
last['a stream'] = lambda: [read(far, 3), read(far, 1), read(far, 1)]

# The sender has ended its stream, or is gone.
half, ended = pair()
send_fds(half, b'x', of_self, of_running)
half.shutdown(socket.SHUT_WR)
last['a stream that has ended'] = lambda: [read(ended), read(ended)]
gone, left = pair(socket.SOCK_SEQPACKET)
gone.send(b'first')
send_fds(gone, b'of one that is gone', of_zombie)
gone.send(b'last')
gone.close()
last['of a sender that is gone'] = lambda: [read(left) for _ in range(4)]

# Packets, both ways: two ends that are connected to each other.
one, other = pair(socket.SOCK_DGRAM)
one.send(b'before')
send_fds(one, b'of itself', of_self)
one.send(b'')
one.send(b'behind')
other.send(b'back')
last['datagrams'] = lambda: [read(other) for _ in range(4)] + [read(one)]

# By name: from sockets with names and without, to one that is connected elsewhere, and is shut for writing.
def named(name):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.bind(name)
    return s
sink, known = named('sink'), named('\0known%d' % os.getpid())
known.connect('sink')
known.send(b'known')
send_fds(known, b'with the zombie', of_zombie)
unknown = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
unknown.sendto(b'unknown', 'sink')
known.shutdown(socket.SHUT_WR)
def sink_has():
    rows = []
    for _ in range(3):
        data, fds, _, address = socket.recv_fds(sink, 100, 10)
        rows.append([data.decode(), *map(about, fds), 'known' if address == known.getsockname() else str(address)])
    return rows
last['datagrams by name'] = sink_has
last['shut for writing'] = lambda: error_of(known.send, b'x')

# A socket that is under way itself, in which another is, in which the pidfd is; nobody has any of them open.
inner, innermost = pair()
send_fds(inner, b'innermost', of_running)
middle, outer = pair()
send_fds(middle, b'inner', innermost.fileno())
holder, held = pair(socket.SOCK_DGRAM)
send_fds(holder, b'outer', outer.fileno())
for s in (inner, innermost, middle, outer): s.close()
def nested():
    rows = []
    s = held
    for _ in range(2):
        data, fds = receive(s)
        s = socket.socket(fileno=fds[0])
        rows.append(data)
    return rows + [read(s), read(s)]
last['in sockets that are under way'] = nested

# The same open file in two queues, and twice in one message; and it does not wait.
again, once_more = pair()
idle = os.pidfd_open(running, os.O_NONBLOCK)
send_fds(again, b'twice', idle, idle)
def twice():
    data, fds = receive(once_more)
    def wait():
        try: return os.waitid(os.P_PIDFD, fds[0], os.WEXITED)
        except OSError as e: return errno.errorcode[e.errno]
    same = libc.syscall(312, os.getpid(), os.getpid(), 0, fds[0], fds[1])
    return [data, *map(about, fds), same, wait()]
last['twice'] = twice

# A file about the process, half read. And what is about nobody is in the queue as well.
files, of_files = pair()
status, plain = os.open(f'/proc/{running}/status', os.O_RDONLY), os.open('plain', os.O_RDWR | os.O_CREAT)
os.write(plain, b'plain')
os.lseek(status, 5, os.SEEK_SET)
files.send(b'0')
send_fds(files, b'1', status, plain)
files.send(b'2')
def their_files():
    data, fds = receive(of_files, 2)
    text = os.pread(fds[0], 4096, 0).decode()
    return [data, os.lseek(fds[0], 0, os.SEEK_CUR), f'Pid:\t{running}\n' in text, os.pread(fds[1], 10, 0).decode(), os.lseek(fds[1], 0, os.SEEK_CUR), receive(of_files)[0]]
last['files'] = their_files

# Of the first thread of a process.
try: of_thread = libc.syscall(434, running, THREAD)
except OSError: of_thread = -1
threads, of_threads = pair()
if of_thread >= 0: send_fds(threads, b'thread', of_thread)
def first_thread():
    data, fds = receive(of_threads)
    return [data, about(fds[0]), fcntl.fcntl(fds[0], fcntl.F_GETFL) & THREAD == THREAD]
if of_thread >= 0: last['of a thread'] = first_thread

# Full.
full, of_full = pair()
full.setblocking(False)
sent = 0
try:
    while True:
        send_fds(full, b'%4d' % (sent % 1000), of_running)
        sent += 1
except OSError as e: facts['why no more'] = lambda e=errno.errorcode[e.errno]: e
full_error = lambda: error_of(full.send, b'x' * 10)
facts['full'] = full_error
def all_of_full():
    kinds = set()
    for i in range(sent):
        data, fds = receive(of_full, 4)
        kinds.add((data == '%4d' % (i % 1000), len(fds), *about(fds[0])))
        close(*fds)
    of_full.setblocking(False)
    return [sorted(kinds), error_of(of_full.recv, 1)]
last['all of a full one'] = all_of_full

# Who sent it is told with it, and who was there before the message.
def with_credentials():
    rows = []
    for _ in range(2):
        data, control, _, _ = to_parent.recvmsg(100, 200)
        for level, kind, value in sorted(control):
            if kind == socket.SCM_CREDENTIALS: rows.append(NAMES.get(struct.unpack('iII', value)[0]))
            if kind == socket.SCM_RIGHTS: rows.append(about(struct.unpack('i', value)[0]))
        rows.append(data.decode())
    return rows
last['with the sender'] = with_credentials
def with_pidfd():
    data, control, _, _ = shown.recvmsg(100, 200)
    return [data.decode()] + [about(struct.unpack('i', value)[0]) for _, kind, value in control if kind == 4]
if shown is not None: last['a pidfd of the sender'] = with_pidfd

# The receiver is stopped.
to_stopped, its_end = pair()
def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)
    data, fds = receive(its_end)
    its_end.send(repr([data, *map(about, fds)]).encode())
stopped = child(is_stopped)
os.waitid(os.P_PID, stopped, os.WSTOPPED | os.WNOWAIT)
send_fds(to_stopped, b'to one that is stopped', of_running)
def from_stopped():
    os.kill(stopped, signal.SIGCONT)
    answer = to_stopped.recv(1000).decode()
    os.waitpid(stopped, 0)
    return answer
last['a receiver that is stopped'] = from_stopped

close(of_running, of_zombie, idle, status, plain)
if of_thread >= 0: close(of_thread)

def end():
    data, fds = receive(for_end)
    signal.pidfd_send_signal(fds[0], signal.SIGKILL)
    ended = [(i.si_pid == pid, i.si_status) for i, pid in ((os.waitid(os.P_PIDFD, fd, os.WEXITED), pid) for fd, pid in zip(fds, (running, zombie)))]
    return [data, *ended, *(error_of(signal.pidfd_send_signal, fd, 0) for fd in fds)]
to_end, for_end = pair()
of_both = [os.pidfd_open(running), os.pidfd_open(zombie)]
send_fds(to_end, b'both', *of_both)
close(*of_both)
last['they end'] = end
live()
"""

RUNS, HAS_ENDED, SELF = ["running", 0, "None"], ["zombie", 1, "None"], ["self", 0, "None"]
LAST = {
    "a stream": [["123", RUNS], ["4"], ["5"]],
    "a stream that has ended": [["x", SELF, RUNS], [""]],
    "of a sender that is gone": [["first"], ["of one that is gone", HAS_ENDED], ["last"], [""]],
    "datagrams": [["before"], ["of itself", SELF], [""], ["behind"], ["back"]],
    "datagrams by name": [["known", "known"], ["with the zombie", HAS_ENDED, "known"], ["unknown", "None"]],
    "shut for writing": "EPIPE",
    "in sockets that are under way": ["outer", "inner", ["innermost", RUNS], [""]],
    "twice": ["twice", RUNS, RUNS, 0, "EAGAIN"],
    "files": ["01", 5, True, "plain", 5, "2"],
    "of a thread": ["thread", RUNS, True],
    "all of a full one": [[[True, 1, *RUNS]], "EAGAIN"],
    "with the sender": [RUNS, "running", "of its sender", "running", "behind"],
    "a pidfd of the sender": ["who", RUNS],
    "a receiver that is stopped": repr(["to one that is stopped", ("running", 0, "None")]),
    "they end": ["both", [True, 9], [True, 5], "ESRCH", "ESRCH"],
}

# A process that is not of the job: nothing of it comes back. And a thread of its own that is not its first.
OUTSIDE = COMMON + r"""
near, far = socket.socketpair()
stranger = int(open('stranger').read())
def thread():
    threads.append(threading.get_native_id())
    while not os.path.exists('go'): time.sleep(0.005)
threads = []
threading.Thread(target=thread).start()
while not threads: time.sleep(0.005)
of_stranger = os.pidfd_open(stranger)
of_thread = libc.syscall(434, threads[0], os.O_EXCL)
child = os.fork()
if child == 0:
    while not os.path.exists('end'): time.sleep(0.005)
    os._exit(0)
of_child = os.pidfd_open(child)
fds = [of_stranger, of_child] + ([of_thread] if of_thread >= 0 else [])
near.send(b'1')
socket.send_fds(near, [b'2'], fds)
near.send(b'3')
for fd in fds: os.close(fd)
def end():
    data, got, _, _ = socket.recv_fds(far, 2, 10)
    answer = [data.decode(), [error_of(signal.pidfd_send_signal, fd, 0) for fd in got], far.recv(5).decode()]
    open('end', 'w').close()
    return answer + [os.waitid(os.P_PIDFD, got[1], os.WEXITED).si_status]
last['received'] = end
live()
"""


class UnderWay(unittest.TestCase):
    def check(self, last):
        self.assertEqual(last, {name: LAST[name] for name in last})
        self.assertLessEqual(LAST.keys() - last.keys(), {"of a thread", "a pidfd of the sender"})

    def test_without_a_checkpoint(self):
        """What the program says then is what it should say."""
        with tempfile.TemporaryDirectory() as where:
            open(os.path.join(where, "go"), "w").close()
            subprocess.run([sys.executable, "-c", PROGRAM], cwd=where, check=True, timeout=PATIENCE)
            with open(os.path.join(where, "last"), encoding="utf-8") as f:
                self.check(json.load(f))

    def come_back(self, name, uid=0):
        said = []
        self.check(come_back(self, name, PROGRAM, uid, hear=said.append)["last"])
        self.assertEqual(said[0].get("notes", []), [])

    def test_as_root(self):
        self.come_back("under-way")

    # In a new user and pid namespace.
    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_as_user(self):
        self.come_back("under-way-user", NOBODY)

    def started(self, program, prepare=None):
        tree = Tree("under-way", [sys.executable, "-c", program], prepare)
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(lambda: os.path.exists(os.path.join(tree.work, "before")), "the program")
        image = tree.checkpoint(tree.child.pid)
        tree.kill()
        return tree, image

    def test_of_a_process_outside_and_of_another_thread(self):
        """It counts as ended, which the restart says, and of the thread the checkpoint."""
        stranger = os.getppid()  # lives on

        def prepare(work):
            with open(os.path.join(work, "stranger"), "w", encoding="ascii") as f:
                f.write(str(stranger))
        tree, image = self.started(OUTSIDE, prepare)
        notes = tree.cost.get("notes", [])
        # The child has the socket as well, and a descriptor: it says so too.
        has_thread = len(notes) > 0
        self.assertEqual([n for n in notes if "is a pidfd of thread" not in n], [])
        self.assertEqual("that waits to be received" in " ".join(notes), has_thread)
        report = tree.restart(image)
        said = [n for n in report["notes"] if n.startswith("a descriptor that waits to be received") and "counts as ended" in n]
        self.assertEqual(len(said), 1 + has_thread, report)
        self.assertIn(f"process {stranger} is not one of the job", said[0])
        open(os.path.join(tree.work, "go"), "w").close()
        self.assertEqual(tree.finish()[0], 0, tree.said())
        with open(os.path.join(tree.work, "last"), encoding="utf-8") as f:
            self.assertEqual(json.load(f), {"received": ["12", ["ESRCH", "None", "ESRCH"][:2 + has_thread], "3", 0]})
        os.kill(stranger, 0)

    def test_who_makes_the_job_is_killed(self):
        """When its processes exist and the messages are still to be sent, or are sent: the restart fails, nobody is left, and
        the next restart does it."""
        tree, image = self.started(PROGRAM)
        for options in ([], ["--namespaces=always"]):
            for point in ("restart.born", "restart.sent"):
                with self.subTest(point=point, options=options):
                    again = subprocess.run([RESTART, *options, image], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=tree.work,
                                           env=environment(CKPT_TEST_POINT=point + "=leave:0"), timeout=PATIENCE, check=False)
                    self.assertIn("ended while the processes of the job were made", again.stderr)
                    self.assertNotEqual(again.returncode, 0)
                    self.assertEqual(job_tree.descendants(os.getpid()), set())
        open(os.path.join(tree.work, "go"), "w").close()
        tree.restart(image)
        self.assertEqual(tree.finish()[0], 0, tree.said())
        with open(os.path.join(tree.work, "last"), encoding="utf-8") as f:
            self.check(json.load(f))


job_tree.adopt_orphans()

if __name__ == "__main__":
    job_tree.enter_own_network()
    unittest.main()
