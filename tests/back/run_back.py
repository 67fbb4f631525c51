#!/usr/bin/env python3
"""Whole programs go back in place, again and again, and end with the output of an uninterrupted run.

  run_back.py hunters --times 50                  a checkpoint, then back to it so often
  run_back.py accounts --increments --times 1000  with a watch: only what was written since is put back
  run_back.py mergesort --mode fork,sequential

Address space, mappings and descriptors are counted each time: none may grow.
Exit codes: 0 all passed; 1 some failed (their directories are kept); 77 nothing could be run.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True  # the source directory stays as it is
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import harness  # noqa: E402
import programs  # noqa: E402


def counts_of(pid):
    """What may not grow: the library's own included."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        status = dict(line.split(":", 1) for line in f if ":" in line)
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as f:
        mappings = sum(1 for _ in f)
    return {"address space, kB": int(status["VmSize"].split()[0]), "mappings": mappings,
            "descriptors": len(os.listdir(f"/proc/{pid}/fd"))}


class BackTrial(harness.Trial):
    def back(self):
        answer = subprocess.run([self.build.ckpt, "back", "--json", str(self.pid)], capture_output=True, text=True,
                                timeout=harness.STEP_TIMEOUT, check=False)
        if answer.returncode != 0:
            if self.ended():
                self.log(f"ckpt back: exit {answer.returncode}: {answer.stderr.strip()}; ended {self.child.returncode}")
                raise harness.EndedEarly()
            self.log(f"ckpt back: exit {answer.returncode}: {answer.stderr.strip()}")
            # Refused by name: it must go on as if nobody had asked. Ids of threads are given to others when the counter comes round.
            if answer.returncode == self.refusal or "its id is in use" in answer.stderr:
                return
            self.log("the program's threads:\n" + harness.describe_process(self.pid))
            raise harness.Failure(f"ckpt back: exit {answer.returncode}: {answer.stderr.strip()}")
        said = json.loads(answer.stdout)
        self.log(f"back {json.dumps(said)}")
        return said

    def run_back(self, instant, times, checkpoints):
        self.start_program()
        self.sleep(instant)
        for _ in range(checkpoints):
            if self.ended():
                raise harness.EndedEarly()
            self.checkpoint()
            counts = []
            for _ in range(times):
                self.sleep(self.random.choice([0.0, 0.0, 0.001, 0.01]))
                if self.ended():
                    raise harness.EndedEarly()
                self.back()
                try:
                    counts.append(counts_of(self.pid))
                except (OSError, KeyError):
                    raise harness.Failure(f"after going back it is gone: {self.child.wait()}") from None
            self.require_steady(counts)
            self.sleep(self.random.choice([0.0, 0.05]))
        self.finish()

    def require_steady(self, counts):
        """The program runs on while it is looked at, and may have mapped something already: what grows each time is more in the
        whole last third than it ever was in the first."""
        if len(counts) < 30:
            return
        third = len(counts) // 3
        for what in counts[0]:
            first = max(c[what] for c in counts[:third])
            last = min(c[what] for c in counts[-third:])
            self.log(f"{what}: at most {first} at first, at least {last} at last")
            if last > first:
                raise harness.Failure(f"after {len(counts)} times back: {what} {last}, at first {first}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--build", default=os.path.join(programs.SOURCE, "build"))
    parser.add_argument("--mode", default="auto", help="comma-separated")
    parser.add_argument("--times", type=int, default=20, help="back so often to each checkpoint")
    parser.add_argument("--checkpoints", type=int, default=1)
    parser.add_argument("--increments", action="store_true", help="with a watch (CKPT_INCREMENTS=8)")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--refusal", type=int, help="an exit code with which ckpt back may refuse")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true")
    o = parser.parse_args()
    build = harness.Build(o.build)
    if build.missing():
        print(f"not built: {' '.join(build.missing())}")
        return 77
    known = programs.all_programs()
    base = tempfile.mkdtemp(prefix="ckpt-back.")
    failed = 0
    for name in o.programs:
        for mode in o.mode.split(","):
            settings = harness.Settings(mode=mode, increments=8 if o.increments else 0,
                                        environment=dict(s.split("=", 1) for s in o.setting))
            reference = harness.reference_of(build, known[name], settings, base)
            trial = BackTrial(build, known[name], settings, reference, base, o.seed)
            trial.refusal = o.refusal
            try:
                trial.run_back(trial.random.uniform(0.05, 0.5) * reference.seconds, o.times, o.checkpoints)
                print(f"{name} {mode}: {o.checkpoints * o.times} times back, ok", flush=True)
            except harness.EndedEarly:
                print(f"{name} {mode}: it ended before it was back so often; kept: {trial.directory}", flush=True)
                failed += 1
                o.keep = True
            except (harness.Failure, subprocess.TimeoutExpired) as error:
                print(f"{name} {mode}: FAILED: {error}\n    kept: {trial.directory}", flush=True)
                failed += 1
                o.keep = True
            finally:
                trial.clean_up()
    if not o.keep:
        shutil.rmtree(base, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
