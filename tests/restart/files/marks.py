#!/usr/bin/env python3
"""Groups of fanotify(7): they come back with their marks. A checkpoint refuses one that others ask for permission. And what
they and inotify(7) are told of a restart."""

import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from stepped_program import CKPT, environment  # noqa: E402
from stepped_test import SteppedTest, needs_root  # noqa: E402

UNSUPPORTED = 78
TEXT = """
CREATE, DELETE, MODIFY, OPEN, CLOSE_WRITE, ON_DIRECTORY, ON_CHILD, OPEN_PERM = 0x100, 0x200, 2, 0x20, 8, 0x40000000, 0x8000000, 0x10000
NONBLOCK, CONTENT, FID, DIR_FID, NAME, TARGET = 2, 4, 0x200, 0x400, 0x800, 0x1000
ADD, NOT_FOLLOWED, OF_MOUNT, OF_FILE_SYSTEM, IGNORED, IGNORED_FOR_GOOD, IGNORE = 1, 4, 0x10, 0x100, 0x20, 0x40, 0x400
def group(flags): return libc.fanotify_init(flags | NONBLOCK, os.O_RDONLY)
def mark(g, mask, path, flags=0, at=-100): return libc.fanotify_mark(g, ADD | flags, ctypes.c_uint64(mask), at, path)
def marks(g): return sorted(line.strip() for line in open('/proc/self/fdinfo/%d' % g) if line.startswith('fanotify'))
def events(g):
    # Of each: what has happened, to what (where the event has it open), and whether by this process (0: not told).
    found = []
    try: left = os.read(g, 65536)
    except BlockingIOError: return found
    while left:
        length, _, _, _, mask, fd, pid = struct.unpack('IBBHQii', left[:24])
        name = None
        if fd >= 0:
            name = os.path.basename(os.readlink('/proc/self/fd/%d' % fd))
            os.close(fd)
        found.append((hex(mask), name, pid and pid == os.getpid()))
        left = left[length:]
    return found
def touch(name): open(name, 'w').close()
def permit(g):
    # Whatever comes is allowed, until there is a byte in `over`.
    while True:
        if over[0] in select.select([g, over[0]], [], [])[0]: return
        left = os.read(g, 65536)
        while left:
            length, _, _, _, mask, fd, pid = struct.unpack('IBBHQii', left[:24])
            os.write(g, struct.pack('iI', fd, 1))
            os.close(fd)
            left = left[length:]
def listen(place):
    # Of a child: says whether it has a group and a mark, and permits.
    g = group(CONTENT)
    os.write(told[1], b'%d' % mark(g, OPEN_PERM | ON_CHILD, place))
    if g >= 0: permit(g)
    os._exit(0)
"""

# A group, a file that it watches, and a child that has both.
SHARED = """
os.mkdir('d')
touch('d/open')
g = group(0)
if mark(g, OPEN | MODIFY | ON_CHILD, b'd') != 0: print('no mark', file=sys.stderr)
f = open('d/open', 'r+b')
events(g)
go = os.pipe()
if os.fork() == 0:
    os.read(go[0], 1)
    try: os.pwrite(f.fileno(), b'y', 0)
    finally: os._exit(0)
here = len(marks(g))
touch('up')
while not os.path.exists('go'): time.sleep(0.001)
first = events(g)
os.write(go[1], b'x')
os.wait()
second = events(g)
print(here, len(marks(g)), first, second, file=sys.stderr)
sys.exit(0 if (here, len(marks(g)), first, second) == (2, 2, [], [('0x2', 'open', False)]) else 1)
"""

# An inotify that watches what is opened in d. What it is told after the restart is left by the checkpoint.
TOLD = """
os.mkdir('d')
def watch():
    global i
    i = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(i, b'd', OPEN) == 1
def child(f):
    if os.fork() == 0:
        f()
        while not os.path.exists('done'): time.sleep(0.001)
        os._exit(0)
def end():
    touch('up')
    while not os.path.exists('go'): time.sleep(0.001)
    told, masks = b'', []
    try: told = os.read(i, 65536)
    except BlockingIOError: pass
    while told:
        _, mask, _, length = struct.unpack('iIII', told[:16])
        masks.append(mask)
        told = told[16 + length:]
    touch('done')
    os.wait()
    print(masks, file=sys.stderr)
    sys.exit(0 if masks in ([], [0x4000]) else 1)  # IN_Q_OVERFLOW
"""
SHARED_INOTIFY = TOLD + """
watch()
f = open('d/open', 'w')
child(lambda: None)
end()
"""
FILES_OF_ANOTHER = TOLD + """
opened = os.pipe()
def files():
    global all
    all = [open('d/%d' % n, 'w') for n in range(800)]
    os.write(opened[1], b'x')
child(files)
os.read(opened[0], 1)
watch()
end()
"""


