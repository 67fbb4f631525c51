#!/usr/bin/env python3
"""What the kernel knows of a process that no restart brings back is said; full queues of signals; strangers."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import signal
import sys
import time
import unittest

from stepped_program import CKPT, environment
from stepped_test import NOT_RESTARTABLE, SteppedTest, needs_root

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from stopped_threads import is_any_stopped  # noqa: E402

NOBODY = 65534


class Said(SteppedTest):
    def check_note(self, word):
        self.assertEqual([n for n in self.checkpoint() if word in n], [])
        yield
        self.assertEqual(len([n for n in self.checkpoint() if word in n]), 1)

    def test_memory_policy(self):
        self.start()
        if self.ask("call(238, 1, struct.pack('Q', 1), 64)") != "0":  # MPOL_PREFERRED, node 0
            self.skipTest("no memory policies here")
        for _ in range(2):
            self.assertEqual([n for n in self.checkpoint() if "polic" in n], [])
            self.kill_program()
            self.restart()
            self.do("mode = ctypes.c_int()", "nodes = ctypes.create_string_buffer(128)")
            self.assertEqual(self.ask("(call(239, ctypes.byref(mode), nodes, ctypes.c_long(1025), 0, 0), mode.value, nodes.raw[0])"), "(0, 1, 1)")

    def test_message_to_come(self):
        """The checkpoint itself ends mq_notify: the kernel does so at each close of the queue in the process."""
        self.start()
        steps = self.check_note("mq_notify")
        next(steps)
        name = b"/ckpt-said.%d" % os.getpid()
        self.do(f"queue = libc.mq_open({name}, os.O_RDWR | os.O_CREAT, 0o600, None)", f"libc.mq_unlink({name})")
        self.assertEqual(self.ask("libc.mq_notify(queue, struct.pack('qii', 0, 0, 1).ljust(64, b'\\0'))"), "0")  # SIGEV_NONE
        list(steps)

    def check_keys(self, ring, word):
        self.start()
        steps = self.check_note(word)
        next(steps)
        self.do(f"key = libc.syscall(248, b'user', b'ckpt-said', b'v', ctypes.c_long(1), {ring})")
        if self.ask("key == -1") == "True":
            self.skipTest("no keys here")
        list(steps)
        self.do(f"libc.syscall(250, 9, key, {ring})")

    def test_keys_of_the_session(self):
        """A restart may be in another one."""
        self.check_keys(-3, "keyring of its session")

    def test_keys_of_its_own(self):
        self.check_keys(-2, "keyring of its own")

    def test_what_happens_in_a_directory(self):
        self.start()
        directory = self.path("watched")
        os.mkdir(directory)
        self.do("seen = []", "signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))", f"fd = os.open({directory!r}, os.O_RDONLY)",
                "fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGUSR1)", "fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)")
        # Closed since, under the same number: nobody asked for that one.
        self.do(f"other = os.open({directory!r}, os.O_RDONLY)", "fcntl.fcntl(other, fcntl.F_NOTIFY, fcntl.DN_DELETE | fcntl.DN_MULTISHOT)",
                "os.close(other)", f"again = os.open({directory!r}, os.O_RDONLY)")
        self.assertEqual(self.ask("other == again"), "True")
        for _ in range(2):
            self.checkpoint()
            self.kill_program()
            self.restart()
            with open(os.path.join(directory, "new"), "w"):
                pass
            self.assertEqual(self.ask("len(seen)"), "1")
            self.do("seen.clear()")
            self.assertEqual(self.ask("[fcntl.fcntl(f, fcntl.F_GETOWN) == os.getpid() for f in (fd, again)]"), "[True, False]")
            os.unlink(os.path.join(directory, "new"))
            self.assertEqual(self.ask("seen"), "[]")

    def test_what_happens_in_a_directory_of_a_child(self):
        """Known to be a child only when its first checkpoint is taken."""
        self.assertEqual(self.comes_back_as_job("""
