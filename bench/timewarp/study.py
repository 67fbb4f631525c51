#!/usr/bin/python3
"""Runs the models in turns, draws the medians, writes one page. Called by scripts/timewarp_study.sh."""
import argparse
import atexit
import base64
import html
import io
import json
import os
import shutil
import statistics
import tempfile
import time

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from runs import Runs, notes  # noqa: E402

PHOLD = ["--lps", "4096", "--events", "16", "--remote", "0.25", "--mean", "0.8", "--lookahead", "0.1", "--end", "20"]


class Study:
    def __init__(self, options):
        scratch = tempfile.mkdtemp(prefix="ckpt-study.")
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        self.build = options.build
        self.runs = Runs(os.path.join(options.build, "bench"), options.peers, scratch,
                         first_limit=30 if options.quick else 300)
        self.ours, self.peer = self.runs.ours, self.runs.peer
        self.turns = options.turns
        self.page = []
        self.figures = {}

    def all_turns(self, title, what, turns):
        """what: name -> function that returns a figure or None. Returns name -> figures; the page gets a note on odd runs."""
        figures = {name: [] for name in what}
        first = len(self.runs.all)
        for _ in range(turns):
            for name, run in what.items():
                figure = self.runs.once(title, name, run)
                if figure is not None:
                    figures[name].append(figure)
        self.figures[title] = figures
        odd = notes(self.runs.all[first:])
        for note in odd:
            print(f"  odd: {note}", flush=True)
        return figures, "".join(f"<p><small>{html.escape(note)}</small>" for note in odd)

    def in_turns(self, title, what, unit="events a second", turns=None):
        """A table of medians."""
        figures, odd = self.all_turns(title, what, turns or self.turns)
        medians = {n: statistics.median(f) if f else None for n, f in figures.items()}
        rows = "".join(f"<tr><td>{html.escape(n)}<td>{'not here' if m is None else f'{m:,.0f}'}"
                       f"<td>{', '.join(f'{x:,.0f}' for x in figures[n])}" for n, m in medians.items())
        self.page.append(f"<h2>{html.escape(title)}</h2><table><tr><th>run<th>median, {unit}<th>each turn{rows}</table>{odd}")
        print(title, {n: m and round(m) for n, m in medians.items()}, flush=True)

    def curves(self, title, x_name, xs, runs, why, logarithmic=False, y_name="committed events a second"):
        """runs: label -> function of x. A graph of medians; all points in turns, so that a slow minute meets each once."""
        names = {(label, x): f"{label}, {x}" for label in runs for x in xs}
        figures, odd = self.all_turns(title, {name: lambda label=label, x=x: runs[label](x)
                                              for (label, x), name in names.items()}, self.turns)
        figure, axes = plt.subplots(figsize=(7, 4))
        for label in runs:
            axes.plot(xs, [statistics.median(figures[names[label, x]]) for x in xs], marker="o", label=label)
        axes.set_xlabel(x_name)
        axes.set_ylabel(y_name)
        if logarithmic:
            axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.grid(True, alpha=0.3)
        picture = io.BytesIO()
        figure.savefig(picture, format="svg", bbox_inches="tight")
        plt.close(figure)
        source = base64.b64encode(picture.getvalue()).decode()
        self.page.append(f"<h2>{html.escape(title)}</h2><img src='data:image/svg+xml;base64,{source}'><p>{html.escape(why)}</p>"
                         f"{odd}")
        print(title, {n: round(statistics.median(f), 2) for n, f in figures.items()}, flush=True)

    def write(self, directory):
        with open(os.path.join(directory, "timewarp.json"), "w") as out:
            json.dump({"figures": self.figures, "runs": self.runs.all}, out, indent=1)
        with open(os.path.join(directory, "timewarp.html"), "w") as out:
            out.write("<!doctype html><meta charset=utf-8><title>Optimistic simulation</title><style>body{font:16px sans-serif;"
                      "max-width:60em;margin:auto}td,th{text-align:left;padding:0 1em}</style><h1>Optimistic simulation</h1>"
                      f"<p>{os.cpu_count()} processors; load average at the end {os.getloadavg()[0]:.1f}. Other work on the "
                      "machine makes these figures worse; compare only within a table. timewarp.json has the seconds of every "
                      "run.</p>" + "".join(self.page))


