"""ckpt now and ckpt stat: programs that cannot be asked, and answers right and wrong."""

import signal
import tempfile
import unittest

from support import *

GONE = 4194303  # PID_MAX_LIMIT - 1: hardly ever in use


NANOSLEEP = ("35", "230")


def system_call(pid):
    """The number of the call that it sleeps in."""
    try:
        with open(f"/proc/{pid}/syscall") as f:
            return f.read().split()[0]
    except OSError:
        return ""


def wait_for_state(pid, letters):
    while True:
        with open(f"/proc/{pid}/stat") as f:
            if f.read().rsplit(")", 1)[1].split()[0] in letters:
                return


def other_thread(pid):
    """Of a process of two. Its number may be the smaller one: numbers begin again."""
    (tid,) = {int(tid) for tid in os.listdir(f"/proc/{pid}/task")} - {pid}
    return tid


class NotToBeAsked(CkptTest):
    def both(self, code, words, pid, **kwargs):
        for command in ["now", "stat"]:
            with self.subTest(command):
                self.refuse(code, words, command, pid, **kwargs)

    def test_no_such_process(self):
        self.both(NO_PROCESS, [str(GONE), "no such process"], GONE)

    def test_not_preloaded(self):
        with self.program("no-library") as p:
            self.both(NO_PROCESS, [str(p.pid), "without libckpt_rt.so", "ckpt run"], p.pid)
            self.assertIsNone(p.poll())

    def test_disabled(self):
        with self.program(CKPT_DISABLE="1") as p:
            self.both(NO_PROCESS, "CKPT_DISABLE", p.pid)

    def test_no_handler_is_never_signalled(self):
        # The signal's default action would kill it.
        with self.program("no-handler") as p:
            self.refuse(UNAVAILABLE, "does not handle checkpoint signal 60", "now", "--timeout=1s", p.pid)
            self.assertIsNone(p.poll())

    def test_zombie(self):
        child = os.fork()
        if child == 0:
            os._exit(0)
        wait_for_state(child, "Z")
        self.both(NO_PROCESS, "zombie", child)
        os.waitpid(child, 0)

    def test_stopped(self):
        with self.program() as p:
            p.send_signal(signal.SIGSTOP)
            wait_for_state(p.pid, "T")
            # now and stat: tests/jobs/stopped/stopped.py, which has the library in its program.
            self.refuse(UNAVAILABLE, ["stopped", f"kill -CONT {p.pid}"], "back", p.pid)
            p.send_signal(signal.SIGCONT)
            self.assertEqual(self.ckpt("now", p.pid).returncode, OK)

    def test_thread_instead_of_process(self):
        with self.program() as p:
            tid = other_thread(p.pid)
            self.both(NO_PROCESS, f"thread of process {p.pid}", tid)

    def test_someone_elses(self):
        if ROOT:
            with self.program() as p:
                self.both(PERMISSION, "belongs to user 0", p.pid, preexec_fn=as_nobody)
        else:
            self.both(PERMISSION, "belongs to user 0", 1)

    @unittest.skipUnless(ROOT, "only root can give rights up")
    def test_undumpable(self):
        os.chmod(self.directory, 0o755)
        with self.program("undumpable", preexec_fn=as_nobody) as p:
            self.both(PERMISSION, ["memory map", "root"], p.pid, preexec_fn=as_nobody)

    def test_kernel_thread(self):
        with open("/proc/2/comm") as f:
            if f.read().strip() != "kthreadd":
                self.skipTest("no kernel threads in this pid namespace")
        if ROOT:
            self.both(NO_PROCESS, "kernel thread", 2)
        else:
            self.both(PERMISSION, "belongs to user 0", 2)

    def test_about_to_run(self):
        """`ckpt run` has not executed the program yet."""
        with tempfile.TemporaryDirectory(prefix="ckpt-cli-") as images:
            for _ in range(20):
                program = subprocess.Popen([CKPT, "run", "--dir", images, "--", "sleep", "100"], env=clean_environment())
                try:
                    asked = subprocess.run([CKPT, "now", str(program.pid)], capture_output=True, text=True, timeout=60, env=clean_environment())
                    self.assertEqual((asked.returncode, asked.stderr), (OK, ""))
                finally:
                    program.kill()
                    program.wait()

    def test_just_started(self):
        """Between execve and the start of the library it handles no signal, and is waited for."""
        for command in ["now", "stat"]:
            with self.subTest(command), self.program("late-handler") as p:
                asker = subprocess.Popen([CKPT, command, str(p.pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=clean_environment())
                while asker.poll() is None and system_call(asker.pid) not in NANOSLEEP:
                    pass
                p.stdin.write(b"x")
                p.stdin.flush()
                self.assertEqual(asker.communicate(timeout=60)[1], "")
                self.assertEqual(asker.returncode, OK)


class Answers(CkptTest):
    def test_cost(self):
        with self.program() as p:
            result = self.ckpt("now", p.pid)
            self.assertEqual((result.returncode, result.stderr), (OK, ""))
            for text in ["checkpoint 3 of", f"(pid {p.pid}) is durable", "/tmp/fake.1.00000000.000003.ckpt", "realtime",
                         "812 us (4 threads)", "21.0 us", "1,234 segments", "15,000 segments", "1.00 GiB", "1.31 s",
                         "17 (the pool was empty", "descriptor 5 is a GPU", "another"]:
                self.assertIn(text, result.stdout)

    def test_cost_as_json(self):
        with self.program() as p:
            cost = load(self.ckpt("now", "--json", p.pid))
            self.assertEqual(cost["pid"], p.pid)
            self.assertEqual((cost["pause_ns"], cost["mode"], cost["future_key"]), (812000, "realtime", 7))
            self.assertEqual(cost["notes"], ["descriptor 5 is a GPU", "another"])

    def test_figures(self):
        with self.program() as p:
            result = self.ckpt("stat", p.pid)
            self.assertEqual((result.returncode, result.stderr), (OK, ""))
            for text in ["realtime (full userfaultfd)", "2 taken, 1 given up", "1.20 ms longest",
                         "  CKPT_DIR                ./ckpt-NAME.PID (default)\n",
                         "  CKPT_MODE               auto (default); in force: realtime\n", "  CKPT_KEEP               3\n",
                         "  CKPT_LATER              x\n"]:
                self.assertIn(text, result.stdout)
            figures = load(self.ckpt("stat", p.pid, "--json"))
            self.assertEqual((figures["pid"], figures["version"], figures["signal"]), (p.pid, "0.1.0", 60))
            self.assertEqual(figures["settings"], {"CKPT_DIR": {"set": "", "in_force": ""},
                                                   "CKPT_MODE": {"set": "auto", "in_force": "realtime"},
                                                   "CKPT_KEEP": {"set": "3", "in_force": "3"},
                                                   "CKPT_LATER": {"set": "x", "in_force": "x"}})

    def test_answers_do_not_steer_the_terminal(self):
        for behaviour, code in [("terminal", OK), ("terminal-error", IO)]:
            for command in ["now", "stat"]:
                with self.subTest(behaviour, command=command), self.program(behaviour) as p:
                    result = self.ckpt(command, p.pid)
                    self.assertEqual(result.returncode, code, result.stderr)
                    self.assertNotIn("\033", result.stdout + result.stderr)
                    self.assertIn("\\x1b[2J", result.stdout + result.stderr)

    def test_other_signal(self):
        with self.program(CKPT_SIGNAL="45") as p:
            self.assertEqual(self.ckpt("now", p.pid).returncode, OK)

    def test_asked_many_times(self):
        with self.program() as p:
            for _ in range(50):
                self.assertEqual(self.ckpt("stat", p.pid).returncode, OK)

    def test_other_pid_namespace(self):
        # unshare(1) becomes the parent of pid 1 of the new namespace, which is the fake program.
        unshare = ["unshare", "--pid", "--fork"] if ROOT else ["unshare", "--user", "--pid", "--fork"]
        outer = subprocess.Popen([*unshare, FAKE, "good"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 env=clean_environment())
        try:
            self.assertEqual(outer.stdout.readline(), b"ready\n")
            with open(f"/proc/{outer.pid}/task/{outer.pid}/children") as f:
                pid = int(f.read())
            self.assertEqual(self.ckpt("now", pid).returncode, OK)
            self.assertIn("pid in its namespace    1\n", self.ckpt("stat", pid).stdout)
        finally:
            outer.stdin.close()
            outer.wait()
            outer.stdout.close()

    def test_other_network_namespace(self):
        unshare = ["unshare", "--net"] if ROOT else ["unshare", "--user", "--net"]
        child = subprocess.Popen([*unshare, FAKE, "good"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 env=clean_environment())
        try:
            self.assertEqual(child.stdout.readline(), b"ready\n")
            result = self.ckpt("now", child.pid)
            self.assertEqual(result.returncode, OK, result.stderr)
        finally:
            child.stdin.close()
            child.wait()
            child.stdout.close()


class WrongAnswers(CkptTest):
    def ask(self, behaviour, code, *words, args=()):
        with self.program(behaviour) as p:
            self.refuse(code, [str(p.pid), *words], "now", p.pid, *args)

    def test_error_of_the_program_comes_through(self):
        self.ask("error", IO, "/images: the disk is full (free some space)")

    def test_unreadable_error(self):
        self.ask("bad-error", INTERNAL)

    def test_hangs_up(self):
        self.ask("hangs-up", INTERNAL, "broke off", args=["--timeout", "5s"])

    def test_endless_line(self):
        self.ask("endless-line", INTERNAL, "broke off")

    def test_dies(self):
        self.ask("dies", NO_PROCESS, "exited before it answered", "ckpt-restart")

    def test_dies_after_its_connection(self):
        self.ask("dies-slowly", NO_PROCESS, "exited before it answered", "ckpt-restart")

    def test_future_protocol(self):
        self.ask("future", INCOMPATIBLE, "version 4")

    def test_other_pid(self):
        self.ask("other-pid", INTERNAL, "answered as process 1")

    def test_timeouts(self):
        for behaviour in ["silent", "mute", "stalls"]:
            with self.subTest(behaviour):
                self.ask(behaviour, TIMEOUT, "did not answer within 0.2 s", args=["--timeout", "200ms"])


class Backtrace(CkptTest):
    def test_own_child(self):
        with self.program() as p:
            wait_for_state(p.pid, "S")  # it has said that it is ready, and goes to wait for its input
            result = self.ckpt("backtrace", p.pid)
            self.assertEqual((result.returncode, result.stderr), (OK, ""))
            self.assertIn(f"of process {p.pid}: state S", result.stdout)
            self.assertRegex(result.stdout, r"#\d+ .*\bmain\b")
            self.assertEqual(self.ckpt("now", p.pid).returncode, OK)  # it runs on

    def test_one_thread(self):
        with self.program() as p:
            tid = other_thread(p.pid)
            wait_for_state(tid, "S")
            result = self.ckpt("backtrace", p.pid, tid)
            self.assertRegex(result.stdout, r"#\d+ .*::serve\(void\*\)")

    def test_refusals(self):
        self.refuse(NO_PROCESS, "no such thread", "backtrace", GONE)
        with self.program() as p:
            self.refuse(NO_PROCESS, "no such thread", "backtrace", p.pid, os.getpid())
            if ROOT:
                result = self.ckpt("backtrace", p.pid, preexec_fn=as_nobody)
                self.assertEqual(result.returncode, PERMISSION, result.stderr)


if __name__ == "__main__":
    unittest.main()
