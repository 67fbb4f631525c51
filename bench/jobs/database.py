#!/usr/bin/env python3
"""What a checkpoint of PostgreSQL with 1 GiB of shared buffers costs whoever asks it, ckpt_rt beside CRIU and DMTCP, in turns.

  database.py BUILD                                both loads, 3 rounds
  database.py BUILD --loads select --rounds 1

  select     pgbench -S: four clients outside of the job read rows that lie in the buffers
  update     pgbench: four clients change rows; each of their transactions waits for the disk

For each: the longest query while a checkpoint is taken, and the longest in as much time ahead of it; queries a second without a checkpoint; the
request's time. Then, with nobody asking, kill -9 of all of the server, and the time from the restart's command to the first answer. `none`: the
server without any checkpointer. Root only: the server runs as user postgres.
"""
import argparse
import glob
import os
import pathlib
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent / "peers")]
from job_speed import MARK, end_all, until  # noqa: E402
from methods import Ours, all_methods, run  # noqa: E402

AS_POSTGRES = ("setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups")
AHEAD_S = 2  # between what is looked at without a checkpoint and that one


class NoCheckpointer:
    def start(self, command):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


class Cluster:
    """A database of its own, made once."""

    def __init__(self, directory, options):
        self.bin, self.directory, self.options = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1], directory, options
        directory.chmod(0o755)
        for name in ("data", "socket", "log"):
            (directory / name).mkdir()
            shutil.chown(directory / name, "postgres", "postgres")
        self.run("initdb", "-D", directory / "data", "-N", "--no-instructions", "-A", "trust")
        with (directory / "data/postgresql.conf").open("a") as settings:
            settings.write(f"listen_addresses = ''\nunix_socket_directories = '{directory}/socket'\nshared_buffers = {options.buffers}\n"
                           "autovacuum = off\ncheckpoint_timeout = 1h\nmax_wal_size = 16GB\n")
        self.run("pg_ctl", "-D", directory / "data", "-w", "-l", directory / "log/server", "start")
        self.client("pgbench", "-q", "-i", "-s", str(options.scale))
        self.run("pg_ctl", "-D", directory / "data", "-w", "stop")

    def command(self, program, *args):
        return [*AS_POSTGRES, f"{self.bin}/{program}", *map(str, args)]

    def run(self, program, *args):
        done = subprocess.run(self.command(program, *args), cwd=self.directory / "log", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(f"{program}: exit code {done.returncode}: {done.stderr.strip()[-300:]}")

    def client(self, program, *args):
        self.run(program, "-h", self.directory / "socket", *args, "postgres")

    def leader(self):
        return int((self.directory / "data/postmaster.pid").read_text().split()[0])

    def answers(self):
        """A query of a client of its own, by the protocol's messages: psql takes longer to start than the server to answer."""
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(30)
                s.connect(f"{self.directory}/socket/.s.PGSQL.5432")
                names = b"user\0postgres\0database\0postgres\0\0"
                s.sendall(struct.pack(">ii", 8 + len(names), 196608) + names)
                self.until_ready(s)
                query = b"select 6 * 7\0"
                s.sendall(b"Q" + struct.pack(">i", 4 + len(query)) + query)
                return b"42" in self.until_ready(s)
        except OSError:
            return False

    @staticmethod
    def until_ready(s):
        got = b""
        while not (len(got) >= 6 and got[-6:-1] == b"Z\0\0\0\5"):
            part = s.recv(4096)
            if not part:
                raise ConnectionError("closed")
            got += part
        return got


def queries(logs):
    """(end, length) of each query of pgbench, in seconds."""
    for log in logs:
        for line in log.read_text().splitlines():
            _, _, length, _, at, at_us = line.split()[:6]
            yield int(at) + int(at_us) / 1e6, int(length) / 1e6


def longest(done, begin, end):
    """ms, of those that were under way in that time."""
    return max((length for at, length in done if at > begin and at - length < end), default=0) * 1e3


def turn(method, cluster, load, options):
    for old in (cluster.directory / "log").glob("query*"):
        old.unlink()
    starter = method.start(cluster.command("postgres", "-D", cluster.directory / "data"))
    roots = [starter.pid]
    try:
        until("server", cluster.answers, 30)
        cluster.client("psql", "-qc", "create extension if not exists pg_prewarm; select sum(pg_prewarm(c.oid)) from pg_class c where relname like "
                       "'pgbench_%' and relkind in ('r', 'i')", "-o", "/dev/null")
        seconds = 3 + options.checkpoints * (2 * AHEAD_S + 8)
        asker = subprocess.Popen(cluster.command("pgbench", "-n", "-h", cluster.directory / "socket", "-c", 4, "-j", 1, "-T", seconds, "-l",
                                                 *(["-S"] if load == "select" else []), f"--log-prefix={cluster.directory}/log/query", "postgres"),
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=cluster.directory / "log")
        windows = []
        try:
            time.sleep(3)
            for _ in range(options.checkpoints):
                time.sleep(2 * AHEAD_S)
                begin = time.time()
                if not isinstance(method, NoCheckpointer):
                    method.checkpoint(cluster.leader())
                windows.append((begin, time.time()))
        finally:
            if asker.wait() != 0:
                raise RuntimeError(f"pgbench: exit code {asker.returncode}")
        done = list(queries((cluster.directory / "log").glob("query*")))
        if max(at for at, _ in done) < windows[-1][1]:
            raise RuntimeError("its checkpoints took longer than pgbench ran")
        if isinstance(method, NoCheckpointer):
            windows = [(begin, begin + 1) for begin, _ in windows]
        calm = sum(begin - AHEAD_S <= at < begin for begin, _ in windows for at, _ in done) / (AHEAD_S * len(windows))
        seen = {"longest query without, ms": statistics.median(longest(done, 2 * b - e - AHEAD_S, b - AHEAD_S) for b, e in windows),
                "queries a second without": calm}
        if isinstance(method, NoCheckpointer):
            return seen
        seen["longest query with a checkpoint, ms"] = statistics.median(longest(done, b, e) for b, e in windows)
        seen["until durable, ms"] = statistics.median((e - b) * 1e3 for b, e in windows)
        # Its files are to be those of the image.
        method.checkpoint(cluster.leader())
        end_all(roots)
        starter.wait()
        begin = time.monotonic()
        restarter = method.restart()
        roots.append(restarter.pid)
        until("answer", cluster.answers, 60)
        seen["restart until it answers, ms"] = (time.monotonic() - begin) * 1e3
        return seen
    finally:
        end_server(cluster, roots)


def end_server(cluster, roots):
    try:
        leader = cluster.leader()
        os.kill(leader, signal.SIGINT)  # an orderly end, which takes its pid file away
        until("end of the server", lambda: not (cluster.directory / "data/postmaster.pid").exists(), 60)
    except (OSError, RuntimeError):
        pass
    end_all(roots)
    (cluster.directory / "data/postmaster.pid").unlink(missing_ok=True)


class AsPostgres(Ours):
    """All of it is that user's, as where an administrator runs the server from its account."""

    def start(self, command):
        return subprocess.Popen([*AS_POSTGRES, f"{self.build}/bin/ckpt", "run", "--dir", self.images, "--", *command[len(AS_POSTGRES):]],
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def checkpoint(self, pid):
        run([*AS_POSTGRES, f"{self.build}/bin/ckpt", "now", str(pid)])

    def restart(self):
        return subprocess.Popen([*AS_POSTGRES, f"{self.build}/bin/ckpt-restart", self.images], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def makers(build):
    peers = all_methods(build)

    # Of a client outside of what it dumps it has to be told.
    def criu(work):
        method = peers["CRIU"](work)
        method.more = ("--ext-unix-sk",)
        return method

    def dmtcp(work):
        method = peers["DMTCP"](work)
        work.chmod(0o777)
        os.umask(0)  # the server, which writes the images, is another user's
        return method
    ways = {"none": lambda _: NoCheckpointer(), "ckpt_rt": lambda work: AsPostgres(build, work), "CRIU": criu, "DMTCP": dmtcp}
    return {name: way for name, way in ways.items() if name == "none" or name in peers}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--loads", default="select,update")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--checkpoints", type=int, default=3, help="in each round")
    parser.add_argument("--buffers", default="1GB")
    parser.add_argument("--scale", type=int, default=60, help="of pgbench; 60: some 900 MiB")
    options = parser.parse_args()
    options.build = options.build.resolve()
    os.environ.update([MARK.split("=")])
    failed = False
    with tempfile.TemporaryDirectory(dir=options.build, prefix="database.") as directory:
        cluster = Cluster(pathlib.Path(directory), options)
        methods = makers(options.build)
        for load in options.loads.split(","):
            seen = {method: [] for method in methods}
            for number in range(options.rounds):
                for method, maker in methods.items():
                    with tempfile.TemporaryDirectory(dir=options.build, prefix="database_images.") as work:
                        shutil.chown(work, "postgres", "postgres")
                        try:
                            seen[method].append(turn(maker(pathlib.Path(work)), cluster, load, options))
                        except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
                            print(f"{load}, round {number + 1}, {method}: {error}", flush=True)
                            failed = failed or method == "ckpt_rt"
            print(f"\n{load}, {options.rounds} rounds of {options.checkpoints} checkpoints in turns; median (least to largest)\n\n| | " + " | ".join(seen) +
                  " |\n" + "| --- " * (len(seen) + 1) + "|")
            for row in dict.fromkeys(key for turns in seen.values() for one in turns for key in one):
                values = [[one[row] for one in turns if row in one] for turns in seen.values()]
                print(f"| {row} | " + " | ".join(f"{statistics.median(v):.3g} ({min(v):.3g} to {max(v):.3g})" if v else "-" for v in values) + " |",
                      flush=True)
    with open("/proc/loadavg", encoding="ascii") as file:
        print(f"\n{time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, Linux {os.uname().release}, {os.cpu_count()} processors, load average "
              f"{file.read().split()[0]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
