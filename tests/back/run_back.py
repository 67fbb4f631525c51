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
import time

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
    refusal = None
    times_back = 0

    def back(self):
        answer = subprocess.run([self.build.ckpt, "back", "--json", str(self.pid)], capture_output=True, text=True,
                                timeout=harness.STEP_TIMEOUT, check=False)
        if answer.returncode != 0:
            # On its way out, what is left of it is to end: its connection is closed before it has.
            deadline = time.monotonic() + harness.STEP_TIMEOUT
            leaving = answer.returncode == harness.NO_PROCESS or "broke off" in answer.stderr
            while leaving and not self.ended() and time.monotonic() < deadline:
                self.sleep(0.01)
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
                self.times_back += 1
                try:
                    counts.append(counts_of(self.pid))
                except (OSError, KeyError):
                    # It may have been at its end, and is compared as any other that ended.
                    self.log(f"after going back it is gone: {self.child.wait()}")
                    raise harness.EndedEarly() from None
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


def run_trials(o, build, program, settings, reference, base):
    """True: it went back so often, and ended as it should. On a busy machine ckpt may come when the program has ended, which is no
    more than a program that ended as it should: another one does what is left."""
    what, left, seconds, ended = f"{program.name} {settings.mode}", o.times, reference.seconds, 0
    while True:
        trial = BackTrial(build, program, settings, reference, base, o.seed)
        trial.refusal = o.refusal
        try:
            trial.run_back(trial.random.uniform(0.05, 0.5) * seconds, left, o.checkpoints)
            print(f"{what}: {o.checkpoints * o.times} times back, ok" + (f"; {ended} more had ended" if ended else ""), flush=True)
            return True
        except harness.EndedEarly:
            try:
                trial.finish()
            except harness.Failure as error:
                print(f"{what}: FAILED: ended early: {error}", flush=True)
                return keep(o, trial)
            ended += 1
            seconds /= 2
            if o.checkpoints == 1:
                left = max(1, left - trial.times_back)
            if ended > 8 + o.times // 2:
                print(f"{what}: {ended} of them ended before all of it was done: {left} times back are left", flush=True)
                return keep(o, trial)
        except (harness.Failure, subprocess.TimeoutExpired) as error:
            print(f"{what}: FAILED: {error}", flush=True)
            return keep(o, trial)
        finally:
            trial.clean_up()


def keep(o, trial):
    """False. The directory stays; the end of its log is what a failure says."""
    o.keep = True
    print("\n".join(line[:300] for line in harness.read_text(f"{trial.directory}/log").splitlines()[-15:]))
    print(f"    kept: {trial.directory}", flush=True)
    return False


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
            failed += not run_trials(o, build, known[name], settings, reference, base)
    if not o.keep:
        shutil.rmtree(base, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
