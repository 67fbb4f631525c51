#!/usr/bin/env python3
"""Whole programs: checkpoint at some instant, kill -9, restart, compare with an uninterrupted run.

  run_killed.py mergesort                        one trial, one generation
  run_killed.py hunters --seeds 1-20 --generations 3 --mode realtime
  run_killed.py --all --seeds 1-5                every program
  run_killed.py all-calls --no-kill              many checkpoints, no kill: the program notices nothing
  run_killed.py --list

Exit codes: 0 all trials passed; 1 some failed (their directories are kept and the command that
reproduces each is printed); 64 wrong arguments; 77 nothing could be run.
"""
import argparse
import dataclasses
import os
import random
import resource
import shlex
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True  # the source directory stays as it is
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "support"))
import harness  # noqa: E402
import programs  # noqa: E402


def seeds_of(text):
    seeds = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds.extend(range(int(first), int(last or first) + 1))
    return seeds


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="names from --list")
    parser.add_argument("--all", action="store_true", help="every program that fits")
    parser.add_argument("--list", action="store_true", help="print the programs' names")
    parser.add_argument("--build", default=os.path.join(programs.SOURCE, "build"), help="build directory")
    parser.add_argument("--seeds", type=seeds_of, default=[1], help="one trial for each, such as 1-20 or 3,7; an instant "
                        "follows from its seed")
    parser.add_argument("--instants", type=lambda t: [float(x) for x in t.split(",")],
                        help="instead of instants by seed: fractions of the uninterrupted run's time, such as 0.1,0.5; "
                        "one trial for each")
    parser.add_argument("--generations", type=int, default=1, help="checkpoint, kill and restart this often in one trial")
    parser.add_argument("--mode", default="auto", help="comma-separated: auto, realtime, sequential, fork")
    parser.add_argument("--segment", default="", help="CKPT_SEGMENT")
    parser.add_argument("--pool", default="", help="CKPT_POOL")
    parser.add_argument("--increments", type=int, default=0, help="before each kill so many checkpoints more, which may be "
                        "increments")
    parser.add_argument("--no-signals", action="store_true", help="the limit on queued signals is 0 (ulimit -i)")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE", help="another variable")
    parser.add_argument("--namespaces", default="auto", choices=["auto", "never", "always"], help="for ckpt-restart")
    parser.add_argument("--restart-option", action="append", default=[], metavar="OPTION", help="for ckpt-restart, such as "
                        "--restart-option=--lazy")
    parser.add_argument("--without-time-namespace", action="store_true", help="restart where there can be none")
    parser.add_argument("--no-kill", action="store_true", help="take checkpoints only; the program must notice nothing")
    parser.add_argument("--checkpoints", type=int, default=10, help="with --no-kill: at most this many")
    parser.add_argument("--long", action="store_true", help="programs run about half a minute instead of a few seconds")
    parser.add_argument("--directory", help="where trials keep their files (default: in the build directory)")
    parser.add_argument("--keep", action="store_true", help="keep the directories of trials that passed, too")
    parser.add_argument("--verbose", action="store_true", help="print what each checkpoint and restart cost")
    arguments = parser.parse_args(argv)
    table = programs.all_programs()
    if arguments.list:
        for name in table:
            print(name)
        sys.exit(0)
    for name in arguments.programs:
        if name not in table:
            print(f"run_killed.py: no program is named {name}; see --list", file=sys.stderr)
            sys.exit(64)
    if arguments.all:
        arguments.programs = [p.name for p in table.values() if (arguments.no_kill or p.restartable) and not p.by_name]
    if not arguments.programs:
        print("run_killed.py: name a program, or give --all or --list", file=sys.stderr)
        sys.exit(64)
    if arguments.no_kill:
        # It would only repeat what others do, or checks what only a restart can break.
        arguments.programs = [n for n in arguments.programs if not (arguments.all and f"all-{n}" in table)]
    arguments.table = table
    return arguments


def instants_of(arguments, trial, seconds):
    """Seconds from (re)start to checkpoint, for each generation of a trial."""
    # The last third is left alone: the program shall not end before it is killed.
    usable = 0.67 * seconds
    if arguments.instants is not None:
        return [max(0.0, trial * seconds)] + [usable / arguments.generations / 3] * (arguments.generations - 1)
    chance = random.Random(1000 + trial)
    if arguments.no_kill:
        return [chance.uniform(0.0, 2 * usable / arguments.checkpoints) for _ in range(arguments.checkpoints)]
    if chance.random() < 0.1:
        # As early as it gets: while the program still starts.
        return [0.0] + [chance.uniform(0.0, usable / arguments.generations) for _ in range(arguments.generations - 1)]
    return [chance.uniform(0.0, usable / arguments.generations) for _ in range(arguments.generations)]


def command_of(arguments, name, mode, trial):
    words = [os.path.join(HERE, "run_killed.py"), name, "--build", arguments.build, "--mode", mode,
             "--generations", str(arguments.generations)]
    words += ["--instants", str(trial)] if arguments.instants is not None else ["--seeds", str(trial)]
    for option in ("segment", "pool"):
        if getattr(arguments, option):
            words += [f"--{option}", getattr(arguments, option)]
    if arguments.increments:
        words += ["--increments", str(arguments.increments)]
    for setting in arguments.setting:
        words += ["--setting", setting]
    if arguments.namespaces != "auto":
        words += ["--namespaces", arguments.namespaces]
    words += [f"--restart-option={option}" for option in arguments.restart_option]
    if arguments.no_kill:
        words += ["--checkpoints", str(arguments.checkpoints)]
    for option in ("without_time_namespace", "no_kill", "no_signals", "long"):
        if getattr(arguments, option):
            words.append("--" + option.replace("_", "-"))
    return shlex.join(words)


