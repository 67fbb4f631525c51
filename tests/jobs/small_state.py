#!/usr/bin/env python3
"""State of the kernel that few programs ask for, and that was lost, or read wrongly, once. As odd_objects.py: what the programs say
before the checkpoint they say after the restart."""
import os
import shutil
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY, Tree
from odd_objects import COMMON, come_back, wait_for

# Readers of FIFOs that nobody has written to, and readers whose writer has gone.
FIFOS = r"""
def seen(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return poll.poll(0)
def read_and_write(name, fd):
    waiting = os.read(fd, 10).decode()
    writer = os.open(name, os.O_WRONLY)
    os.write(writer, b'new')
    os.close(writer)
    return waiting, os.read(fd, 10).decode(), seen(fd) == [(fd, select.POLLHUP)]
def written(name):
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(name, os.O_WRONLY)
    os.write(writer, b'old')
    os.close(writer)
    return fd
def late(name): return os.open(name, os.O_RDONLY | os.O_NONBLOCK)
for name in ('unwritten', 'late', 'both', 'ended'): os.mkfifo(name)
readers = {'unwritten': late('unwritten'), 'ended': written('ended'), 'late': written('late')}
for name in ('unwritten', 'late'): readers[name + ' again'] = late(name)
readers['both'] = late('both')
both = os.open('both', os.O_WRONLY)
for name, fd in readers.items(): facts[name] = lambda fd=fd: [what for _, what in seen(fd)]
"""
SHARED_FIFOS = COMMON + FIFOS + r"""
pid = os.fork()
if pid == 0:
    os.close(readers['unwritten again'])
    for name in ('unwritten', 'late'): facts['own ' + name] = lambda fd=late(name): [what for _, what in seen(fd)]
    tell('inherited.before')
    while not os.path.exists('go'): time.sleep(0.005)
    tell('inherited.after')
    os._exit(0)
while not os.path.exists('inherited.before'): time.sleep(0.005)
last['the child'] = lambda: os.waitpid(pid, 0)[1]
live()
"""
ALONE_FIFOS = COMMON + FIFOS + r"""
for name in ('unwritten', 'ended'): last[name] = lambda name=name: read_and_write(name, readers[name])
live()
"""

# What TCP ends told each other when they were connected (TCP_MAXSEG), and the largest window that they show (TCP_WINDOW_CLAMP).
SEGMENTS = COMMON + r"""
def seen(s):
    info = s.getsockopt(6, socket.TCP_INFO, 104)
    return [s.getsockopt(6, socket.TCP_MAXSEG), struct.unpack_from('I', info, 16)[0], struct.unpack_from('I', info, 84)[0]]
def clamp(s): return s.getsockopt(6, socket.TCP_WINDOW_CLAMP)
def listen(at, segment=0, window=0, room=0):
    s = socket.socket(socket.AF_INET6 if ':' in at else socket.AF_INET)
    if segment: s.setsockopt(6, socket.TCP_MAXSEG, segment)
    if window: s.setsockopt(6, socket.TCP_WINDOW_CLAMP, window)
    if room: s.setsockopt(1, socket.SO_RCVBUF, room)
    s.bind((at, 0))
    s.listen()
    return s
def connect(to, segment=0, window=0):
    s = socket.socket(to.family)
    if segment: s.setsockopt(6, socket.TCP_MAXSEG, segment)
    if window: s.setsockopt(6, socket.TCP_WINDOW_CLAMP, window)
    s.connect(to.getsockname())
    return s
def both(to, *options):
    client = connect(to, *options)
    return client, to.accept()[0]
all = {}
for at in ('127.0.0.1', '::1'):
    plain, small, small_window = listen(at), listen(at, 800), listen(at, 0, 20000)
    pairs = {'plain': both(plain), 'of the client': both(plain, 900), 'of the server': both(small), 'of both': both(small, 700),
             'window of the client': both(plain, 0, 5000), 'window of the server': both(small_window)}
    late = both(plain)
    late[1].setsockopt(6, socket.TCP_WINDOW_CLAMP, 6000)
    pairs['a late window'] = late
    ended = both(plain, 600)
    ended[1].close()
    pairs['of an ended one'] = ended[:1]
    unused = socket.socket(plain.family)
    unused.setsockopt(6, socket.TCP_MAXSEG, 500)
    unused.setsockopt(6, socket.TCP_WINDOW_CLAMP, 7000)
    pairs['listeners'] = plain, small, small_window, unused
    waiting = connect(small_window, 650)
    pairs['one that waits'] = waiting,
    all[at] = pairs, small_window
    for name, ends in pairs.items():
        facts[f'{name} {at}'] = lambda ends=ends: [(seen(s), clamp(s)) for s in ends]
def accepted(at):
    s = all[at][1].accept()[0]
    return seen(s), clamp(s)
def use(at):
    said = []
    for name, ends in all[at][0].items():
        if len(ends) == 2:
            ends[0].sendall(b'a' * 20000 + b'!')
            got = 0
            while got < 20001: got += len(ends[1].recv(65536))
            said.append(got)
    return said == [20001] * 7
for at in all: last[at] = lambda at=at: (accepted(at), use(at))
live()
"""