class Marks(SteppedTest):
    program_text = TEXT

    def start(self, *how, **more):
        os.makedirs(self.path("d"), exist_ok=True)
        super().start(*how, **more)
        self.do("touch('f'); os.symlink('f', 'link')")

    def group(self, flags):
        # Not every file system has handles of files, by which a group may report them.
        self.do(f"g = group({flags})", "why = '' if g >= 0 and mark(g, OPEN, b'd') == 0 else errno.errorcode[ctypes.get_errno()]")
        if why := self.ask("why"):
            self.skipTest("no fanotify here: " + why)
        self.do("os.close(g)", f"g = group({flags})")

    def test_marks_stay(self):
        self.start()
        self.do("touch('d/g')")
        self.group("FID | DIR_FID | NAME")
        self.assertEqual(self.ask("mark(g, CREATE | DELETE | ON_DIRECTORY | ON_CHILD, b'd'), mark(g, MODIFY, b'f'), mark(g, OPEN, b'link', NOT_FOLLOWED)"),
                         "(0, 0, 0)")
        self.assertEqual(self.ask("mark(g, MODIFY, b'f', IGNORED), mark(g, OPEN, b'd', IGNORED | IGNORED_FOR_GOOD)"), "(0, 0)")
        # Without a name, and by one that is relative to another directory.
        self.do("here = os.open('.', os.O_RDONLY); below = os.open('d', os.O_RDONLY)")
        self.assertEqual(self.ask("mark(g, CREATE, None, 0, here), mark(g, MODIFY, b'g', 0, below)"), "(0, 0)")
        self.assertEqual(self.ask("len(marks(g))"), "6")
        for _ in range(2):
            notes = self.stays("marks(g), fcntl.fcntl(g, fcntl.F_GETFL)")
            self.assertEqual([n for n in notes if "fanotify" in n], [])
        self.do("events(g)", "os.mkdir('d/made')")
        self.assertEqual(self.ask("[e[0] for e in events(g)]"), "['0x40000100']")
        self.do("os.rmdir('d/made')", "os.truncate('d/g', 1)")
        self.assertEqual(self.ask("[e[0] for e in events(g)]"), "['0x40000200', '0x2']")

    def test_marks_of_files_that_report_what_they_are_about(self):
        """The kernel itself adds ON_CHILD to the mark of a file, and takes it from nobody."""
        self.start()
        self.group("FID | DIR_FID | NAME | TARGET")
        self.assertEqual(self.ask("mark(g, MODIFY, b'f'), mark(g, CREATE, b'd')"), "(0, 0)")
        self.stays("marks(g)")
        self.do("os.truncate('f', 1)")
        self.assertEqual(self.ask("[e[0] for e in events(g)]"), "['0x2']")

    def test_a_file_that_is_gone(self):
        self.start()
        self.group("FID")
        self.assertEqual(self.ask("mark(g, MODIFY, b'f'), mark(g, OPEN | ON_CHILD, b'd')"), "(0, 0)")
        self.checkpoint()
        self.kill_program()
        os.unlink(self.path("f"))
        self.restart()
        self.assertEqual(len([n for n in self.notes if self.path("f") + " cannot be watched (ENOENT)" in n]), 1, self.notes)
        self.assertEqual(self.ask("len(marks(g)), events(g), touch('d/x'), [e[0] for e in events(g)]"), "(2, [], None, ['0x20'])")

    @needs_root
    def test_mounts_and_file_systems(self):
        self.start()
        self.group("0")
        self.assertEqual(self.ask("mark(g, CLOSE_WRITE, b'/proc', OF_MOUNT), mark(g, CLOSE_WRITE, b'/proc', OF_FILE_SYSTEM)"), "(0, 0)")
        self.assertEqual(self.ask("mark(g, CLOSE_WRITE, b'/proc', OF_MOUNT | IGNORE | IGNORED_FOR_GOOD)"), "0")
        self.assertEqual(self.ask("mark(g, OPEN | ON_CHILD, b'd')"), "0")
        self.assertEqual(self.ask("len(marks(g))"), "4")
        self.stays("marks(g)")
        self.do("events(g)", "touch('d/x')")
        self.assertEqual(self.ask("events(g)"), "[('0x20', 'x', True)]")

    @needs_root
    def test_nothing_is_said_of_the_restart(self):
        """The group comes back empty, though ckpt-restart opens a file that it watches."""
        self.start()
        self.group("0")
        self.do("f = open('d/open', 'w+b'); f.write(b'x' * 8192); f.flush(); m = mmap.mmap(f.fileno(), 8192)")
        self.assertEqual(self.ask("mark(g, OPEN | MODIFY | ON_CHILD, b'd')"), "0")
        self.do("e = select.epoll(); e.register(g, select.EPOLLIN)")
        self.come_back()
        self.assertEqual(self.ask("e.poll(0), events(g)"), "([], [])")
        self.do("os.pwrite(f.fileno(), b'y', 0)")
        self.assertEqual(self.ask("e.poll(0) == [(g, 1)], events(g)"), "(True, [('0x2', 'open', True)])")

    @needs_root
    def test_events_that_wait(self):
        self.start()
        self.group("FID")
        self.assertEqual(self.ask("mark(g, MODIFY, b'f')"), "0")
        self.do("os.truncate('f', 1)")
        self.assertEqual(len([n for n in self.come_back() if "fanotify" in n and "events wait" in n]), 1)
        self.assertEqual(len([n for n in self.notes if "events that waited" in n]), 1, self.notes)
        self.assertEqual(self.ask("events(g)"), "[]")
        self.do("os.truncate('f', 0)")
        self.assertEqual(self.ask("events(g)"), "[('0x2', None, True)]")

    @needs_root
    def test_one_group_of_two_processes(self):
        """It is told nothing of what the restart opens for both."""
        code, errors = self.comes_back_as_job(SHARED)
        self.assertEqual(code, 0, errors)

    def test_one_inotify_of_two_processes(self):
        code, errors = self.comes_back_as_job(SHARED_INOTIFY)
        self.assertEqual(code, 0, errors)

    def test_inotify_is_told_nothing_of_what_other_members_open(self):
        code, errors = self.comes_back_as_job(FILES_OF_ANOTHER)
        self.assertEqual(code, 0, errors)

    def check_whose(self, told, *how):
        """What another process does: the kernel tells its number to a group that was made with CAP_SYS_ADMIN."""
        self.start(*how)
        self.group("FID")
        self.assertEqual(self.ask("mark(g, MODIFY, b'f')"), "0")
        for _ in range(2):
            self.do("events(g)", "subprocess.run(['truncate', '-s', '1', 'f'], check=True)")
            self.assertEqual(self.ask("events(g)"), f"[('0x2', None, {told})]")
            self.assertEqual([n for n in self.come_back() + self.notes if "fanotify" in n], [])

    @needs_root
    def test_whose_event_it_is(self):
        self.check_whose("False")

    @needs_root
    def test_whose_event_it_is_without_the_right(self):
        self.check_whose("0", "setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")

    def test_going_back(self):
        self.start()
        self.group("FID")
        self.assertEqual(self.ask("mark(g, MODIFY, b'f')"), "0")
        before = self.ask("marks(g)")
        self.checkpoint()
        self.assertEqual(self.ask("mark(g, OPEN, b'd'), len(marks(g))"), "(0, 3)")
        self.do("os.truncate('f', 1)")
        self.go_back()
        self.assertEqual(self.ask("marks(g), events(g)"), f"({before}, [])")
        self.do("os.truncate('f', 0)")
        self.assertEqual(self.ask("[e[0] for e in events(g)]"), "['0x2']")

    def check_refused(self, *command):
        done = subprocess.run([CKPT, *command, str(self.pid)], capture_output=True, timeout=100, env=environment(), check=False)
        self.assertEqual(done.returncode, UNSUPPORTED, done.stderr)
        self.assertIn(b"ask for permission", done.stderr)
        self.assertEqual(self.ask("open('d/open').read(1)"), "x")  # it goes on, and is asked

    @needs_root
    def test_permission_by_another_member(self):
        """The listener is another process of the job than the one whose file the checkpoint opens."""
        self.start()
        self.do("f = open('d/open', 'w+b'); f.write(b'x' * 8192); f.flush(); m = mmap.mmap(f.fileno(), 8192)", "over, told = os.pipe(), os.pipe()")
        place = os.fsencode(self.path("d"))
        self.do(f"child = os.fork() or listen({place!r})")
        self.assertEqual(self.ask("os.read(told[0], 1)"), "b'0'")
        self.check_refused("now")
        self.do("os.write(over[1], b'x'); os.waitpid(child, 0)")
        self.checkpoint()

    @needs_root
    def test_who_asks_for_permission_is_not_kept_waiting(self):
        """A file that a checkpoint opens in the stop would wait for a listener that stands."""
        self.start()
        self.do("f = open('d/open', 'w+b'); f.write(b'x' * 8192); f.flush(); m = mmap.mmap(f.fileno(), 8192)")
        self.checkpoint()
        self.group("CONTENT")
        self.do("over = os.pipe(); t = threading.Thread(target=permit, args=(g,)); t.start()")
        # What is opened by nobody else: the program's own file, and the images.
        for place in "d", self.images:
            self.assertEqual(self.ask(f"mark(g, OPEN_PERM | ON_CHILD, {os.fsencode(self.path(place))!r})"), "0")
        for command in ("now",), ("back", "--trust"):
            self.check_refused(*command)
        self.do("os.write(over[1], b'x'); t.join(); os.close(g)", "over = t = None")
        self.checkpoint()


if __name__ == "__main__":
    sys.exit(unittest.main())
