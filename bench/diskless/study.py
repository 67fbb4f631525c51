#!/usr/bin/env python3
"""Diskless checkpoints of five MPI programs, as in Plank, Li and Puening 1998: each program with each variant of its Table 1, on hosts
that are namespaces of this machine. Root only.

  study.py BUILD [OUTPUT] [--quick] [--programs a,b] [--variants a,b] [--schemes 4+1,4+2] [--rates asis,1gbit,10gbit]
           [--checkpoints 2] [--rounds 1] [--work 1.0] [--minutes 0]

Writes OUTPUT/study.json and, from it, OUTPUT/study.html with its graphs (BUILD/study unless given); --draw makes the page from a
study.json that is there. --quick: two programs, five variants, one scheme, under five minutes on two processors that nobody else uses.
--minutes: after so many no run is begun any more; what is left out is named on the page. What matters most is measured first: all programs
and variants with the first scheme and the network as it is.
Exit codes: 0; 1 a run failed (the page says which); 64 wrong arguments; 69 no hosts can be made here.
"""
import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import study_jobs
from study_jobs import PROGRAMS, RANKS, SCHEMES, VARIANTS, Failed, Job, Study

QUICK = {"programs": "cell,pcg", "variants": "BASE,DISK-FORK,SIMP,FORK,REALTIME,C-FORK", "schemes": "4+1", "rates": "asis", "work": 0.5}
MTBF_HOURS = 29.29 * 24  # of one host: Long, Muir and Golding 1995, as in the paper


def run_one(study, program, variant, scheme, o):
    """Two jobs: one for latency and overhead, one in which a host dies."""
    job = Job(study, program, variant, scheme, o.work)
    try:
        costs = []
        while variant != "BASE" and len(costs) < o.checkpoints:
            cost = job.checkpoint()
            if cost is None:
                break
            costs.append(cost)
        result = {"time": job.end(), "checkpoints": len(costs)}
    finally:
        job.close()
    if variant == "BASE":
        return result
    if not costs:
        raise Failed("ended before its first checkpoint: give more --work")
    for key in costs[0]:
        result[key] = statistics.median(c[key] for c in costs)
    # Long enough to be there still; what it comes to has been verified above, so only a whole study waits for it.
    job = Job(study, program, variant, scheme, o.work * 4, recover=True)
    try:
        if job.checkpoint() is None:
            raise Failed("ended before its first checkpoint: give more --work")
        result["recovery"] = job.lose_a_host()
        if not o.quick and not o.minutes:
            job.end()
    finally:
        job.close()
        study.hosts.close()  # the host that died is not made again: all are, for the next
    return result


def median_of(results):
    return {key: statistics.median(r[key] for r in results) for key in results[0]}


def expected(build, scheme, base, r):
    """Equations 1 to 7, by `ckpt plan`: the hosts with checks may fail too."""
    ms = [f"{max(1, round(r[key] * 1000))}ms" for key in ("overhead", "latency", "recovery")]
    hosts = SCHEMES[scheme][0] if r["variant"] != "DISK-FORK" else RANKS
    done = subprocess.run([f"{build}/bin/ckpt", "plan", "--json", "--mtbf", f"{MTBF_HOURS:.0f}h", "--hosts", str(hosts), "--overhead", ms[0],
                           "--latency", ms[1], "--recovery", ms[2], "--base", f"{round(base * 1000)}ms"], capture_output=True, text=True, check=True)
    plan = json.loads(done.stdout)["schemes"][0]
    seconds = {k[:-3]: v / 1e9 for k, v in plan.items() if k.endswith("_ns") and v is not None}
    return {**seconds, "ratio": plan["overhead_ratio"]}


def store(path, o, rows, failures, left_out):
    with open("/proc/cpuinfo", encoding="ascii") as f:
        cpu = next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "?")
    study = {"rows": rows, "failures": failures, "left_out": left_out, "command": " ".join(["study.py", *sys.argv[2:]]), "date": datetime.date.today().isoformat(),
             "work": o.work, "load": os.getloadavg()[0], "machine": f"{os.cpu_count()} processors, {cpu}, Linux {platform.release()}"}
    with open(path + ".new", "w", encoding="ascii") as f:
        json.dump(study, f, indent=1)
    os.replace(path + ".new", path)


def measure(o, path):
    """What is measured is stored at once: an interrupted study has what it came to."""
    rows, failures, left_out = [], [], []
    end = time.monotonic() + 60 * o.minutes if o.minutes else float("inf")
    for rate in o.rates.split(","):
        for scheme in o.schemes.split(","):
            for program in o.programs.split(","):
                base = None
                for variant in o.variants.split(","):
                    if time.monotonic() > end:
                        left_out.append({"program": program, "variant": variant, "scheme": scheme, "rate": rate})
                        continue
                    try:
                        results = []
                        for _ in range(o.rounds):
                            with Study(o.build, None if rate == "asis" else rate) as study:
                                results.append(run_one(study, program, variant, scheme, o))
                        r = {"program": program, "variant": variant, "scheme": scheme, "rate": rate, **median_of(results)}
                        if variant == "BASE":
                            base = r["time"]
                        elif base is not None:
                            r["measured_overhead"] = (r["time"] - base) / r["checkpoints"]
                            r["overhead"] = max(r["measured_overhead"], r["pause"])
                            r["plan"] = expected(o.build, scheme, base, r)
                        rows.append(r)
                        print(f"{rate} {scheme} {program} {variant}: " + ", ".join(f"{k} {v:.3f}" for k, v in r.items() if isinstance(v, (int, float))), flush=True)
                    except (Failed, subprocess.SubprocessError, RuntimeError) as why:
                        failures.append({"program": program, "variant": variant, "scheme": scheme, "rate": rate, "why": str(why)})
                        print(f"{rate} {scheme} {program} {variant}: FAILED: {why}", file=sys.stderr, flush=True)
                    store(path, o, rows, failures, left_out)
    store(path, o, rows, failures, left_out)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("output", nargs="?")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--rates", default="asis,10gbit,1gbit")
    parser.add_argument("--checkpoints", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0, help="0: until all is measured")
    parser.add_argument("--work", type=float, default=1.0, help="of each program, beside some ten seconds")
    try:
        o = parser.parse_args()
    except SystemExit as end:
        sys.exit(64 if end.code else 0)
    if o.quick:
        for name, value in QUICK.items():
            if getattr(o, name) == parser.get_default(name):
                setattr(o, name, value)
    o.build = os.path.abspath(o.build)
    o.output = o.output or f"{o.build}/study"
    for name, known in (("programs", PROGRAMS), ("variants", VARIANTS), ("schemes", SCHEMES)):
        wrong = set(getattr(o, name).split(",")) - set(known)
        if wrong:
            print(f"study.py: --{name}: {', '.join(sorted(wrong))} is none of {', '.join(known)}", file=sys.stderr)
            sys.exit(64)
    return o


def main():
    o = arguments()
    os.makedirs(o.output, exist_ok=True)
    path = f"{o.output}/study.json"
    if not o.draw:
        why = study_jobs.made_hosts.missing()
        if why:
            print(f"study.py: {why}", file=sys.stderr)
            return 69
        measure(o, path)
    with open(path, encoding="ascii") as f:
        study = json.load(f)
    try:
        import study_page
    except ImportError as why:
        print(f"study.py: no page: {why}; scripts/setup.sh --bench installs python3-matplotlib", file=sys.stderr)
        return 1 if study["failures"] else 0
    study_page.write(study, o.output)
    print(f"{o.output}/study.html")
    return 1 if study["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