child = os.fork()
if child == 0:
    told = []
    signal.signal(signal.SIGIO, lambda *_: told.append(1))
    os.mkdir('d')
    fd = os.open('d', os.O_RDONLY)
    fcntl.fcntl(fd, fcntl.F_NOTIFY, fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
    open('up', 'w').close()
    while not os.path.exists('go'): time.sleep(0.001)
    open('d/new', 'w').close()
    os._exit(not told)  # the signal is there before open(2) has returned
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""), (0, ""))

    def test_a_child_of_another_job(self):
        """Its environment has the library, and not the job's name: it is in no image, and must not be lost without a word."""
        self.start()
        self.do("c = subprocess.Popen(['/usr/bin/sleep', '1000'], env={'LD_PRELOAD': os.environ['LD_PRELOAD']}, preexec_fn=lambda: libc.prctl(1, 9))")
        child = self.ask("c.pid")
        code, said = self.now()
        self.assertEqual((code, said["members_left_out"]), (0, 1), said)
        shown = json.loads(subprocess.run([CKPT, "show", "--json", said["job"]], capture_output=True, check=True).stdout)
        self.assertEqual([str(left["pid"]) for left in shown["left_out"]], [child])
        self.assertIn("another job", shown["left_out"][0]["reason"])

    @needs_root
    def test_securebits(self):
        """They come back where the program may still set them (CAP_SETPCAP)."""
        self.start()
        steps = self.check_note("PR_SET_SECUREBITS")
        next(steps)
        self.assertEqual(self.ask("libc.prctl(28, 1, 0, 0, 0)"), "0")  # SECBIT_NOROOT
        self.assertEqual([n for n in self.checkpoint() if "PR_SET_SECUREBITS" in n], [])
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("libc.prctl(27, 0, 0, 0, 0)"), "1")
        self.do("header, sets = struct.pack('Ii', 0x20080522, 0), ctypes.create_string_buffer(24)", "call(125, header, sets)",
                "given_up = [v & ~(1 << 8 if i < 2 else 0) for i, v in enumerate(struct.unpack('6I', sets))]")
        self.assertEqual(self.ask("call(126, header, struct.pack('6I', *given_up))"), "0")
        list(steps)

    @needs_root
    def test_chroot(self):
        self.start("unshare", "-m")
        self.assertEqual([n for n in self.checkpoint() if "chroot" in n], [])
        self.do("os.makedirs('root/proc'); os.makedirs('root' + %r, 0o700)" % self.images,
                "assert libc.mount(b'proc', b'root/proc', b'proc', 0, None) == 0", "os.chroot('root'); os.chdir('/')")
        self.now()
        # Where it now writes them.
        with open(self.path("root" + self.images + "/ckpt_rt.log"), encoding="utf-8") as log:
            self.assertIn("chroot", log.read())


class Code(SteppedTest):
    """Of a library that the program has loaded."""

    def setUp(self):
        super().setUp()
        self.library = self.path("loaded.so")
        shutil.copy("/usr/lib/x86_64-linux-gnu/libm.so.6", self.library)
        self.start()
        self.do(f"lib = ctypes.CDLL({self.library!r})", "lib.cbrt.restype = ctypes.c_double")


class Written(Code):
    """By the program: that is no probe of the kernel."""

    def test_a_jump_in_the_code(self):
        """A program, or a library, that replaces functions writes jumps over them. A byte of the distance may look like a probe."""
        self.do("at = ctypes.cast(lib.cbrt, ctypes.c_void_p).value", "mem = open('/proc/self/mem', 'r+b', 0)",
                "put = lambda code: (mem.seek(at), mem.write(bytes.fromhex(code)))", "mem.seek(at); code = mem.read(16)")
        for jump, restartable in (("e900cc0000", True), ("ff2500000000cccc00cc00000000", True),
                                  ("49bbcccc00cccc00000041ffe3", True), ("48b8cc00cc00cc000000ffe0", True), ("cc", False)):
            self.do(f"put({jump!r})")
            code, said = self.now()
            self.assertEqual((code == 0, said["restartable"]), (restartable, restartable), (jump, said))
            self.do("put(code.hex())")

    def test_code_that_the_program_writes_itself(self):
        """A Forth or Lisp maps its image to be written and run, and forbids writing to parts of it. No probe is put into what may be written."""
        image = self.path("image")
        with open(image, "wb") as f:
            f.write(b"\x90" * 8192)
        self.do(f"fd = os.open({image!r}, os.O_RDONLY)", "code = mmap.mmap(fd, 8192, mmap.MAP_PRIVATE, 7)", "code[100] = code[5000] = 0xcc")
        self.checkpoint()
        self.do("at = ctypes.addressof(ctypes.c_char.from_buffer(code))")
        self.assertEqual(self.ask("libc.mprotect(ctypes.c_void_p(at), 4096, 5)"), "0")
        self.checkpoint()
        # Now nothing of it may be written: this could be a probe.
        self.assertEqual(self.ask("libc.mprotect(ctypes.c_void_p(at), 8192, 5)"), "0")
        code, said = self.now()
        self.assertEqual((code, said["restartable"]), (NOT_RESTARTABLE, False), said)


