#!/usr/bin/env python3
"""State that the kernel does not show by the call that one would ask, or to nobody. As odd_objects.py: what the programs say before the
checkpoint they say after the restart."""
import os
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job_tree
from job_tree import NOBODY, RESTART, Tree
from odd_objects import COMMON, come_back, wait_for

# A FIFO whose name is gone is a pipe with the rights of that file.
FIFO = COMMON + r"""
os.mkfifo('fifo')
os.chmod('fifo', 0o641)
reader, writer = os.open('fifo', os.O_RDONLY | os.O_NONBLOCK), os.open('fifo', os.O_WRONLY)
os.write(writer, b'old')
os.unlink('fifo')
facts['rights'] = lambda: [oct(os.fstat(fd).st_mode) for fd in (reader, writer)]
last['bytes'] = lambda: os.read(reader, 9).decode()
live()
"""

# The interface that groups are sent to by, chosen by its number (struct ip_mreqn): no call tells it.
GROUPS = COMMON + r"""
GROUP, PORT = '239.77.1.2', 29877
hears = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
hears.bind((GROUP, PORT))
by_number = struct.pack('4s4si', socket.inet_aton('0.0.0.0'), socket.inet_aton('0.0.0.0'), socket.if_nametoindex('lo'))
hears.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + by_number[4:])
hears.settimeout(5)
speaks = {name: socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for name in ('chosen', 'chosen with an address', 'given up', 'never')}
choose = lambda name, value: speaks[name].setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, value)
choose('chosen', by_number)
choose('chosen with an address', by_number[:4] + socket.inet_aton('127.0.0.1') + by_number[8:])
choose('given up', by_number)
choose('given up', socket.inet_aton('0.0.0.0'))
error_of(choose, 'never', struct.pack('4s4si', b'', b'', 9999))
def say(name):
    try: speaks[name].sendto(name.encode(), (GROUP, PORT))
    except OSError as e: return errno.errorcode[e.errno]
    return hears.recv(64).decode()
for name in speaks: facts[name] = lambda name=name: [say(name), option(speaks[name], socket.IPPROTO_IP, socket.IP_MULTICAST_IF)]
live()
"""

# A child that was made without its parent's handlers has ours all the same.
WITHOUT_HANDLERS = COMMON + r"""
def caught(): return [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)]
def kernel_has(number):
    with open('/proc/self/status') as f:
        return [int(l.split()[1], 16) >> (number - 1) & 1 for l in f if l.startswith(('SigIgn', 'SigCgt'))]
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
CLEAR_SIGHAND = 1 << 32
arguments = struct.pack('11Q', CLEAR_SIGHAND, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
pid = libc.syscall(435, arguments, len(arguments))
facts['what it does at signals'] = lambda: [kernel_has(number) for number in (signal.SIGUSR1, signal.SIGUSR2)]
if pid == 0:
    tell('inherited.before')
    while not os.path.exists('go'): time.sleep(0.005)
    tell('inherited.after')
    os._exit(7)
while not os.path.exists('inherited.before'): time.sleep(0.005)
last['the child'] = lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
live()
"""

# A tree that has forbidden itself to ask for its group and session, and for what it has set by personality(2).
FORBIDDEN = COMMON + r"""
class Instruction(ctypes.Structure): _fields_ = [('code', ctypes.c_ushort), ('jt', ctypes.c_ubyte), ('jf', ctypes.c_ubyte), ('k', ctypes.c_uint)]
class Filter(ctypes.Structure): _fields_ = [('len', ctypes.c_ushort), ('filter', ctypes.POINTER(Instruction))]
def forbid(number):
    code = (Instruction * 4)(Instruction(0x20, 0, 0, 0), Instruction(0x15, 0, 1, number), Instruction(0x06, 0, 0, 0x50000 | errno.ENOTUNIQ), Instruction(0x06, 0, 0, 0x7fff0000))
    assert libc.prctl(22, 2, ctypes.byref(Filter(4, code)), 0, 0) == 0
def ids():
    with open('/proc/self/stat') as f: group, session = f.read().rsplit(')', 1)[1].split()[2:4]
    with open('/proc/self/personality') as f: personality = f.read().strip()
    return [error_of(os.getpgid, 0), error_of(os.getsid, 0), int(group) == leader, int(session) == leader, libc.personality(-1), personality]
leader = os.getsid(0)
pid = os.fork()
libc.prctl(38, 1, 0, 0, 0)
assert libc.personality(libc.personality(-1) | 0x0020000) >= 0  # WHOLE_SECONDS: nothing depends on it
for number in (121, 124, 135): forbid(number)
facts['ids'] = ids
if pid == 0:
    tell('inherited.before')
    while not os.path.exists('go'): time.sleep(0.005)
    tell('inherited.after')
    os._exit(7)
while not os.path.exists('inherited.before'): time.sleep(0.005)
last['the child'] = lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
live()
"""

