#!/usr/bin/env python3
"""Real programs of several processes: each is run without interruption, then killed with a checkpoint in hand at several
instants and brought back, and must print the same. Writes docs/programs.md.
  programs.py [--quick] [--random N [--seed S]] [--user] [--table FILE] [NAME...]
--quick: only those of the tests. --random: N random instants and N / 4 runs of four generations, instead of the fixed ones. --user: as
nobody. All of these end with 1 if one does not come back.
"""
import argparse
import datetime
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from job_tree import LONG, NOBODY, Tree, adopt_orphans, enter_own_ipc, environment, root_of  # noqa: E402
from programs_data import DATA  # noqa: E402
from programs_everyday import EVERYDAY  # noqa: E402
from programs_languages import LANGUAGES  # noqa: E402
from programs_list import PROGRAMS as FIRST  # noqa: E402
from programs_servers import SERVERS  # noqa: E402

PROGRAMS = FIRST + EVERYDAY + SERVERS + LANGUAGES + DATA
FIXED = [[0.25], [0.5], [0.75], [0.2, 0.3, 0.2]] if not LONG else [[i / 10] for i in range(1, 10)] + [[0.2, 0.2, 0.2, 0.2]]


def random_instants(number, seed):
    """Parts of the time that the program needs."""
    draw = random.Random(seed)
    return [[draw.uniform(0.02, 0.98)] for _ in range(number)] + [[draw.uniform(0, 0.35) for _ in range(4)] for _ in range(number // 4)]


def prepare(program, work):
    for name, text in program.files.items():
        with open(os.path.join(work, name), "w", encoding="utf-8") as f:
            f.write(text)
    with open(os.path.join(work, "job.sh"), "w", encoding="utf-8") as f:
        f.write(program.script + "\n")
    if program.prepare:
        subprocess.run(["bash", "-ec", program.prepare], cwd=work, check=True, stdout=subprocess.DEVNULL, env=environment())


def version_of(program):
    done = subprocess.run(["bash", "-c", program.version], capture_output=True, text=True, env=environment(), check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0].strip() if lines else "?"


class Trials:
    def __init__(self, program, instants, uid=0):
        self.program, self.instants, self.uid = program, instants, uid
        self.same, self.tried, self.pauses, self.reasons, self.processes = 0, 0, [], [], 0
        self.details = []  # of the first trial that failed, for a person

    def tree(self):
        return Tree(self.program.name, ["bash", "job.sh"], lambda work: prepare(self.program, work), self.uid)

    def run(self):
        tree = self.tree()
        began = time.monotonic()
        tree.start(tree.command, False)
        code, output = tree.finish()
        seconds = time.monotonic() - began
        if code != 0 and not output:
            self.reasons.append(f"does not run here: exit code {code}: {tree.read('err')[-200:].decode(errors='replace')}")
        tree.close(False)
        if self.reasons:
            return
        for instants in self.instants:
            self.trial(instants, seconds, code, output)
        # The machine was busier when it ran alone: each had ended before its checkpoint.
        while self.tried == 0 and seconds > 0.05:
            seconds /= 3
            self.trial(self.instants[0], seconds, code, output)

    def trial(self, instants, seconds, code, output):
        tree = self.tree()
        failed = True
        try:
            tree.run()
            root, restarts = tree.child.pid, 0
            for instant in instants:
                time.sleep(seconds * instant)
                if self.program.stops:
                    tree.stop()
                image = tree.checkpoint(root, may_end=True)
                if image is None:
                    break
                self.pauses.append(tree.cost.get("job_pause_ns") or tree.cost["pause_ns"])
                tree.kill()
                report = tree.restart(image)
                if self.program.stops:
                    tree.go_on()
                self.processes = max(self.processes, len(report.get("processes", [0])))
                root = root_of(report)
                restarts += 1
            if restarts == 0:
                failed = False
                return  # it had ended
            self.tried += 1
            got = tree.finish()
            if got == (code, output):
                self.same += 1
                failed = False
            else:
                where = next((i for i in range(min(len(output), len(got[1]))) if output[i] != got[1][i]), min(len(output), len(got[1])))
                err = tree.read("err").decode(errors="replace").splitlines()
                said = [n for n in tree.cost.get("notes", []) if "cannot be saved" in n]
                noted = f" (the checkpoint had noted: {said[0]})" if said else ""
                last = [line for line in err if line.startswith("ckpt-restart: ")][-1:]
                self.reasons.append(f"other output at byte {where}, exit code {got[0]}{noted}: {last}")
                self.explain(instants, restarts, f"exit code {code}, output from byte {max(0, where - 100)}: "
                             f"{output[max(0, where - 100):where + 200]}\nnow       {got[0]}, {got[1][max(0, where - 100):where + 200]}\n"
                             + tree.said())
        except (AssertionError, subprocess.TimeoutExpired) as error:
            self.tried += 1
            text = str(error)
            at = text.find('"error":"')
            self.reasons.append(text[at + 9:text.find('"', at + 10)] if at >= 0 else text.strip())
            self.explain(instants, "?", text)
        finally:
            tree.close(failed and "KEEP" in os.environ)

    def explain(self, instants, restarts, text):
        """Short enough for the last lines of a log."""
        if not self.details:
            self.details = [f"{self.program.name}, checkpoints at {instants}, {restarts} restarts:"]
            self.details += [line[:400] for line in text.splitlines()][-20:]
        if self.instants is not FIXED:
            print(f"{self.program.name} FAILED AT {instants}: {text[:3000]}", flush=True)

    def row(self):
        p = self.program
        pause = f"{sorted(self.pauses)[len(self.pauses) // 2] / 1e6:.1f} ms" if self.pauses else ""
        result = f"{self.same} of {self.tried}" if self.tried else "not tried"
        reasons = [p.why] if p.why and self.reasons else []
        for r in self.reasons:
            r = " ".join(r.split()).replace("|", "\\|")[:220]
            if r not in reasons:
                reasons.append(r)
        return f"| {name_of(p)} | {self.version} | {self.processes or ''} | {pause} | {result} | {'; '.join(reasons[:2])} |"


def name_of(program):
    """In the table."""
    return program.what + (" °" if program.stops else "")


def read_table(path):
    """Rows of programs that are not run this time stay."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as f:
        lines = [line.rstrip("\n") for line in f if line.startswith("| ")]
    return {line.split(" | ")[0][2:]: line for line in lines[2:]}


def write_table(path, rows):
    head = HEAD.format(date=datetime.date.today(), kernel=platform.release(), cpus=os.cpu_count())
    ordered = [rows[name_of(p)] for p in PROGRAMS if name_of(p) in rows]
    with open(path, "w", encoding="utf-8") as f:
        f.write(head + "\n".join(ordered) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--table")
    parser.add_argument("--random", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--user", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    instants = FIXED
    if options.random:
        instants = random_instants(options.random, options.seed)
        print("seed", options.seed, flush=True)
    rows, bad = read_table(options.table) if options.table else {}, []
    for program in PROGRAMS:
        if (options.names and program.name not in options.names) or (options.quick and not program.quick):
            continue
        missing = [c for c in program.needs if shutil.which(c) is None and not os.path.isdir(c)]
        if missing:
            print(f"{program.name}: not here: {', '.join(missing)}", flush=True)
            continue
        trials = Trials(program, instants, NOBODY if options.user or program.as_user else 0)
        trials.version = version_of(program)
        trials.run()
        rows[name_of(program)] = trials.row()
        print(program.name, rows[name_of(program)], flush=True)
        if options.table:
            write_table(options.table, rows)
        if trials.same != trials.tried or not trials.tried:
            bad.append(program.name)
            print("\n".join([f"{program.name}: the same in {trials.same} of {trials.tried} trials", *trials.details]), flush=True)
    if (options.quick or options.random or options.user) and bad:
        sys.exit("did not come back: " + ", ".join(bad))


HEAD = """# Programs of several processes

Written by `tests/jobs/real_programs/programs.py --table docs/programs.md` (target `programs_table`), on {date}, Linux {kernel}, {cpus} processors.
Each program runs once without interruption. Then it runs again for each of several instants: a checkpoint of the whole job, all of
it killed with `kill -9`, `ckpt-restart`, to the end; and once through three such generations. What it prints, and its exit code, must be the
same. `result` says how often that was so. The pause is the median, from the first thread stopped anywhere to the last that went on; this machine was
busy with other work, so it is an upper bound. Files are as they are when the job is killed, not as they were at the checkpoint. A program that
changes or renames files that it has closed (git, a database) needs those of the checkpoint: ° says that its job was stopped (`kill -STOP`)
before the checkpoint and until it was killed, so that the files are these; it goes on after the restart. Rows may come from several runs. A run whose program had ended before the
first checkpoint does not count; `not tried`: all had. Where the other output has exit code 0 and no note of the checkpoint is quoted, the
job came back wrong and nothing had said so.

| program | version | processes | pause | result | when not |
| --- | --- | --- | --- | --- | --- |
"""

adopt_orphans()
if __name__ == "__main__":
    enter_own_ipc()
    main()