def rate(result):
    return result["committed"] / result["seconds"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--peers", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--pair-turns", type=int, default=21, help="one optimistic thread against the sequential engine")
    options = parser.parse_args()
    study = Study(options)
    began = time.monotonic()
    threads = [t for t in (1, 2, 4, 8, 16) if t <= os.cpu_count()]
    events = 4096 * 16 * 20 / 0.9

    def rootsim(n):
        seconds = study.peer(r"completed in ([0-9.]+) seconds", "rootsim-phold", 4096, n, 20, 16, .25, .8, .1)
        return seconds and events / seconds

    runs = {"ours, sequential": lambda: rate(study.ours("phold", *PHOLD, "--threads", 0))}
    for t in threads:
        runs[f"ours, {t} threads"] = lambda t=t: rate(study.ours("phold", *PHOLD, "--threads", t))
    runs["ROOT-Sim, sequential"] = lambda: rootsim(0)
    for t in threads:
        runs[f"ROOT-Sim, {t} threads"] = lambda t=t: rootsim(t)
    runs["ROSS, sequential"] = lambda: study.peer(
        r"Event Rate \(events/sec\)\s+([0-9.]+)", "ross-phold", "--synch=1", "--nlp=4096", "--end=20", "--mean=0.9",
        "--lookahead=0.1", "--remote=0.25", "--start-events=16")
    study.in_turns("PHOLD: 4,096 LPs with 16 events, a quarter remote", runs)
    # Apart: short runs that differ by a fifth need many turns, and nothing between them.
    study.in_turns("PHOLD: one optimistic thread against the sequential engine", {
        "sequential": lambda: rate(study.ours("phold", *PHOLD, "--threads", 0)),
        "one optimistic thread": lambda: rate(study.ours("phold", *PHOLD, "--threads", 1))}, turns=options.pair_turns)
    pcs_end = 4000 if options.quick else 20000
    launcher = ("mpirun.openmpi", "--allow-run-as-root", "-np", "2", "--bind-to", "none")
    study.in_turns("PCS, 64 x 64 cells with 10 portables", {
        **{f"ours, {t} threads": lambda t=t: rate(study.ours(
            "pcs", "--width", 64, "--height", 64, "--portables", 10, "--end", pcs_end, "--threads", t)) for t in threads},
        "ROSS, sequential": lambda: study.peer(r"Event Rate \(events/sec\)\s+([0-9.]+)", "ross-pcs", "--synch=1",
                                               f"--end={pcs_end}"),
        "ROSS, 2 processes": lambda: study.peer(r"Event Rate \(events/sec\)\s+([0-9.]+)", "ross-pcs", "--synch=3",
                                                f"--end={pcs_end}", launcher=launcher)})
    study.in_turns("Queues, PHOLD sequential", {
        q: lambda q=q: rate(study.ours("phold", *PHOLD, "--threads", 0, "--queue", q))
        for q in ("ladder", "heap", "calendar", "splay")})

    end = 400 if options.quick else 2000
    study.in_turns("Saving and reverse computation: PCS, 14,400 cells, 360,000 portables (Carothers, figure 2)", {
        f"{way}, {t} threads": lambda way=way, t=t: rate(study.ours("pcs", "--way", way, "--threads", t, "--end", end))
        for t in threads for way in ("reverse", "copy", "incremental")})
    study.in_turns("Remedies of the paper: PCS with copies, one thread", {
        name: lambda more=more: rate(study.ours("pcs", "--threads", 1, "--end", end, *more)) for name, more in {
            "pages of 2 MiB": (), "pages of 4 KiB": ("--pages", "4K"), "pages of 1 GiB": ("--pages", "1G"),
            "co-located": ("--colocate",), "co-located, 4 KiB": ("--colocate", "--pages", "4K"),
            "no prefetching": ("--no-prefetch",), "GVT every 65,536 events": ("--gvt-events", 65536)}.items()})

    n = threads[-1]
    sizes = [64, 512, 4096, 65536] if options.quick else [64, 256, 1024, 4096, 16384, 65536]
    study.curves("State size, PHOLD with 512 LPs", "bytes of state", sizes, {
        way: lambda b, way=way: rate(study.ours("phold", "--lps", 512, "--end", 5 if way == "copy" and b > 9999 else 60,
                                                "--state", b, "--threads", n, "--way", way))
        for way in ("copy", "reverse", "incremental")},
        "Each event reads and writes its whole state when it copies. GVT is asked for after 512 KiB of copies, so up to some KiB "
        "they stay in the second-level cache; at 64 KiB an event moves 128 KiB, and the bandwidth of memory is the limit. The "
        "other two touch what the event touches.", True)
    lps = [1000, 10000, 100000] if options.quick else [1000, 10000, 100000, 1000000, 10000000]
    study.curves("LPs, PHOLD with one event each", "LPs", lps, {
        f"{t} threads" if t else "sequential": lambda x, t=t: rate(study.ours(
            "phold", "--lps", x, "--events", 1, "--end", max(0.3, min(100, 3e6 / x)), "--threads", t)) for t in (0, n)},
        "Few LPs: with 1,000 events in all a thread is soon farther ahead than the next message from another, and some 9 % are "
        "undone (with 10,000: 0.6 %). Many: LPs and events leave the second-level, then the third-level cache; prefetching "
        "hides a part, and two threads have two second-level caches.", True)
    study.curves("Remote share, PHOLD", "share", [0, .25, .5, .75, 1], {
        f"{t} threads": lambda x, t=t: rate(study.ours("phold", "--lps", 4096, "--end", 8, "--remote", x, "--threads", t))
        for t in threads},
        "Of the remote messages, all but 1 / threads go to another thread: two cache lines each that change processors, and "
        "now and then a straggler. With one thread they stay in its queue.")

    device = ("pcs_calls", "--threads", n, "--way", "ccl", "--grain", 10, "--finish-speed", "200M")
    calls = (*device, "--end", 1500 if options.quick else 6000)
    thresholds = [0, .5, 1] if options.quick else [i / 10 for i in range(11)]
    for lps in (32, 256):
        study.in_turns(f"Device copies of several LPs at once (multi) against one (mono), {lps} LPs, calls every 10 s", {
            name: lambda lps=lps, more=more: rate(study.ours(*device, "--end", 6000, "--call-interval", 10, "--lps", lps,
                                                             "--device-speed", "100M", "--threshold", .5, *more))
            for name, more in {"multiprogrammed": (), "monoprogrammed": ("--mono",)}.items()})
    for interval in (10, 3):
        study.curves(f"Copies by the device, calls every {interval} s, 32 cells, 100 MB/s (Santoro, figures 7 and 8)",
                     "threshold", thresholds, {
                         name: lambda x, more=more: rate(study.ours(*calls, "--call-interval", interval, "--lps", 32,
                                                                    "--device-speed", "100M", "--threshold", x, *more))
                         for name, more in {"multiprogrammed": (), "monoprogrammed": ("--mono",)}.items()},
                     "At threshold 0 the processor finishes what the device has not done; at 1 that is given up, and a "
                     "rollback repeats the events since the last copy.")
    study.curves("Distance between committed copies, calls every 10 s", "threshold", thresholds, {
        name: lambda x, more=more: study.ours(*calls, "--call-interval", 10, "--lps", 32, "--device-speed", "100M",
                                              "--threshold", x, *more)["events_between_copies"]
        for name, more in {"multiprogrammed": (), "monoprogrammed": ("--mono",)}.items()},
        "Monoprogrammed, a copy is given up whenever another LP asks for one.", y_name="events")
    study.page.append("<p>Counters of the processor (Carothers, figures 4 to 9): see perf stat where the machine has them; "
                      "this script does not need them.</p>")
    study.write(os.path.join(study.build, "timewarp"))
    print(f"{time.monotonic() - began:.0f} s; {os.path.join(study.build, 'timewarp', 'timewarp.html')}")


main()
