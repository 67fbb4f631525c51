"""The programs that the tests checkpoint, kill and bring back: how each is started and fed.

A Program makes its own input in the working directory; small and long say how much work it has to do
(a few seconds, about half a minute).
"""
import dataclasses
import os
import random
import typing

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@dataclasses.dataclass
class Program:
    name: str
    # (build directory, long) -> argument vector
    command: typing.Callable
    # (working directory, long): makes input files; called before each run
    prepare: typing.Callable = lambda directory, long: None
    # File for standard input, in the working directory.
    stdin: str = ""
    # False: uses what a restart does not bring back (sockets, children); checkpointed but not killed.
    restartable: bool = True
    by_name: bool = False  # not of --all: under some settings alone
    # Threads, mappings and descriptors are as many after every restart.
    steady: bool = False
    # The restart must continue CLOCK_MONOTONIC: a wait of this many seconds between kill and restart.
    absence: float = 0.0
    environment: dict = dataclasses.field(default_factory=dict)


def _bench(name, small, long, steady=False):
    return Program(name, lambda build, is_long: [f"{build}/bench/{name}"] + (long if is_long else small), steady=steady)


def _victim(name, only="", small=100, long=600, program="", **rest):
    program = program or name

    def command(build, is_long):
        argv = [f"{build}/tests/programs/{program}", "--work", str(long if is_long else small)]
        if rest.get("restartable", True):
            argv.append("--restartable")
        return argv + (["--only", only] if only else [])

    return Program(name, command, **rest)


def _real(name):
    return os.path.join(SOURCE, "tests", "programs", "real", name)


def _text(path, megabytes):
    """Words of a made-up language: compressible, but not trivially."""
    generator = random.Random(42)
    words = ["".join(generator.choice("etaoinshrdlu") for _ in range(generator.randint(2, 9))) for _ in range(5000)]
    with open(path, "w", encoding="ascii") as out:
        for _ in range(megabytes):
            size = 0
            while size < 1 << 20:
                line = " ".join(generator.choices(words, k=200)) + "\n"
                out.write(line)
                size += len(line)


def _sqlite_script(path, rounds):
    with open(path, "w", encoding="ascii") as out:
        out.write("PRAGMA temp_store=MEMORY;\nCREATE TABLE t(id INTEGER PRIMARY KEY, a INTEGER, b TEXT);\n"
                  "CREATE INDEX by_a ON t(a);\n")
        for n in range(1, rounds + 1):
            out.write("BEGIN;\nWITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM s WHERE i<4000)\n"
                      f"INSERT INTO t(a,b) SELECT (i*{2 * n + 1}+{n * n})%7919, printf('%x-%d',i*{n},i) FROM s;\nCOMMIT;\n"
                      f"UPDATE t SET a=(a*31+{n})%9973 WHERE id%{n % 11 + 3}=1;\n"
                      f"DELETE FROM t WHERE a%{n % 13 + 5}=2;\n"
                      f"SELECT {n},count(*),sum(a),max(length(b)) FROM t;\n"
                      "SELECT a,count(*) c FROM t GROUP BY a ORDER BY c DESC,a LIMIT 3;\n")
        out.write("PRAGMA integrity_check;\n")


def all_programs():
    programs = [
        _bench("mergesort", ["--size", "64M", "--rounds", "10"], ["--size", "256M", "--rounds", "30"]),
        _bench("tsp", ["--cities", "19"], ["--cities", "21"], steady=True),
        _bench("matmul", ["--n", "640", "--rounds", "12"], ["--n", "1024", "--rounds", "24"]),
        _bench("pattern", ["--length", "32M"], ["--length", "256M"], steady=True),
        _bench("bubblesort", ["--records", "40000"], ["--records", "120000"]),
        _victim("hunters"),
        _victim("sweep", "sweep", small=400, long=2500, program="hunters"),
        _victim("seqlock", "seqlock", program="hunters"),
        _victim("stacks", "stacks", small=200, long=1200, program="hunters"),
        _victim("ring", "ring", small=300, long=2000, program="hunters"),
        _victim("accounts", "accounts", small=300, long=2000, program="hunters"),
        _victim("shared", "shared", small=300, long=2000, program="hunters"),
        _victim("locked", "locked", small=300, long=1500, program="hunters"),
        _victim("calls", small=100, long=500),
        _victim("all-calls", small=100, long=500, program="calls", restartable=False),
        _victim("churn", small=40, long=250),
        _victim("all-churn", small=40, long=250, program="churn", restartable=False),
        _victim("heap"),
        _victim("lazily", long=800),
        _victim("locks", small=60, long=400),
        _victim("signals"),
        _victim("pingpong", "pingpong", small=150, long=1000, program="signals"),
        _victim("oneshots", "oneshots", small=150, long=1500, program="signals"),
        _victim("guarded"),
        _victim("all-guarded", program="guarded", restartable=False),
        _victim("grows", "grows", small=200, long=2000, program="guarded"),
        _victim("own-memory", program="own_memory", by_name=True),
        _victim("disarmed", "disarmed", program="guarded_signals"),
        _victim("all-guarded-signals", small=50, program="guarded_signals", restartable=False),
        _victim("threads", small=60, long=400),
        _victim("leaderless", small=200, long=1000),
        _victim("relay"),
        _victim("one-relay", "relay", program="relay"),
        _victim("registers", small=150, steady=True),
        _victim("segments", "segments", program="registers"),
        _victim("files"),
        _victim("clock"),
        _victim("steady", absence=10.0, long=400),
        _victim("limits"),
        _victim("exceptions", "exceptions,locals", small=150, long=2000, program="threads"),
        Program("python-numpy",
                lambda build, is_long: ["/usr/bin/python3", _real("numpy_threads.py"), "--rounds", "1500" if is_long else "200"],
                # One thread of the library a thread of ours: the threads that compute are Python's.
                environment={"OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}),
        Program("xz", lambda build, is_long: ["/usr/bin/xz", "-T2", "-5", "--block-size=2MiB", "-c", "-k", "input.txt"],
                prepare=lambda directory, is_long: _text(f"{directory}/input.txt", 48 if is_long else 6)),
        Program("sqlite3", lambda build, is_long: ["/usr/bin/sqlite3", "-batch", ":memory:"],
                prepare=lambda directory, is_long: _sqlite_script(f"{directory}/script.sql", 400 if is_long else 90),
                stdin="script.sql"),
        Program("perl", lambda build, is_long: ["/usr/bin/perl", _real("words.pl"), "150" if is_long else "24"],
                environment={"PERL_HASH_SEED": "0"}),
    ]
    return {p.name: p for p in programs}
