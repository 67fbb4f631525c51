"""Fault back ends that a program cannot have: another way is taken, and it is said."""

import glob
import time

from support import *

PROGRAM = os.environ["CKPT_REFUSED_PROGRAM"]
API = os.environ["CKPT_API_PROGRAM"]
RESTART = os.path.join(os.path.dirname(CKPT), "ckpt-restart")


class Faults(CkptTest):
    def taken(self, back_end, *command, preexec_fn=None, checkpoints=2, **variables):
        """Checkpoints of a program that answers lines. What ckpt stat says then, and the log."""
        images = self.path("images")
        child = subprocess.Popen([CKPT, "run", "--dir", images, "--faults", back_end, "--", *command],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment(**variables),
                                 preexec_fn=preexec_fn)
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        if child.stdout.readline() != b"up\n":
            self.assertEqual(child.wait(), 77)
            self.skipTest("not to be had here")
        for n in range(1, checkpoints + 1):
            cost = load(self.ckpt("now", child.pid, "--json"))
            self.assertEqual(cost["sequence"], n)
            self.assertEqual(self.ckpt("verify", cost["image"]).returncode, OK)
            child.stdin.write(b"\n")
            child.stdin.flush()
            self.assertEqual(child.stdout.readline(), b"%d\n" % n)
        log = "".join(open(path, encoding="utf-8").read() for path in glob.glob(f"{images}/*.log"))
        return load(self.ckpt("stat", child.pid, "--json")), log

    def refused(self, way, reason, **variables):
        said, log = self.taken("mprotect", PROGRAM, way, **variables)
        self.assertIn("mprotect is not used: a checkpoint of this program was refused by it", said["faults_reason"])
        self.assertNotEqual(said.get("faults"), "mprotect")
        # Once: the second checkpoint does not try again.
        self.assertEqual(log.count(f"CKPT_FAULTS=mprotect cannot be used for this program: {reason}"), 1, log)

    def test_as_set(self):
        said, log = self.taken("mprotect", "/usr/bin/python3", "-c", "import sys\nprint('up', flush=True)\n"
                               "for i, _ in enumerate(sys.stdin): print(i + 1, flush=True)")
        self.assertEqual((said["mode"], said["faults"]), ("realtime", "mprotect"))
        self.assertNotIn("faults_reason", said)
        self.assertNotIn("cannot be used", log)

    @unittest.skipUnless(ROOT, "gives up rights")
    def test_without_rights(self):
        os.chown(self.directory, 65534, 65534)
        try:
            subprocess.run([CKPT, "--version"], preexec_fn=as_nobody, capture_output=True, check=True)
        except OSError:
            self.skipTest("nobody cannot reach the build directory")
        program = ("import sys\nmemory = bytearray(32 << 20)\nprint('up', flush=True)\n"
                   "for i, _ in enumerate(sys.stdin):\n"
                   "    memory[i::4096] = bytes([i + 1]) * len(memory[i::4096])\n"
                   "    print(i + 1, flush=True)")
        for back_end in ("in-thread", "mprotect"):
            with self.subTest(back_end):
                shutil.rmtree(self.path("images"), ignore_errors=True)
                said, log = self.taken(back_end, "/usr/bin/python3", "-c", program, preexec_fn=as_nobody)
                self.assertEqual((said["mode"], said["faults"]), ("realtime", back_end), log)
                self.assertNotIn("faults_reason", said)

    def test_functions_in_the_stop(self):
        self.refused("callback", "it has functions that run in the stop")

    def test_ring(self):
        self.refused("ring", "a ring, an asynchronous read or a device writes to its memory")

    def test_sigsys(self):
        self.refused("sigsys", "it handles or ignores SIGSYS itself")

    def test_restartable_sequences_of_its_own(self):
        self.refused("rseq", "a thread has restartable sequences", GLIBC_TUNABLES="glibc.pthread.rseq=0")

    def test_scattered_memory(self):
        self.refused("mappings", "its memory is scattered over too many mappings")

    def test_descriptors_of_its_own(self):
        # The main thread's, while another works: it could not unprotect by the descriptor that others have, and waits.
        # Then it has no alternate stack, as before. And our descriptor is closed in the table that it was opened in,
        # whichever thread the last stop finds first.
        said, log = self.taken("in-thread", "/usr/bin/python3", "-c",
                               "import ctypes, os, sys, threading\n"
                               "memory = bytearray(64 << 20)\n"
                               "def work():\n"
                               "    while True:\n"
                               "        for i in range(0, len(memory), 4096): memory[i] = (memory[i] + 1) % 256\n"
                               "worker = threading.Thread(target=work, daemon=True)\n"
                               "worker.start()\n"
                               "libc = ctypes.CDLL(None)\n"
                               "libc.unshare(0x400)  # CLONE_FILES\n"
                               "class Stack(ctypes.Structure): _fields_ = [('start', ctypes.c_void_p), ('flags', ctypes.c_int), ('bytes', ctypes.c_size_t)]\n"
                               "print('up', flush=True)\n"
                               "for i, _ in enumerate(sys.stdin):\n"
                               "    for tid in os.getpid(), worker.native_id:\n"
                               "        fds = f'/proc/self/task/{tid}/fd'\n"
                               "        left = [fd for fd in os.listdir(fds) if os.path.islink(f'{fds}/{fd}') and 'userfaultfd' in os.readlink(f'{fds}/{fd}')]\n"
                               "        if left: print('left:', tid, left, file=sys.stderr); sys.exit(1)\n"
                               "    stack = Stack()\n"
                               "    libc.sigaltstack(None, ctypes.byref(stack))\n"
                               "    if stack.flags != 2: print('stack:', stack.flags, file=sys.stderr); sys.exit(1)  # SS_DISABLE\n"
                               "    print(i + 1, flush=True)", checkpoints=12)
        self.assertEqual((said["mode"], said["faults"]), ("realtime", "in-thread"))
        self.assertIn("a thread has descriptors of its own", log)

    @unittest.skipIf(tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) < (6, 4), "memory is not protected ahead of the stop")
    def test_critical_section_that_needs_the_end_of_the_guard(self):
        # A thread inside makes another before it leaves, and clone(2) waits as long as the guard is open.
        images = self.path("images")
        child = subprocess.Popen([CKPT, "run", "--dir", images, "--faults", "in-thread", "--stop-timeout", "30s", "--", API, "critical"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_environment())
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), b"up\n")
        now = subprocess.Popen([CKPT, "now", str(child.pid), "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=clean_environment())
        self.addCleanup(now.wait)
        self.addCleanup(now.kill)

        def log():
            return "".join(open(path, encoding="utf-8").read() for path in glob.glob(f"{images}/*.log"))

        # The first stop has opened the guard, the second one has found the thread inside.
        while "a thread is in its critical section" not in log():
            self.assertIsNone(now.poll(), log())
            time.sleep(0.005)
        child.stdin.write(b"leave\n")
        child.stdin.flush()
        self.assertEqual(child.stdout.readline(), b"1\n")
        said, _ = now.communicate()
        self.assertEqual(now.returncode, OK, said)
        image = json.loads(said)["image"]
        self.assertEqual(load(self.ckpt("stat", child.pid, "--json"))["faults"], "in-thread", log())
        self.assertEqual(self.ckpt("verify", image).returncode, OK)
        child.kill()
        child.wait()
        # The one thread has left, and the other has come to the end of its input.
        restart = subprocess.run([RESTART, image], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=clean_environment())
        self.assertEqual((restart.returncode, restart.stderr), (0, ""))

    def test_mode_without_faults(self):
        said, _ = self.taken("mprotect", "/usr/bin/env", "CKPT_MODE=fork", "/usr/bin/python3", "-c",
                             "import sys\nprint('up', flush=True)\nfor i, _ in enumerate(sys.stdin): print(i + 1, flush=True)")
        self.assertEqual(said["mode"], "fork")
        self.assertNotIn("faults", said)
        self.assertIn("this mode protects no memory", said["faults_reason"])


if __name__ == "__main__":
    unittest.main()