class Probed(Code):
    """A probe of the kernel (uprobes) replaces an instruction of the program by one that traps, in the memory of the process."""

    EVENTS = "/sys/kernel/tracing/uprobe_events"

    def setUp(self):
        super().setUp()
        symbols = subprocess.run(["nm", "-D", self.library], capture_output=True, text=True, check=True).stdout
        self.event = f"ckpt_probed_{os.getpid()}"
        try:
            self.write_event(f"p:{self.event}/cbrt {self.library}:0x{re.search('^([0-9a-f]+) . cbrt(@|$)', symbols, re.M).group(1)}")
        except OSError as e:
            self.skipTest(f"no probes here: {e}")
        self.addCleanup(self.remove)

    def remove(self):
        self.enable(False)
        self.write_event(f"-:{self.event}/cbrt")

    # The file cannot be sought in, as Python's own open() does.
    def write_event(self, text):
        fd = os.open(self.EVENTS, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, text.encode() + b"\n")
        finally:
            os.close(fd)

    def enable(self, on):
        with open(f"/sys/kernel/tracing/events/{self.event}/enable", "w", encoding="ascii") as f:
            f.write("1" if on else "0")

    def call(self):
        self.assertEqual(self.ask("round(lib.cbrt(ctypes.c_double(27)))"), "3")

    def test_a_program_with_a_probe(self):
        self.enable(True)
        # Not met yet: nothing shows it but the code.
        code, said = self.now()
        self.assertEqual((code, said["restartable"]), (NOT_RESTARTABLE, False), said)
        self.call()
        self.assertEqual(self.ask("'[uprobes]' in open('/proc/self/maps').read()"), "True")
        code, said = self.now()
        self.assertEqual((code, said["restartable"]), (NOT_RESTARTABLE, False), said)
        self.assertIn("uprobes", " ".join(said["why_not_restartable"]))
        # The kernel's own memory for it stays. What was there before is there again.
        self.enable(False)
        self.call()
        self.assertEqual(["uretprobe" in n for n in self.checkpoint() if "probe" in n], [True])
        self.kill_program()
        self.restart()
        self.call()


class Restarter(SteppedTest):
    """`ckpt-restart DIR & ckpt now $!`: what it has brought back is asked."""

    def check(self, has_namespace):
        self.restart()
        program, self.pid = self.pid, self.program.child.pid
        self.assertEqual(os.path.basename(os.readlink(f"/proc/{self.pid}/exe")), "ckpt-restart")
        self.assertEqual(os.readlink("/proc/self/ns/pid") != os.readlink(f"/proc/{program}/ns/pid"), has_namespace)
        code, said = self.now()
        self.assertEqual((code, said["pid"]), (0, program), said)
        self.pid = program

    @needs_root
    def test_below_the_first_process_of_a_namespace(self):
        first = self.start()
        self.checkpoint()
        os.kill(self.pid, signal.SIGKILL)  # nobody waits for it yet: its id is in use
        self.check(has_namespace=True)
        self.kill_program()
        first.end()

    def test_below_itself(self):
        self.start()
        self.checkpoint()
        self.kill_program()
        self.check(has_namespace=False)