# The signal that is ours where the program has no use for it, for which a child of vfork(2) blocks it.
BLOCKS_ALL = COMMON + r"""
signal.signal(60, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
facts['blocked'] = lambda: len(signal.pthread_sigmask(signal.SIG_BLOCK, []))
live()
"""

# Threads that may not execute cpuid: with their first one ours would be killed.
WITHOUT_CPUID = COMMON + r"""
may = lambda: libc.syscall(158, 0x1011, 0)
forbid = lambda: libc.syscall(158, 0x1012, 0)
def other(out):
    forbid()
    asked = lambda: out.append(may())
    asked(); ready.set()
    while not os.path.exists('go'): time.sleep(0.005)
    asked()
ready, seen = threading.Event(), []
known = forbid() == 0
thread = threading.Thread(target=other, args=(seen,))
thread.start()
ready.wait()
facts['this thread may'] = may
def of_other():
    thread.join()
    return seen
last['the other'] = of_other
last['known'] = lambda: known
live()
"""


class UnshownState(unittest.TestCase):
    maxDiff = None

    def test_fifo_without_a_name(self):
        told = come_back(self, "unshown-fifo", FIFO)
        self.assertEqual(told["before"]["rights"], ["0o10641", "0o10641"])
        self.assertEqual(told["last"], {"bytes": "old"})

    def test_interface_of_groups(self):
        told = come_back(self, "unshown-groups", GROUPS)
        said = {name: what[0] for name, what in told["before"].items()}
        self.assertEqual(said, {"chosen": "chosen", "chosen with an address": "chosen with an address", "given up": "ENETUNREACH",
                                "never": "ENETUNREACH"})

    def test_child_without_handlers(self):
        told = come_back(self, "unshown-handlers", WITHOUT_HANDLERS)
        self.assertEqual(told["inherited.before"], told["inherited.after"])
        self.assertEqual(told["inherited.before"], {"what it does at signals": [[0, 0], [1, 0]]})
        self.assertEqual(told["last"], {"the child": 7})

    def test_group_session_and_personality_that_may_not_be_asked_for(self):
        told = come_back(self, "unshown-ids", FORBIDDEN)
        self.assertEqual(told["inherited.before"], told["inherited.after"])
        self.assertEqual(told["before"], {"ids": ["ENOTUNIQ", "ENOTUNIQ", True, True, -1, "00020000"]})
        self.assertEqual(told["last"], {"the child": 7})

    def test_threads_without_cpuid(self):
        told = come_back(self, "unshown-cpuid", WITHOUT_CPUID)
        if not told["last"]["known"]:
            self.skipTest("this processor cannot be forbidden cpuid")
        self.assertEqual(told["before"], {"this thread may": 0})
        self.assertEqual(told["last"]["the other"], [0, 0])

    # The asker may look at the program, but not at who has started it.
    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "needs root and setpriv")
    def test_users_program_that_root_has_started(self):
        tree = Tree("unshown-blocks-all", ["/usr/bin/python3", "-c", BLOCKS_ALL], uid=NOBODY)
        self.addCleanup(tree.close, False)
        tree.run()
        wait_for(os.path.join(tree.work, "before"), tree)
        as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        ckpt = os.path.join(os.path.dirname(RESTART), "ckpt")
        done = subprocess.run([*as_user, ckpt, "now", str(tree.child.pid)], capture_output=True, text=True, env=job_tree.environment(),
                              timeout=job_tree.PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)


job_tree.adopt_orphans()

if __name__ == "__main__":
    job_tree.enter_own_network()
    unittest.main()