# Bytes are under way to an end whose room and window were set: a checkpoint makes room for them for a moment.
ROOM = COMMON + r"""
listener = socket.socket()
listener.setsockopt(1, socket.SO_RCVBUF, 4096)
listener.bind(('127.0.0.1', 0))
listener.listen()
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
server.setsockopt(6, socket.TCP_WINDOW_CLAMP, 2500)
client.setblocking(False)
try:
    while True: client.send(b'x' * 1000)
except BlockingIOError: pass
facts['room'] = lambda: server.getsockopt(1, socket.SO_RCVBUF)
# The kernel moves it as bytes come, but not beyond the room.
facts['window is no larger'] = lambda: server.getsockopt(6, socket.TCP_WINDOW_CLAMP) <= facts['room']()
live()
"""

# Time stamps of what was sent wait where errors do, and poll(2) says POLLERR. None of these connections was reset but the last.
STAMPS = COMMON + r"""
OF_ALL = 1 << 1 | 1 << 4 | 1 << 7 | 1 << 8 | 1 << 9  # of sending, scheduling and acknowledging; software's; numbered
listener = socket.create_server(('127.0.0.1', 0))
def errors(s): return any(what & select.POLLERR for _, what in poll_of(s).poll(0))
def poll_of(s):
    poll = select.poll()
    poll.register(s, 0)
    return poll
def ends():
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    for s in (client, server): s.setsockopt(1, 37, OF_ALL)
    return client, server
def state(s): return s.getsockopt(6, socket.TCP_INFO, 8)[0]
def wait_until(what):
    while not what(): time.sleep(0.001)
def talk(client, server):
    for a, b in ((client, server), (server, client)):
        a.sendall(b'word')
        b.recv(4)
        wait_until(lambda: errors(a))
def end(first, second):
    first.shutdown(socket.SHUT_WR)
    wait_until(lambda: state(second) == 8)
    second.shutdown(socket.SHUT_WR)
    wait_until(lambda: state(first) == state(second) == 7)
alive, by_client, by_server, silent, reset, half = ends(), ends(), ends(), ends(), ends(), ends()
for pair in (alive, by_client, by_server, reset, half): talk(*pair)
end(*by_client)
end(*reversed(by_server))
silent[0].send(b'word')
silent[1].recv(4)
wait_until(lambda: errors(silent[0]))
end(*silent)
half[0].shutdown(socket.SHUT_WR)
wait_until(lambda: state(half[0]) == 5 and state(half[1]) == 8)
reset[0].sendall(b'unread')
select.select([reset[1]], [], [])  # else it would end before it is reset
reset[1].close()
wait_until(lambda: state(reset[0]) == 7)
facts['errors or stamps'] = lambda: errors(reset[0])
facts['states'] = lambda: [[state(s) for s in pair] for pair in (alive, by_client, by_server, silent, half)]
def read(s): return error_of(lambda: s.recv(9).decode())
def go_on():
    alive[0].send(b'again')
    half[1].send(b'more')
    return read(alive[1]), read(half[0])
last['goes on'] = go_on
last['ends'] = lambda: [[read(s) for s in pair] for pair in (by_client, by_server, silent)]
last['reset'] = lambda: read(reset[0])
live()
"""