class FullQueue(SteppedTest):
    """No more signals can be queued for the program's user."""

    def test_a_thousand_threads(self):
        self.start("prlimit", "--sigpending=0:0", CKPT_STOP_TIMEOUT="20s")
        self.do("threading.stack_size(65536)", "e = threading.Event(); ts = [threading.Thread(target=e.wait, daemon=True) for _ in range(1000)]",
                "[t.start() for t in ts]")
        self.checkpoint()
        self.assertEqual(self.ask("threading.active_count()"), "1001")

    def stopped_in_handler(self):
        """How many threads block all signals but those of faults: in our handler, or threads of ours."""
        count = 0
        for tid in os.listdir("/proc/%d/task" % self.pid):
            with contextlib.suppress(OSError), open("/proc/%d/task/%s/status" % (self.pid, tid), encoding="utf-8") as f:  # else it has ended
                count += (int(re.search(r"SigBlk:\s*(\w+)", f.read())[1], 16) >> 33).bit_count() == 31
        return count

    def test_time_out_with_a_thousand_threads(self):
        """The clock is looked at when 128 have been signalled, although the others would come as steadily: the checkpoint is given up."""
        self.start("prlimit", "--sigpending=0:0", CKPT_STOP_TIMEOUT="1ms", CKPT_TEST_POINT="stop.signalled=stop")
        self.do("threading.stack_size(65536)", "e = threading.Event(); ts = [threading.Thread(target=e.wait, daemon=True) for _ in range(1000)]",
                "[t.start() for t in ts]")
        asker = subprocess.Popen([CKPT, "now", str(self.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment())
        self.addCleanup(asker.communicate)
        self.addCleanup(asker.kill)
        while not is_any_stopped(self.pid):
            self.assertIsNone(asker.poll())
        stands = time.monotonic()
        stood = self.stopped_in_handler()
        while time.monotonic() < stands + 0.01:  # its millisecond has passed
            pass
        os.kill(self.pid, signal.SIGCONT)
        said = asker.communicate(timeout=60)[1]
        self.assertEqual(asker.returncode, 75, said)
        self.assertIn("no more signals can be queued", said)
        # Beside a few threads of ours. None of the program's where the first to take the signal waits for a page: then the others are not signalled.
        self.assertLessEqual(stood, 128 + 8)
        self.assertEqual(self.ask("threading.active_count()"), "1001")

    def test_queued_signal_whose_place_others_take(self):
        self.start("prlimit", "--sigpending=64:64")
        info = "struct.pack('6iq', 40, 0, -1, 0, os.getpid(), os.getuid(), v).ljust(128, b'\\0')"
        self.do("signal.pthread_sigmask(signal.SIG_BLOCK, {40})",
                "sent = [call(297, os.getpid(), os.getpid(), 40, %s) for v in range(1, 6)]" % info,
                "def wait():\\n    b = ctypes.create_string_buffer(128)\\n    r = call(128, struct.pack('Q', 1 << 39), b, struct.pack('qq', 10, 0), 8)\\n"
                "    return r, struct.unpack_from('q', b, 24)[0]")
        self.assertEqual(self.ask("sent"), "[0, 0, 0, 0, 0]")
        fill = ("import ctypes, os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {41}); "
                "[ctypes.CDLL(None).sigqueue(os.getpid(), 41, ctypes.c_void_p(0)) for _ in range(300)]; print('up', flush=True); sys.stdin.read()")
        with subprocess.Popen([sys.executable, "-c", fill], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as filler:
            self.assertEqual(filler.stdout.readline(), b"up\n")
            self.checkpoint()
            self.checkpoint()  # and what has no place yet is in the next
            filler.stdin.close()
        self.assertEqual(self.ask("[wait() for v in range(5)]"), str([(40, v) for v in range(1, 6)]))
        self.kill_program()
        self.restart()
        self.assertEqual(self.ask("[wait() for v in range(5)]"), str([(40, v) for v in range(1, 6)]))

    @needs_root
    def test_stranger_who_listens_under_our_name(self):
        self.start("prlimit", "--sigpending=0:0")
        os.seteuid(NOBODY)
        try:
            strangers = [socket.socket(socket.AF_UNIX) for _ in range(3)]
            names = ["ckpt_rt.%016x" % self.pid, "ckpt_rt.%016x.%016x" % (self.pid, 1 << 40), "ckpt_rt.%016x.%016x" % (self.pid, (1 << 64) - 1)]
            for stranger, name in zip(strangers, names):
                stranger.bind("\0" + name)
                stranger.listen()
                self.addCleanup(stranger.close)
        finally:
            os.seteuid(0)
        self.checkpoint()
        # Several at once: each is answered.
        askers = [subprocess.Popen([CKPT, "stat", str(self.pid)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment()) for _ in range(4)]
        for asker in askers:
            out = asker.communicate(timeout=60)[0]
            self.assertEqual(asker.returncode, 0, out)


if __name__ == "__main__":
    sys.exit(unittest.main())
