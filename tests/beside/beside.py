#!/usr/bin/env python3
"""A static program that begins as Go's do: it sees nothing of the library beside it, is checkpointed, killed and brought back."""
import ctypes
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from own_pids import enter_own_pids  # noqa: E402

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))
LIKE_GO = os.path.join(BUILD, "tests", "beside", "like_go")
UNAVAILABLE, UNSUPPORTED = 69, 78
NOBODY = 65534
PATIENCE = 120  # seconds
SIGCHLD_BIT = 1 << (signal.SIGCHLD - 1)


def environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    return clean


def adopt_orphans():
    """What the first process of a container is: who traces it becomes its child."""
    assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER


def forbid_ptrace():
    """A filter of system calls (seccomp), as a container has it: ptrace(2) is EPERM."""
    libc = ctypes.CDLL(None, use_errno=True)
    ptrace, allow, eperm = 101, 0x7FFF0000, 0x00050000 | 1
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, ptrace), (0x06, 0, 0, eperm), (0x06, 0, 0, allow)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *i) for i in code))
    filters = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(program))
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.create_string_buffer(filters), 0, 0) == 0  # PR_SET_SECCOMP


class Beside(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="ckpt-beside-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.images, self.go = (os.path.join(self.directory, n) for n in ("images", "go"))

    def run_ckpt(self, *words, **more):
        return subprocess.run([CKPT, *words], capture_output=True, text=True, timeout=PATIENCE, cwd=self.directory,
                              **{"env": environment(), **more})

    def start(self, words, **more):
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.directory,
                                 env=environment(), **more)
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        return child

    def now(self, pid, **more):
        done = self.run_ckpt("now", str(pid), **more)
        self.assertEqual(done.returncode, 0, done.stderr)

    def ends_well(self, child, *more):
        with open(self.go, "w", encoding="ascii"):
            pass
        out, err = child.communicate(timeout=PATIENCE)
        os.unlink(self.go)
        self.assertEqual((child.returncode, out.splitlines()), (0, ["counted 3", "own 63", "handled a", *more]), err)

    def test_it_begins_as_it_does_alone(self):
        """Registers, signals, descriptors, children, what the kernel keeps of a thread; also where it inherits a blocked signal.
        As one that adopts orphans, too; with a child from before, which has ended, and whose signal waits."""
        def block():
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTRAP, 60})

        def block_and_adopt():
            block()
            adopt_orphans()

        def have_child():
            block_and_adopt()
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)

        def lines(ahead, before):
            done = subprocess.run([*ahead, LIKE_GO, "begins", "a b", ""], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
                                  cwd=self.directory, env=environment(), preexec_fn=before)
            self.assertEqual(done.stderr, "")
            return [line for line in done.stdout.splitlines() if not line.startswith("variables")]

        for before in block, block_and_adopt, have_child:
            with self.subTest(before.__name__):
                alone, beside = lines([], before), lines([CKPT, "run", "--dir", self.images, "--"], before)
                # The checkpoint's own signal is not blocked in a program that can be checkpointed.
                blocked = SIGCHLD_BIT | 1 << (signal.SIGTRAP - 1)
                self.assertIn(f"mask {blocked | 1 << 59:x}", alone)
                self.assertIn(f"pending {SIGCHLD_BIT if before is have_child else 0:x}", alone)
                expected = [line if not line.startswith("mask ") else f"mask {blocked:x}" for line in alone]
                if before is have_child:  # each has one of its own
                    expected, beside = (["child" if line.startswith("child ") else line for line in of] for of in (expected, beside))
                self.assertEqual(expected, beside)
                self.assertGreater(len(alone), 20)

    @unittest.skipIf(os.geteuid() != 0, "needs root")
    def test_it_is_the_first_process_of_a_container(self):
        child = self.start(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", CKPT, "run", "--dir", self.images, "--", LIKE_GO, "counts", self.go])
        self.assertEqual(child.stdout.readline(), "up\n")
        with open(f"/proc/{child.pid}/task/{child.pid}/children", encoding="ascii") as f:
            program = int(f.read())
        with open(f"/proc/{program}/task/{program}/children", encoding="ascii") as f:
            self.assertEqual(f.read(), "")
        self.now(program)
        self.ends_well(child)

    def test_it_comes_back(self):
        self.comes_back(LIKE_GO)

    def test_one_without_a_build_id_comes_back(self):
        self.comes_back(LIKE_GO + "_without_id")

    def comes_back(self, program):
        child = self.start([CKPT, "run", "--dir", self.images, "--", program, "counts", self.go])
        self.assertEqual(child.stdout.readline(), "up\n")
        pid = child.pid
        self.now(pid)
        self.now(pid)
        self.ends_well(child)
        for _ in range(3):
            child = self.start([RESTART, self.images])
            self.take_when_there(pid)
            os.kill(pid, signal.SIGKILL)
            child.communicate(timeout=PATIENCE)  # it ends as its program did, and has reaped it
        self.ends_well(self.start([RESTART, self.images]))

    def take_when_there(self, pid):
        """ckpt-restart has the process only when it is its child: before that `ckpt now` finds none."""
        while self.run_ckpt("now", str(pid)).returncode != 0:
            pass

    @unittest.skipIf(os.geteuid() != 0, "needs root")
    def test_it_comes_back_of_an_ordinary_user(self):
        os.chown(self.directory, NOBODY, NOBODY)
        user = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        child = self.start([*user, CKPT, "run", "--dir", self.images, "--", LIKE_GO, "counts", self.go])
        self.assertEqual(child.stdout.readline(), "up\n")
        self.now(child.pid)
        self.ends_well(child)
        self.ends_well(self.start([*user, RESTART, self.images]))

    def test_who_executes_it_is_a_job_with_it(self):
        ways = {
            "shell": ["sh", "-c", '"$0" counts "$1"; echo done', LIKE_GO],
            "spawn": ["/usr/bin/python3", "-c", "import os, sys; p = os.posix_spawn(sys.argv[1], [sys.argv[1], 'counts', sys.argv[2]], os.environ); "
                      "os.waitpid(p, 0); print('done')", LIKE_GO],
            "search": ["/usr/bin/env", "PATH=" + os.path.dirname(LIKE_GO), "like_go", "counts"],
        }
        for way, words in ways.items():
            with self.subTest(way):
                images = f"{self.images}-{way}"
                child = self.start([CKPT, "run", "--dir", images, "--", *words, self.go], start_new_session=True)
                self.assertEqual(child.stdout.readline(), "up\n")
                self.now(child.pid)
                last = () if way == "search" else ("done",)
                self.ends_well(child, *last)
                self.ends_well(self.start([RESTART, images]), *last)

    def test_one_that_such_a_program_executes_is_named(self):
        """A system call instruction of its own is not seen."""
        child = self.start([CKPT, "run", "--dir", self.images, "--", LIKE_GO, "executes", LIKE_GO, "counts", self.go])
        self.assertEqual(child.stdout.readline(), "up\n")
        done = self.run_ckpt("now", str(child.pid))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("like_go", done.stderr)
        self.ends_well(child)

    def test_where_nothing_may_be_traced(self):
        done = self.run_ckpt("run", "--dir", self.images, "--", LIKE_GO, "begins", preexec_fn=forbid_ptrace)
        self.assertEqual((done.returncode, done.stdout), (UNAVAILABLE, ""))
        self.assertIn("ptrace", done.stderr)
        # What a program of a job executes runs alone, as without us.
        done = self.run_ckpt("run", "--dir", self.images, "--", "sh", "-c", '"$0" begins', LIKE_GO, preexec_fn=forbid_ptrace)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("begins\n", done.stdout)

    def beside(self, *words, **more):
        """As a job's program executes it."""
        library = os.path.join(BUILD, "lib", "libckpt_rt.so")
        return subprocess.Popen([os.path.join(BUILD, "bin", "ckpt-beside"), "--or-alone", LIKE_GO, *words], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.directory,
                                env={**environment(), "CKPT_BESIDE": library, "CKPT_DIR": self.directory, **more.pop("env", {})}, **more)

    def test_asked_while_it_is_executed(self):
        """The signal waits, and is not the program's."""
        def is_asked():
            signal.pthread_sigmask(signal.SIG_BLOCK, {60})
            os.kill(os.getpid(), 60)

        child = self.beside("like_go", "begins", preexec_fn=is_asked)
        out, err = child.communicate(timeout=PATIENCE)
        self.assertEqual((child.returncode, err, "mask 0" in out.splitlines()), (0, "", True), out)

    def test_stopped_meanwhile(self):
        """At swept instants. A stop is one; who continues the program alone, and not the group, has continued it."""
        for instant in range(150):
            child = self.beside("like_go", "counts", self.go, start_new_session=True, preexec_fn=adopt_orphans if instant % 3 == 0 else None)
            for _ in range(instant * 100):
                pass
            os.killpg(child.pid, signal.SIGSTOP)
            self.assertEqual(os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED).si_code, os.CLD_STOPPED)
            os.kill(child.pid, signal.SIGCONT)
            self.assertEqual(child.stdout.readline(), "up\n")
            self.ends_well(child)

    @unittest.skipIf(os.geteuid() != 0, "needs root")
    def test_with_more_rights_than_its_caller(self):
        """It is executed as ever, without the library."""
        copy = os.path.join(self.directory, "more")
        shutil.copy(LIKE_GO, copy)
        os.chmod(self.directory, 0o755)
        user = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        images = tempfile.mkdtemp(prefix="ckpt-beside-")
        self.addCleanup(shutil.rmtree, images, ignore_errors=True)
        os.chown(images, NOBODY, NOBODY)
        for name, value in ("setuid", None), ("security.capability", struct.pack("5I", 0x02000001, 1 << 13, 0, 0, 0)):  # cap_net_raw+ep
            os.chmod(copy, 0o4755 if value is None else 0o755)
            if value is not None:
                os.setxattr(copy, name, value)
            done = subprocess.run([*user, CKPT, "run", "--dir", images, "--", "sh", "-c", '"$0" begins; echo $?', copy], capture_output=True, text=True,
                                  timeout=PATIENCE, cwd=images, env=environment())
            self.assertEqual((done.returncode, done.stderr, done.stdout.splitlines()[-1]), (0, "", "0"))

    def test_where_the_library_does_not_start(self):
        for ahead in ("CKPT_DISABLE=1", "CKPT_MODE=foo", "LD_TRACE_LOADED_OBJECTS=1"):
            done = self.run_ckpt("run", "--dir", self.images, "--", "sh", "-c", f'{ahead} "$0" begins', LIKE_GO)
            self.assertEqual((done.returncode, done.stderr, "begins" in done.stdout.splitlines()), (0, "", True), ahead)

    def test_a_variable_of_that_name_that_is_somebody_elses(self):
        for value in "/a/path", "zz", "0" * 40, "":
            done = self.run_ckpt("run", "--dir", self.images, "--", "true", env={**environment(), "CKPT_BESIDE": value})
            self.assertEqual((done.returncode, done.stderr), (0, ""), value)

    def test_what_it_executes_is_of_its_job(self):
        """Its environment is the list that the kernel made, not libc's."""
        done = self.run_ckpt("run", "--dir", self.images, "--", LIKE_GO, "has", "CKPT_JOB=")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("@", done.stdout)  # who began it: found by its first process
        self.assertEqual(len(done.stdout.splitlines()), 1)

    def test_what_may_not_be_executed(self):
        hidden = os.path.join(self.directory, "like_go")
        shutil.copy(LIKE_GO, hidden)
        os.chmod(hidden, 0o644)
        done = self.run_ckpt("run", "--dir", self.images, "--", "sh", "-c", '"$0" begins', hidden)
        self.assertEqual(done.returncode, 126, done.stderr)

    def test_asked_from_its_first_moment_on(self):
        """It is about to have the library, and waited for."""
        for i in range(20):
            child = self.start([CKPT, "run", "--dir", self.images, "--", LIKE_GO, "counts", self.go], preexec_fn=adopt_orphans if i % 2 == 0 else None)
            self.now(child.pid)
            self.assertEqual(child.stdout.readline(), "up\n")
            self.ends_well(child)

    def test_a_job_that_executes_it_is_asked_at_any_moment(self):
        """Who puts the library beside it traces it, and is not taken for a debugger of the job."""
        job = self.start([CKPT, "run", "--dir", self.images, "--", "sh", "-c", 'while [ ! -e "$1" ]; do "$0" has HOME > /dev/null; sleep 0.02; done; echo done',
                          LIKE_GO, self.go])
        for _ in range(40):
            self.now(job.pid)
        with open(self.go, "w", encoding="ascii"):
            pass
        self.assertEqual(job.communicate(timeout=PATIENCE)[0], "done\n")

    def test_check_says_it(self):
        done = self.run_ckpt("check", "--", LIKE_GO, "counts", self.go)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        static = os.path.join(self.directory, "static")
        with open(LIKE_GO, "rb") as f, open(static, "wb") as to:
            to.write(f.read().replace(b"Go\0\0like", b"No\0\0like"))
        os.chmod(static, 0o755)
        done = self.run_ckpt("run", "--dir", self.images, "--", static, "begins")
        self.assertEqual(done.returncode, UNSUPPORTED)
        self.assertIn("statically linked", done.stderr)


if __name__ == "__main__":
    enter_own_pids()
    sys.exit(unittest.main())