def summary(trial):
    def milliseconds(key):
        return "/".join(f"{cost.get(key, 0) / 1e6:.2f}" for cost in trial.costs)
    text = f"{len(trial.costs)} checkpoints, {trial.costs[-1].get('mode')}, pause {milliseconds('pause_ns')} ms, " \
           f"longest wait {milliseconds('longest_wait_ns')} ms"
    increments = sum(1 for cost in trial.costs if cost.get("parent_sequence"))
    if increments:
        text += f", {increments} increments"
    repeated = sum(cost.get("attempts", 1) - 1 for cost in trial.costs)
    if repeated:
        text += f", {repeated} attempts given up"
    if trial.restarts:
        text += f", restart {'/'.join(str(round(r['restart_ns'] / 1e6)) for r in trial.restarts)} ms"
    return text


def run_trial(arguments, build, program, settings, reference, base, number):
    """Returns "passed", "failed" or "early", and a line about it."""
    seconds = reference.seconds
    while True:
        verdict, line = run_trial_once(arguments, build, program, settings, reference, base, number, seconds)
        # Where others keep ckpt from running, as little as a tenth of a second late, a short program gets
        # further than expected. In the end its instants are as early as it gets.
        if verdict != "early" or arguments.instants is not None or seconds < reference.seconds / 64:
            return verdict, line
        seconds /= 2


def run_long_trial(arguments, build, program, settings, base, number):
    """Of a program that is too short for so many lives on a machine that is fast, or shared."""
    settings = dataclasses.replace(settings, long=True)
    base = tempfile.mkdtemp(prefix="long.", dir=base)
    reference = harness.reference_of(build, program, settings, base)
    verdict, line = run_trial(arguments, build, program, settings, reference, base, number)
    if verdict != "failed":
        shutil.rmtree(base, ignore_errors=True)
    return verdict, line


def run_trial_once(arguments, build, program, settings, reference, base, number, seconds):
    trial = harness.Trial(build, program, settings, reference, base, number)
    passed = False
    try:
        instants = instants_of(arguments, number, seconds)
        trial.log(f"instants {instants}")
        trial.run_undisturbed(instants) if arguments.no_kill else trial.run_killed(instants)
        passed = True
        return "passed", summary(trial)
    except harness.EndedEarly:
        trial.log("the program ended early")
        try:
            trial.finish()
        except harness.Failure as e:
            return "failed", f"{e}; kept in {trial.directory}"
        passed = True
        return "early", f"ended after {len(trial.costs)} checkpoints, before the next"
    except harness.Failure as e:
        trial.log(f"FAILED: {e}")
        return "failed", f"{e}; kept in {trial.directory}"
    finally:
        trial.clean_up()
        if passed and not arguments.keep:
            trial.remove()


def main(argv):
    arguments = parse(argv)
    if arguments.no_signals:
        resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]))
    build = harness.Build(os.path.abspath(arguments.build))
    arguments.build = build.directory
    if build.missing():
        print(f"run_killed.py: {', '.join(build.missing())}: not there; build first (or give --build)", file=sys.stderr)
        return 77
    parent = os.path.abspath(arguments.directory or os.path.join(build.directory, "tests", "killed"))
    os.makedirs(parent, exist_ok=True)
    base = tempfile.mkdtemp(prefix="run.", dir=parent)
    counts = {"passed": 0, "failed": 0, "early": 0}
    for name in arguments.programs:
        program = arguments.table[name]
        if not program.restartable and not arguments.no_kill:
            print(f"run_killed.py: {name} can only be run with --no-kill", file=sys.stderr)
            return 64
        first = program.command(build.directory, False)[0]
        if not os.path.exists(first):
            print(f"failed {name}: {first} is not there; scripts/setup.sh installs and builds it", flush=True)
            counts["failed"] += 1
            continue
        settings = harness.Settings(segment=arguments.segment, pool=arguments.pool, namespaces=arguments.namespaces,
                                    restart_options=arguments.restart_option,
                                    without_time_namespace=arguments.without_time_namespace, long=arguments.long,
                                    increments=arguments.increments, environment=dict(s.split("=", 1) for s in arguments.setting))
        reference_directory = os.path.join(base, f"{name}.reference")
        reference = harness.reference_of(build, program, settings, base)
        if reference.exit_code != 0:
            print(f"failed {name}: the uninterrupted run ends with {reference.exit_code}: "
                  f"{reference.errors.decode(errors='replace').strip()}; kept in {reference_directory}", flush=True)
            counts["failed"] += 1
            continue
        for mode in arguments.mode.split(","):
            settings.mode = mode
            for number in arguments.instants if arguments.instants is not None else arguments.seeds:
                verdict, line = run_trial(arguments, build, program, settings, reference, base, number)
                if verdict == "early" and not settings.long and arguments.instants is None:
                    verdict, line = run_long_trial(arguments, build, program, settings, base, number)
                counts[verdict] += 1
                what = f"{name} {mode} {'instant' if arguments.instants is not None else 'seed'} {number}"
                print(f"{verdict} {what}: {line}", flush=True)
                if verdict == "failed":
                    print(f"  reproduce: {command_of(arguments, name, mode, number)}", flush=True)
        shutil.rmtree(reference_directory, ignore_errors=True)
    if not os.listdir(base):
        os.rmdir(base)
    early = f", {counts['early']} ended before their checkpoint" if counts["early"] else ""
    print(f"{counts['passed']} passed, {counts['failed']} failed{early}")
    # A run in which no program was ever killed shows nothing.
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
