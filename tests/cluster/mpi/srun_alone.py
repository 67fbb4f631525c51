"""ckpt-srun on this host alone, outside of any job: an allocation of one node, whose variables are set here.
  srun_alone.py [-v]
"""
import ctypes.util
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SRUN = os.path.join(os.path.dirname(os.environ["CKPT"]), "ckpt-srun")


class Alone(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ckpt-srun-alone.")
        self.addCleanup(shutil.rmtree, self.dir, True)

    def start(self, *words, **more):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("CKPT", "SLURM", "PMI", "LD_PRELOAD"))}
        environment.update(SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n1", SLURMD_NODENAME="n1", SLURM_JOB_CPUS_PER_NODE="8",
                           **more.pop("variables", {}))
        started = subprocess.Popen([SRUN, *words], stdin=more.pop("stdin", subprocess.DEVNULL), stdout=more.pop("stdout", subprocess.PIPE),
                                   stderr=more.pop("stderr", subprocess.PIPE), text=True, cwd=self.dir, env=environment, **more)
        self.addCleanup(lambda: started.poll() is None and started.kill())
        return started

    def srun(self, *words, code=0, **more):
        started = self.start(*words, **more)
        out, err = started.communicate(timeout=240)
        self.assertEqual(started.returncode, code, (out, err))
        return out or "", err or ""

    def test_variables_are_there_once(self):
        """The batch script, a task itself, has values of its own: getenv takes the first, a shell the last."""
        of_script = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "5", "SLURM_GTIDS": "0", "SLURM_CPUS_ON_NODE": "1",
                     "SLURM_TASK_PID": "1", "PMI_FD": "99"}
        look = ("import os; all = open('/proc/self/environ').read().split('\\0'); names = [e.split('=')[0] for e in all if e]; "
                "print(os.environ['SLURM_PROCID'], os.environ['SLURM_LOCALID'], os.environ['SLURM_NODEID'], os.environ['SLURM_GTIDS'], "
                "os.environ['SLURM_CPUS_ON_NODE'], os.environ['SLURM_TASK_PID'] == str(os.getpid()), os.fstat(int(os.environ['PMI_FD'])).st_mode >> 12, "
                "sorted(set(n for n in names if names.count(n) > 1)))")
        out, _ = self.srun("-l", "-n2", sys.executable, "-c", look, variables=of_script)  # -l: whole lines
        self.assertEqual(sorted(out.splitlines()), ["0: 0 0 0 0,1 8 True 12 []", "1: 1 1 0 0,1 8 True 12 []"])

    def test_what_the_user_preloads(self):
        out, err = self.srun("--export=ALL,LD_PRELOAD=libno-such.so", "sh", "-c", "echo $LD_PRELOAD")
        self.assertEqual(out, "libno-such.so\n", err)

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one processor")
    def test_processors(self):
        """Those that --cpu-bind names, of those that there are."""
        here = sorted(os.sched_getaffinity(0))
        look = (sys.executable, "-c", "import os; print(os.environ['SLURM_PROCID'], sorted(os.sched_getaffinity(0)), os.environ.get('SLURM_CPU_BIND'))")

        def bound(*options):
            out, err = self.srun("-l", *options, *look)
            self.assertEqual(err, "")
            return [line.split(" ", 2)[2] for line in sorted(out.splitlines())]
        one, other = here[:2]
        self.assertEqual(bound("-n1"), [f"{here} None"])
        self.assertEqual(bound("-n3", f"--cpu-bind=verbose,map_cpu:{other},{one}"),
                         [f"[{c}] quiet,map_cpu:{other},{one}" for c in (other, one, other)])
        self.assertEqual(bound("-n2", f"--cpu-bind=mask_cpu:{1 << one | 1 << other:#x}*2"), [f"[{one}, {other}] quiet,mask_cpu:{1 << one | 1 << other:#x}*2"] * 2)
        self.assertEqual(bound("-n2", "--cpu-bind=rank"), [f"[{one}] quiet,rank", f"[{other}] quiet,rank"])
        self.assertEqual(bound("-n1", "-c2", "--cpu-bind=threads"), [f"[{one}, {other}] quiet,threads"])
        _, err = self.srun("--cpu-bind=map_cpu:8000", "true", code=1)
        self.assertIn("none of the processors", err)

    def test_a_file_of_the_node(self):
        """Two tasks have it: opened twice with O_TRUNC each would write over the other."""
        for name in ("out.%N", "out.%n"):
            self.srun("-n2", "-o", name, sys.executable, "-c", "import os; [os.write(1, b'%s\\n' % os.environb[b'SLURM_PROCID']) for i in range(500)]")
        for name in ("out.n1", "out.0"):
            with open(f"{self.dir}/{name}", encoding="ascii") as f:
                said = f.read().splitlines()
            self.assertEqual((said.count("0"), said.count("1"), len(said)), (500, 500, 1000))
        self.srun("-n2", "-e", "err.%N", "-o", "o", "sh", "-c", "for i in `seq 500`; do echo $SLURM_PROCID >&2; done")
        with open(f"{self.dir}/err.n1", encoding="ascii") as f:
            self.assertEqual(len(f.read().splitlines()), 1000)

    def test_a_file_that_is_full(self):
        """For both streams: srun says so, names it, and fails; the tasks end."""
        _, err = self.srun("-o", "/dev/full", "sh", "-c", "echo a; echo b >&2; yes", code=141)
        self.assertIn("srun: error: /dev/full: cannot be written (No space left on device)", err)
        _, err = self.srun("-o", "/dev/full", "echo", "a", code=1)
        self.assertIn("/dev/full", err)

    @unittest.skipUnless(ctypes.util.find_library("pmix") and shutil.which("mpicc.openmpi"), "no Open MPI with PMIx")
    def test_pmix(self):
        """Two steps of one number at once; no TMPDIR here; the exit code of MPI_Abort; nothing is left in the directory of files."""
        with open(f"{self.dir}/a.c", "w", encoding="ascii") as f:
            f.write("#include <mpi.h>\n#include <stdlib.h>\nint main(int n, char** v) { int sum = 0; MPI_Init(&n, &v);"
                    "for (int i = 0, one = 1; i < 200; ++i) MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);"
                    "if (n > 1) MPI_Abort(MPI_COMM_WORLD, atoi(v[1])); MPI_Finalize(); return sum; }")
        subprocess.run(["mpicc.openmpi", "-o", f"{self.dir}/a", f"{self.dir}/a.c"], check=True)
        os.mkdir(f"{self.dir}/t")
        told = dict(OMPI_MCA_btl="vader,self", OMPI_MCA_pml="ob1", OMPI_MCA_mpi_yield_when_idle="1", TMPDIR=f"{self.dir}/t")
        steps = []
        for name in "12":  # as two jobs of an allocation
            os.mkdir(f"{self.dir}/{name}")
            steps.append(self.start("-n2", "--mpi=pmix", f"{self.dir}/a", variables={**told, "CKPT_ON": f"{self.dir}/{name}/on"}))
        for step in steps:
            out, err = step.communicate(timeout=120)
            self.assertEqual(step.returncode, 2, (out, err))
        told.update(TMPDIR="/no/such/directory", OMPI_MCA_btl_vader_backing_directory=self.dir)  # an abort leaves what is there
        _, err = self.srun("-n2", "--mpi=pmix", f"{self.dir}/a", "3", code=3, variables=told)
        self.assertIn("has aborted the step", err)
        self.assertEqual(os.listdir(f"{self.dir}/t"), [])
        self.assertFalse([name for name in os.listdir(self.dir) if name.startswith("ckpt-pmix")])

    def test_quiet_says_errors(self):
        _, err = self.srun("-Q", "-K", "-n2", "sh", "-c", "[ $SLURM_PROCID = 0 ] && exit 3; exec sleep 1000", code=143)
        self.assertIn("srun: error: n1: task 0: Exited with exit code 3", err)
        self.assertNotIn("Terminating", err)

    def test_nobody_reads_the_errors(self):
        """srun's own words wait in a pipe that is full; the step goes on to its end."""
        read, write = os.pipe()
        os.set_blocking(write, False)
        try:
            while True:
                os.write(write, b"x" * 4096)
        except BlockingIOError:
            pass
        os.set_blocking(write, True)
        # The other task is heard although what is said of the first one's end is not taken yet.
        step = self.start("-n2", "sh", "-c", "[ $SLURM_PROCID = 0 ] && { echo $$ > first.new; mv first.new first; exit 3; }; "
                          "until [ -e first ]; do sleep 0.01; done; while [ -e /proc/`cat first` ]; do sleep 0.01; done; echo heard", stderr=write)
        os.close(write)
        self.assertEqual(step.stdout.readline(), "heard\n")
        step.stdout.close()
        said = b""
        while chunk := os.read(read, 65536):
            said += chunk
        os.close(read)
        self.assertEqual(step.wait(240), 3)
        self.assertIn(b"task 0: Exited with exit code 3", said)

    def test_a_signal_at_once(self):
        """However early it comes: none is lost between fork and the task's own group."""
        for _ in range(30):
            step = self.start("-n4", "sleep", "1000")
            while step.poll() is None and not self.children(step.pid):
                pass
            os.kill(step.pid, signal.SIGTERM)
            step.communicate(timeout=240)
            self.assertIn(step.returncode, (137, -15, 143))

    @staticmethod
    def runs(pid):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as f:
                return f.read().split(")")[1].split()[0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False

    @staticmethod
    def children(pid):
        try:
            with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
                return [int(c) for c in f.read().split()]
        except FileNotFoundError:
            return []

    def test_a_caller_that_has_blocked_signals(self):
        """SIGCHLD above all: the ends of tasks are heard; and tasks have the mask of the caller."""
        blocked = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}
        out, _ = self.srun("grep", "SigBlk", "/proc/self/status", preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, blocked))
        wanted = sum(1 << (s - 1) for s in blocked)
        self.assertEqual(int(out.split()[1], 16) & wanted, wanted)

    def test_what_tasks_inherit(self):
        """The mask of new files and the limits, and no descriptor of the script's."""
        read, write = os.pipe()
        os.set_inheritable(write, True)

        def before():
            import resource
            os.umask(0o027)
            resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        out, _ = self.srun("-o", "made", "sh", "-c", f"umask; ulimit -S -c; [ -e /proc/self/fd/{write} ] && echo open; true", pass_fds=[write], preexec_fn=before)
        os.close(read)
        os.close(write)
        with open(self.dir + "/made", encoding="ascii") as f:
            self.assertEqual(f.read(), "0027\n0\n")

    def test_an_order_that_cannot_be_read(self):
        node = subprocess.Popen([SRUN, "--node"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        node.stdin.write(b"S" + struct.pack("<iI", -1, 3) + b"bad")
        node.stdin.flush()
        what, task, length = struct.unpack("<ciI", node.stdout.read(9))
        self.assertEqual((what, task), (b"n", -1))
        self.assertIn(b"cannot be read", node.stdout.read(length))
        node.stdin.close()
        self.assertEqual(node.wait(240), 0)
        node.stdout.close()

    def test_tasks_end_with_their_node(self):
        step = self.start("-l", "sh", "-c", "printf \"$$\\nbegun\"; exec sleep 1000")
        number, said = step.stdout.readline().split()[1], []
        with open(f"/proc/{number}/stat", encoding="ascii") as f:
            node = int(f.read().split()[3])
        os.kill(node, signal.SIGKILL)
        out, err = step.communicate(timeout=240)
        self.assertEqual(step.returncode, 1)
        self.assertEqual(out, "0: begun\n")
        self.assertIn("n1: its part of the step has ended before its tasks", err)
        # Until then somebody has it, or what is left of it.
        while self.runs(number):
            time.sleep(0.02)

    def test_the_end_of_a_node_that_stands(self):
        """All has been said, and the node does not end: whoever waits may stop waiting."""
        step = self.start("-l", "sh", "-c", "echo $$; read word", stdin=subprocess.PIPE)
        task = step.stdout.readline().split()[1]
        with open(f"/proc/{task}/stat", encoding="ascii") as f:
            node = int(f.read().split()[3])
        # It learns that all has been said while its node stands.
        os.kill(step.pid, signal.SIGSTOP)
        os.kill(int(task), signal.SIGKILL)
        while os.path.exists(f"/proc/{task}") or state(node) != "S":
            time.sleep(0.01)
        os.kill(node, signal.SIGSTOP)
        os.kill(step.pid, signal.SIGCONT)
        while step.poll() is None:
            os.kill(step.pid, signal.SIGTERM)
            time.sleep(0.02)
        self.assertEqual(step.wait(), 137)
        step.communicate()

    def test_a_task_that_does_not_read_on(self):
        """Its standard input is closed early: the other has all, and the input is counted as taken."""
        with open(self.dir + "/numbers", "w", encoding="ascii") as f:
            f.writelines(f"{n}\n" for n in range(300000))
        out, _ = self.srun("-n2", "-i", "numbers", "sh", "-c", "[ $SLURM_PROCID = 0 ] && exec head -n1; exec wc -l")
        self.assertEqual(sorted(out.split()), ["0", "300000"])


def state(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


def pack(*strings):
    strings = [s.encode() for s in strings]
    return struct.pack("<I", len(strings)) + b"".join(struct.pack("<I", len(s)) + s for s in strings)


class Node(unittest.TestCase):
    """`ckpt-srun --node` alone: this test is its launcher."""

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ckpt-srun-node.")
        self.addCleanup(shutil.rmtree, self.dir, True)

    def start(self, *tasks):
        """tasks: a program of Python each, to which `pmi` is its socket."""
        node = subprocess.Popen([SRUN, "--node"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=self.dir)
        self.addCleanup(node.stdout.close)
        self.addCleanup(lambda: (node.stdin.close(), node.kill(), node.wait()))
        self.node, self.heard = node, b""
        inner = lambda *parts: struct.pack("<I", len(parts)) + b"".join(struct.pack("<I", len(p)) + p for p in parts)
        orders = []
        for number, task in enumerate(tasks):
            words = pack(sys.executable, "-c", "import os, socket, sys; pmi = socket.socket(fileno=int(os.environ['PMI_FD']))\n" + task)
            orders.append(inner(str(number).encode(), words, b"", b"", b"", b"", pack()))
        self.say(b"S", -1, inner(self.dir.encode(), b"--p", pack("PATH=" + os.environ["PATH"]), b"18", b"", *orders))

    def say(self, what, task, data=b""):
        self.node.stdin.write(what + struct.pack("<iI", task, len(data)) + data)
        self.node.stdin.flush()

    def hear(self):
        what, task, length = struct.unpack("<ciI", self.node.stdout.read(9))
        return what, task, self.node.stdout.read(length)

    def until(self, what, data):
        """All frames up to this one."""
        frames = [self.hear()]
        while (frames[-1][0], frames[-1][2]) != (what, data):
            frames.append(self.hear())
        return frames

    def test_who_does_not_read_his_answers_may_not_ask(self):
        self.start("for word in sys.stdin:\n"
                   "    if word == 'ask\\n': pmi.send(b'question')\n"
                   "    if word == 'read\\n':\n"
                   "        left = 4 << 20\n"
                   "        while left: left -= len(pmi.recv(min(left, 65536)))\n"
                   "    print(word, end='', flush=True)\n")
        for _ in range(64):
            self.say(b"p", 0, b"a" * (64 << 10))
        asked = []
        for word in (b"ask\n", b"more\n", b"still more\n"):  # the node looks at all sockets of a task before it comes to its next word
            self.say(b"i", 0, word)
            asked += self.until(b"o", word)
        self.assertEqual([f for f in asked if f[0] == b"p"], [])
        self.say(b"i", 0, b"read\n")
        self.until(b"p", b"question")

    def test_it_sleeps_while_nothing_can_be_done(self):
        """Nobody reads what it says of one task, and another one has closed its socket."""
        self.start("while True: pmi.send(b'q' * 65536)",
                   "open('there', 'w')\nsys.stdin.readline()\npmi.close()\nopen('closed', 'w')\nsys.stdin.readline()")
        while not os.path.exists(self.dir + "/there") or state(self.node.pid) != "S" or len(self.waiting()) != 2:
            time.sleep(0.02)
        self.say(b"i", 1, b"close\n")
        while not os.path.exists(self.dir + "/closed"):
            time.sleep(0.02)
        # One that comes back from each wait at once never sleeps again.
        for _ in range(1000):
            if state(self.node.pid) == "S":
                break
            time.sleep(0.02)
        self.assertEqual([state(self.node.pid) for _ in range(20)].count("S"), 20)

    def waiting(self):
        """Its tasks that wait: for room, or for a word."""
        with open(f"/proc/{self.node.pid}/task/{self.node.pid}/children", encoding="ascii") as f:
            return [c for c in f.read().split() if state(c) == "S"]


if __name__ == "__main__":
    unittest.main()