# Each thread may forbid the processor to run ahead, some of it for good.
SPECULATION = COMMON + r"""
GET, SET, STORE, BRANCH = 52, 53, 0, 1
def change(*settings):
    for kind, value in settings: error_of(libc.prctl, SET, kind, value, 0, 0)
threads = []
def run(*settings):
    ready = threading.Event()
    def body():
        change(*settings)
        threads.append(threading.get_native_id())
        ready.set()
        while True: time.sleep(1)
    threading.Thread(target=body, daemon=True).start()
    ready.wait()
run()
run((STORE, 4))
run((STORE, 8), (BRANCH, 4))
run((BRANCH, 8))
change((STORE, 16), (BRANCH, 4))
facts['first'] = lambda: [libc.prctl(GET, kind, 0, 0, 0) for kind in (STORE, BRANCH)]
def of(tid):
    with open(f'/proc/self/task/{tid}/status') as f: return [l for l in f if l.startswith('Speculation')]
facts['threads'] = lambda: [of(tid) for tid in threads]
live()
"""


# The kernel takes a group's nice value from a user ten times a second at most.
SESSION_NICE = COMMON + r"""
def write():
    try:
        with open('/proc/self/autogroup', 'w') as f: f.write('7')
    except BlockingIOError: return False
    return True
assert os.getsid(0) == os.getpid()
while not write(): time.sleep(0.02)
facts['nice'] = lambda: open('/proc/self/autogroup').read().split()[1:]
live()
"""


class SmallState(unittest.TestCase):
    maxDiff = None

    def test_readers_of_fifos_that_nobody_has_written_to(self):
        told = come_back(self, "small-fifos", ALONE_FIFOS)
        quiet = {name for name, what in told["before"].items() if not what}
        self.assertEqual(quiet, {"unwritten", "unwritten again", "both"})
        self.assertEqual(told["last"], {"unwritten": ["", "new", True], "ended": ["old", "new", True]})

    def test_readers_of_fifos_that_a_tree_shares(self):
        told = come_back(self, "small-fifos-shared", SHARED_FIFOS)
        self.assertEqual(told["inherited.before"], told["inherited.after"])
        self.assertEqual(told["inherited.before"]["own unwritten"], [])
        self.assertEqual(told["last"], {"the child": 0})

    def test_what_ends_of_tcp_told_each_other(self):
        told = come_back(self, "small-segments", SEGMENTS)
        before = told["before"]
        for at in ("127.0.0.1", "::1"):
            small = 900 - 12  # each segment has a time stamp
            ends = [[small, small, small], [small, small, before[f"plain {at}"][1][0][2]]]
            self.assertEqual([end[0] for end in before[f"of the client {at}"]], ends)
            self.assertEqual(before[f"a late window {at}"][1][1], 6000)
            self.assertTrue(told["last"][at][1])

    def test_a_checkpoint_leaves_the_window_as_it_was(self):
        tree = Tree("small-room", [sys.executable, "-c", ROOM])
        failed = True
        try:
            tree.run()
            path = lambda name: os.path.join(tree.work, name)
            wait_for(path("before"), tree)
            tree.checkpoint(tree.child.pid)
            with open(path("go"), "w"):
                pass
            self.assertEqual(tree.finish()[0], 0, tree.said())
            said = []
            for name in ("before", "after"):
                with open(path(name)) as f:
                    said.append(f.read())
            self.assertEqual(said[0], said[1])
            failed = False
        finally:
            tree.close(failed)

    def test_time_stamps_of_what_was_sent_are_no_errors(self):
        said = []
        told = come_back(self, "small-stamps", STAMPS, hear=said.append)
        self.assertEqual(told["last"], {"goes on": ["again", "more"], "ends": [["", ""]] * 3, "reset": "ECONNRESET"})
        self.assertTrue(any("stamps of what was sent" in note for note in said[0].get("notes", [])), said)

    @unittest.skipUnless(os.path.exists("/proc/self/autogroup"), "no autogroups here")
    def test_nice_value_of_a_session(self):
        for uid in (0, NOBODY):
            with self.subTest(user=uid):
                self.assertEqual(come_back(self, "small-session", SESSION_NICE, uid)["before"]["nice"], ["nice", "7"])

    def test_what_threads_forbid_the_processor(self):
        told = come_back(self, "small-speculation", SPECULATION)["before"]
        if told["first"][0] & 1:  # else this machine leaves no choice
            self.assertEqual(told["first"], [17, 5])
            self.assertEqual(len({str(thread) for thread in told["threads"]}), 4)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_what_threads_of_a_user_forbid_the_processor(self):
        come_back(self, "small-speculation-user", SPECULATION, NOBODY)


job_tree.adopt_orphans()

if __name__ == "__main__":
    job_tree.enter_own_network()
    unittest.main()
