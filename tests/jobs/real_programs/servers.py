#!/usr/bin/env python3
"""Servers that start as root and give up its rights: nginx with workers, PostgreSQL. Killed with a checkpoint in hand, brought back,
and asked from outside. Exit code 77: no root, or none of these programs.
  servers.py [Nginx|PostgreSQL]
"""
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from job_tree import PATIENCE, adopt_orphans, descendants, enter_own_network, kill_all_below, state_of  # noqa: E402

BUILD = os.environ["CKPT_BUILD"]
CKPT, RESTART = (os.path.join(BUILD, "bin", n) for n in ("ckpt", "ckpt-restart"))


def environment():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
    clean["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
    return {**clean, "LC_ALL": "C"}


def comm(pid):
    try:
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
    except OSError:
        return ""


def user(pid):
    """Its user; -1: it has ended."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


class Server(unittest.TestCase):
    program = ""  # its name in /proc

    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix=f"ckpt-{self.program}-")
        os.chmod(self.directory, 0o755)
        self.images = os.path.join(self.directory, "images")
        self.child = None
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.addCleanup(self.kill)

    def wait_for(self, what, condition):
        end = time.monotonic() + PATIENCE
        while not (found := condition()):
            if time.monotonic() > end:
                said = ""
                for name in ("out", "error.log"):
                    path = os.path.join(self.directory, name)
                    if os.path.exists(path):
                        with open(path, errors="replace") as f:
                            said += f"\n{name}: {f.read()[-3000:]}"
                self.fail(f"not in time: {what}; {self.program}: {self.processes()}, started: {self.child.poll()}{said}")
            time.sleep(0.02)
        return found

    def spawn(self, command):
        with open(os.path.join(self.directory, "out"), "ab") as out:
            self.child = subprocess.Popen(command, cwd=self.directory, env=environment(), stdin=subprocess.DEVNULL,
                                          stdout=out, stderr=out, start_new_session=True)

    def run_server(self, *command):
        self.spawn([CKPT, "run", "--dir", self.images, "--", *command])

    def processes(self):
        return [p for p in sorted(descendants(os.getpid())) if comm(p) == self.program and state_of(p) != "Z"]

    def now(self, pid):
        done = subprocess.run([CKPT, "now", "--json", str(pid)], env=environment(), capture_output=True, text=True,
                              timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def kill(self):
        if self.child is not None:
            kill_all_below(self.child)
        self.child = None

    def kill_and_restart(self, job, members, as_user=()):
        """members: those that live on. Others may have been about to end, and end as soon as they are back."""
        self.kill()
        before = self.reports(())
        # Root restarts what its workers have written, as other users, only where it says so.
        self.spawn([*as_user, RESTART, "--json", *([] if as_user else ["--trust"]), job])
        self.wait_for("the restart", lambda: self.child.poll() is not None or self.reports(before))
        with open(os.path.join(self.directory, "out")) as f:
            self.assertIsNone(self.child.poll(), f.read())
        report = json.loads(self.reports(before)[0])
        self.assertTrue(report["ok"], report)
        self.assertGreaterEqual(len([pid for pid in report["outer_pids"] if state_of(pid) not in "Z?"]), members, report)

    def reports(self, before):
        """Whole lines of restarts, without those of before: each tells its times, so no two are equal."""
        with open(os.path.join(self.directory, "out"), errors="replace") as f:
            return [line for line in f if line.startswith("{") and line.endswith("\n") and line not in before]


class Nginx(Server):
    program = "nginx"

    def setUp(self):
        if os.geteuid() != 0 or shutil.which("nginx") is None:
            self.skipTest("no nginx, or not root")
        super().setUp()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        os.mkdir(os.path.join(self.directory, "www"))
        self.text = os.urandom(100_000)
        with open(os.path.join(self.directory, "www", "file"), "wb") as f:
            f.write(self.text)
        d = self.directory
        paths = "".join(f"{kind}_temp_path {d}/tmp;" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        with open(os.path.join(d, "nginx.conf"), "w") as f:
            f.write(f"worker_processes 2; daemon off; user www-data; pid {d}/pid; error_log {d}/error.log info;"
                    "events { worker_connections 64; } http { access_log off; %s server { listen 127.0.0.1:%d; root %s/www; } }"
                    % (paths, self.port, d))

    def ask(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/file", timeout=30) as answer:
                return answer.read() == self.text
        except OSError:
            return False

    def roles(self):
        """(master, workers)"""
        processes = self.processes()
        return ([p for p in processes if user(p) == 0] + [0])[0], [p for p in processes if user(p) > 0]

    def test_workers_come_back(self):
        self.run_server(shutil.which("nginx"), "-c", os.path.join(self.directory, "nginx.conf"))
        self.wait_for("two workers", lambda: len(self.roles()[1]) == 2)
        self.wait_for("an answer", self.ask)
        # A worker has given up its rights: root is led to the master.
        for asked in (lambda: self.roles()[0], lambda: self.roles()[1][0]):
            taken = self.now(asked())
            self.assertEqual(taken["members"], 3)
            self.kill_and_restart(taken["job"], 3)
            self.wait_for("an answer after the restart", self.ask)
            for _ in range(20):
                self.assertTrue(self.ask())
            _, workers = self.roles()
            self.assertEqual(len(workers), 2)
            # The master still learns of its children's end, and replaces them.
            os.kill(workers[0], signal.SIGKILL)
            self.wait_for("a new worker", lambda: len(set(self.roles()[1]) - {workers[0]}) == 2)
            self.wait_for("an answer of the new worker", self.ask)


class PostgreSQL(Server):
    program = "postgres"
    AS_POSTGRES = ("setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups")
    # What every transaction of pgbench changes by the same amount.
    SUMS = ("select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers),"
            " (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)")

    def setUp(self):
        found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        if os.geteuid() != 0 or not found:
            self.skipTest("no PostgreSQL, or not root")
        self.bin = found[-1]
        super().setUp()
        # A restart opens the file of its output again, as that user.
        os.close(os.open(os.path.join(self.directory, "out"), os.O_CREAT | os.O_WRONLY))
        for name in ("data", "sock", "out"):
            if name != "out":
                os.mkdir(os.path.join(self.directory, name))
            shutil.chown(os.path.join(self.directory, name), "postgres", "postgres")
        self.as_postgres("initdb", "-D", self.directory + "/data", "-N", "--no-instructions", "-A", "trust")

    def command(self, program, *args):
        return [*self.AS_POSTGRES, os.path.join(self.bin, program), *args]

    def as_postgres(self, program, *args):
        done = subprocess.run(self.command(program, *args), cwd=self.directory, env=environment(), capture_output=True,
                              text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        return done.stdout

    def client(self, program, *args):
        return self.as_postgres(program, "-h", self.directory + "/sock", *args, "postgres")

    def is_up(self):
        return subprocess.run(self.command("pg_isready", "-q", "-h", self.directory + "/sock"), check=False,
                              env=environment()).returncode == 0

    def lasting(self):
        """Its processes that live as long as it does; none while one is there that works for a client, and ends with it."""
        titles = {}
        for pid in self.processes():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    titles[pid] = f.read()
            except OSError:
                return []
        if any(b"[local]" in title or not title for title in titles.values()):
            return []
        return [pid for pid, title in titles.items() if b"autovacuum worker" not in title]

    def sums(self):
        values = self.client("psql", "-Atc", self.SUMS).strip().split("|")
        self.assertEqual(len(set(values)), 1, values)
        return values[0]

    def work(self):
        self.client("pgbench", "-n", "-c", "3", "-j", "1", "-t", "100")

    def test_data_come_back(self):
        # Few shared buffers: what the test is about is that they are shared.
        self.run_server(*self.command("postgres", "-D", self.directory + "/data", "-k", self.directory + "/sock",
                                      "-c", "listen_addresses=", "-c", "shared_buffers=16MB"))
        self.wait_for("the server", self.is_up)
        self.client("pgbench", "-q", "-i", "-s", "1")
        for _ in range(2):
            self.work()
            sums = self.sums()
            members = self.wait_for("the end of what works for clients", self.lasting)
            taken = self.now(members[0])
            self.assertGreaterEqual(taken["members"], len(members))
            # The images are that user's, and so is what they run.
            self.kill_and_restart(taken["job"], len(members), self.AS_POSTGRES)
            self.wait_for("the server after the restart", self.is_up)
            self.assertEqual(self.sums(), sums)
            self.work()
            self.sums()
            self.assertGreaterEqual(len(members), 4)

    # A client in the job, whose connection stays. It works when it is told to, and so not between a checkpoint and its end: what the
    # server writes to its files then would not fit the memory of the checkpoint.
    CLIENT = """
        postgres "$@" & until pg_isready -q -h $D/sock; do sleep 0.1; done
        while :; do
          until [ -e $D/sock/go ]; do sleep 0.1; done
          rm $D/sock/go
          echo "begin; update pgbench_accounts set abalance = abalance + 1 where aid = 1;
                update pgbench_tellers set tbalance = tbalance + 1 where tid = 1;
                update pgbench_branches set bbalance = bbalance + 1 where bid = 1;
                insert into pgbench_history values (1, 1, 1, 1, now(), ''); commit; select 'done', pg_backend_pid();"
        done | psql -h $D/sock -v ON_ERROR_STOP=1 -qAt postgres > $D/sock/answers 2>&1
        """

    def test_a_client_in_the_job_goes_on(self):
        arguments = ("-D", self.directory + "/data", "-k", self.directory + "/sock", "-c", "listen_addresses=",
                     "-c", "shared_buffers=16MB", "-c", "autovacuum=off")
        self.spawn(self.command("postgres", *arguments))
        self.wait_for("the server", self.is_up)
        self.client("pgbench", "-q", "-i", "-s", "1")
        self.client("psql", "-c", "checkpoint")
        os.kill(self.child.pid, signal.SIGINT)
        self.child.wait()
        self.run_server(*self.AS_POSTGRES, "env", "D=" + self.directory, f"PATH={self.bin}:" + os.environ["PATH"], "bash",
                        "-c", self.CLIENT, "client", *arguments)

        def answers():
            try:
                with open(self.directory + "/sock/answers") as f:
                    return f.read().split()
            except OSError:
                return []

        def transaction(what):
            before = len(answers())
            open(self.directory + "/sock/go", "w").close()
            self.wait_for(what, lambda: len(answers()) > before)

        for _ in range(2):
            transaction("a transaction")
            taken = self.now(self.child.pid if comm(self.child.pid) != "ckpt-restart" else self.first_member())
            self.kill_and_restart(taken["job"], 5, self.AS_POSTGRES)
            transaction("a transaction after the restart")
            transaction("another after the restart")
            self.assertEqual(len(set(answers())), 1, answers())  # of one server process
            self.assertGreaterEqual(int(self.sums()), len(answers()) - 1)

    def first_member(self):
        return next(p for p in sorted(descendants(self.child.pid)) if comm(p) == "bash")


adopt_orphans()
enter_own_network()
if __name__ == "__main__":
    program = unittest.main(exit=False)
    result = program.result
    if not result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if len(result.skipped) == result.testsRun else 0)
