#!/usr/bin/env python3
"""Draws what the latency suite measured: graphs as PNG and SVG, and one self-contained page.

Usage: report.py RESULTS.json OUTPUT_DIRECTORY [COMMAND]
RESULTS.json is the --benchmark_out of build/bench/latency; COMMAND is shown on the page.
"""
import collections
import html
import json
import os
import re
import sys

import matplotlib

sys.dont_write_bytecode = True  # the source directory stays as it is
import goals  # noqa: E402

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

COLOURS = {"realtime": "#0072b2", "sequential": "#d55e00", "fork": "#009e73", "concurrent": "#cc79a7",
           "realtime-large": "#e69f00", "plain-fork": "#777777", "criu": "#56b4e9", "none": "#bbbbbb"}
WORDS = {"none": "no checkpoint", "plain-fork": "plain fork()", "criu": "CRIU"}
# What an error of somebody else's tool means.
KNOWN = {"Unexpected rt vDSO area bounds": "Linux 6.13 and later have the mapping [vvar_vclock] between [vvar] and [vdso], which "
                                          "this version of CRIU takes for damage (CRIU issue 2532); CRIU 4.1 or later is needed."}
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def colour(method):
    return COLOURS.get(method, "#000000")


def word(method):
    return WORDS.get(method, method)


def size_bytes(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def size_words(text):
    return f"{text[:-1]} {text[-1]}iB" if text[-1] in UNITS else text


def load(path):
    """{name: counters}, failures as {"error": why}; and the context."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    results = collections.OrderedDict()
    for b in data["benchmarks"]:
        name = re.sub(r"/iterations:\d+|/manual_time", "", b["name"])
        results[name] = {"error": b["error_message"]} if b.get("error_occurred") else b
    return results, data["context"]


def family(results, prefix, parts):
    """Results below a prefix as [(parts of the name, counters)], in the order they were measured."""
    found = []
    for name, counters in results.items():
        if name.startswith(prefix + "/"):
            words = name[len(prefix) + 1:].split("/")
            if len(words) == parts:
                found.append((words, counters))
    return found


def figure(value):
    """A number with three digits that matter, or a dash."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):g}"


def num(counters, key):
    return figure(counters.get(key))


class Page:
    def __init__(self, directory):
        self.directory = directory
        self.body = []

    def heading(self, text, level=2):
        self.body.append(f"<h{level}>{html.escape(text)}</h{level}>")

    def text(self, text):
        self.body.append(f"<p>{text}</p>")

    def graph(self, name, draw, caption, width=6.4, height=4.0):
        plot, axes = plt.subplots(figsize=(width, height))
        if not draw(axes):
            plt.close(plot)
            return
        axes.grid(True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        plot.tight_layout()
        plot.savefig(os.path.join(self.directory, name + ".png"), dpi=150)
        path = os.path.join(self.directory, name + ".svg")
        plot.savefig(path, metadata={"Date": None})
        plt.close(plot)
        with open(path, encoding="utf-8") as file:
            svg = file.read()
        svg = svg[svg.index("<svg"):]
        # Names inside must differ between the graphs of one page.
        for attribute in (r'id="', r'xlink:href="#', r'url\(#'):
            svg = re.sub(attribute, attribute.replace("\\", "") + name + "-", svg)
        self.body.append(f"<figure>{svg}<figcaption>{caption}</figcaption></figure>")

    def table(self, head, rows):
        if not rows:
            return
        cells = "".join(f"<th>{h}</th>" for h in head)
        self.body.append(f"<table><thead><tr>{cells}</tr></thead><tbody>")
        for row in rows:
            kind = ' class="new"' if row and row[0] != "" else ""
            self.body.append(f"<tr{kind}>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>")
        self.body.append("</tbody></table>")

    def write(self, title):
        path = os.path.join(self.directory, "latency.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{title}</title><style>"
                       "body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:#222}"
                       "table{border-collapse:collapse;font-size:13px;margin:1em 0;font-variant-numeric:tabular-nums}"
                       "th,td{padding:.2em .6em;text-align:right;border-bottom:1px solid #eee}th{border-color:#888;"
                       "vertical-align:bottom}th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}"
                       "tr.new td{border-top:1px solid #aaa}figure{display:inline-block;margin:1em 1em 1em 0;max-width:520px}"
                       "figure svg{width:100%;height:auto}figcaption{font-size:13px;color:#555}"
                       "dl{display:grid;grid-template-columns:max-content 1fr;gap:0 1em;font-size:13px}dt{font-weight:600}"
                       "dd{margin:0}code{background:#f4f4f4;padding:0 .2em}.error{color:#a40000}"
                       "</style></head><body>" + "\n".join(self.body) + "</body></html>\n")
        return path


def against_size(results, key, label, log=True, only=None):
    """A line a mode over the heap sizes of the merge sort, with the range over the checkpoints."""
    def draw(axes):
        lines = collections.OrderedDict()
        for (size, mode), c in family(results, "paper/mergesort", 2):
            if key in c and (only is None or mode in only):
                lines.setdefault(mode, []).append((size_bytes(size) / (1 << 20), c[key], c[key + "_min"], c[key + "_max"]))
        for mode, points in lines.items():
            x, y, low, high = zip(*points)
            axes.errorbar(x, y, yerr=[[max(0, a - b) for a, b in zip(y, low)], [max(0, b - a) for a, b in zip(y, high)]],
                          marker="o", ms=4, capsize=3, lw=1.4, color=colour(mode), label=word(mode))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
        if log:
            axes.set_yscale("log")
        axes.set_xlabel("records of the merge sort, MiB")
        axes.set_ylabel(label)
        if lines:
            axes.legend(frameon=False)
        return bool(lines)
    return draw


def paper(page, results):
    page.heading("The graphs of Li, Naughton and Plank (1989)")
    page.text("A parallel merge sort on all processors but one, as in the paper. Points are medians over several "
              "checkpoints, bars reach from the least to the largest value. The heap is one and a half times the records: "
              "the sort needs half as much scratch.")
    page.graph("graph1", against_size(results, "checkpoint_s", "checkpoint time, s"),
               "Graph 1. Time from the request until the image is durable.")
    page.graph("graph2", against_size(results, "overhead_s", "overhead, s", log=False),
               "Graph 2. What a checkpoint adds to the running time. The sort repeats itself; rounds with a checkpoint are "
               "compared with the rounds before and after them. Values around zero are less than the noise.")
    page.graph("graph3", against_size(results, "overhead_percent", "overhead, % of the checkpoint time", log=False),
               "Graph 3. Overhead as a share of the checkpoint's time.")

    limited = [(m, c) for (m,), c in family(results, "paper/limited", 1)]

    def draw_limited(axes):
        done = [(m, c["checkpoint_s"]) for m, c in limited if "checkpoint_s" in c]
        axes.bar([word(m) for m, _ in done], [s for _, s in done], color=[colour(m) for m, _ in done])
        axes.set_ylabel("checkpoint time, s")
        for m, c in limited:
            if "error" in c:
                axes.bar([word(m)], [0])
                axes.annotate("not possible", (word(m), 0), ha="center", va="bottom", color="#a40000", fontsize=9)
        return bool(limited)
    caption = "Graph 4. Memory limited so that the program alone fills four fifths of it."
    for m, c in limited:
        if "error" in c:
            caption += f" {html.escape(word(m))}: {html.escape(c['error'])}."
    page.graph("graph4", draw_limited, caption)

    def draw_latency(axes):
        drawn = against_size(results, "stop_ms", "ms", only=("realtime",))(axes)
        lines = [(size_bytes(s) / (1 << 20), c) for (s, m), c in family(results, "paper/mergesort", 2)
                 if m == "realtime" and "trap_ms" in c]
        axes.plot([x for x, _ in lines], [c["trap_ms_max"] for _, c in lines], marker="s", ms=4, ls="--", color="#56b4e9",
                  label="longest trap")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles, ["initial stop" if l == "realtime" else l for l in labels], frameon=False)
        return drawn
    page.graph("graph5", draw_latency, "Graph 5. Real-time mode: initial stop, and the longest wait of a thread on a protected "
                                       "page over all checkpoints.")

    segments = [(size_bytes(s) / 1024, c) for (s,), c in family(results, "paper/segment", 1) if "traps" in c]

    def against_segment(key, label, top):
        def draw(axes):
            x = [s for s, _ in segments]
            axes.plot(x, [c[key + top] for _, c in segments], marker="o", ms=4, color=colour("realtime"))
            axes.fill_between(x, [c[key + "_min"] for _, c in segments], [c[key + "_max"] for _, c in segments], alpha=0.15,
                              color=colour("realtime"))
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
            axes.set_xlabel("segment, KiB")
            axes.set_ylabel(label)
            return bool(segments)
        return draw
    page.graph("graph6", against_segment("traps", "traps in a checkpoint", ""),
               "Graph 6. Number of traps against segment size (median, least and largest).")
    page.graph("graph7", against_segment("trap_ms", "longest trap, ms", ""),
               "Graph 7. Longest trap of a checkpoint against segment size (median, least and largest).")

    others = [(n, c) for (n,), c in family(results, "paper/other", 1)]
    sorts = [c for (_, m), c in family(results, "paper/mergesort", 2) if m == "realtime" and "memory_MiB" in c]

    def against_memory(key, label):
        def draw(axes):
            points = [(n, c) for n, c in others if key in c]
            axes.plot([c["memory_MiB"] for c in sorts], [c[key] for c in sorts], marker="o", ms=4, color=colour("realtime"),
                      label="mergesort")
            for (name, c), mark in zip(points, "s^vD"):
                axes.errorbar([c["memory_MiB"]], [c[key]], yerr=[[c[key] - c[key + "_min"]], [c[key + "_max"] - c[key]]],
                              marker=mark, ms=6, ls="", capsize=3, label=name)
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda v, _: f"{v:g}"))
            axes.set_xlabel("memory in the image, MiB")
            axes.set_ylabel(label)
            axes.legend(frameon=False)
            return bool(points)
        return draw
    page.graph("graph8", against_memory("checkpoint_s", "checkpoint time, s"),
               "Graph 8. Checkpoint time of the other benchmark programs, beside merge sort (real-time mode).")
    page.graph("graph9", against_memory("overhead_s", "overhead, s"),
               "Graph 9. Overhead for the other benchmark programs: whole runs with and without checkpoints, alternating; "
               "from the least to the largest difference.")

    rows, last = [], None
    for (size, mode), c in family(results, "paper/mergesort", 2):
        first = "" if size == last else size_words(size)
        last = size
        if "error" in c:
            rows.append([first, word(mode), f"<span class='error'>{html.escape(c['error'])}</span>"] + [""] * 8)
            continue
        rows.append([first, word(mode)] + [num(c, k) for k in ("checkpoints", "stop_ms", "stop_ms_max", "trap_ms_max", "traps",
                                                               "checkpoint_s", "overhead_s", "overhead_percent", "memory_MiB")])
    page.table(["records", "mode", "check&shy;points", "stop, ms<br>median", "largest", "longest trap, ms", "traps",
                "checkpoint, s", "overhead, s", "overhead, %", "memory, MiB"], rows)


SURROUNDINGS = {"threads-128": "server, 128 threads", "threads-1024": "server, 1,024 threads",
                "descriptors-1000": "server, 1,000 descriptors", "mappings-5000": "server, 5,000 mappings"}
LOADS = {"idle": "idle", "sort": "merge sort", "server": "server", "uniform": "worst case"}


def stand(page, results):
    page.heading("How long threads stand still")
    page.text("<b>Inside</b>: gaps between the steps of the program's own threads (<code>bench/gaps</code>), laid beside the "
              "checkpoints taken meanwhile; the pause is the longest gap that holds the time in which all threads stood. "
              "<b>Library</b>: what <code>ckpt now</code> reports. <b>Wait</b>: all other gaps of 3 µs and more during a "
              "checkpoint: waits on protected pages, and turns that other threads get on the processors; of the same kind is "
              "<b>without</b>, the largest gap while no checkpoint was taken. <b>Lost</b>: progress not made during a checkpoint, "
              "as time and as a share of the checkpoint; it can be less than nothing where the machine's speed varies. "
              "Percentiles of few checkpoints are their largest.")
    page.text("Loads: <b>idle</b>, the memory is there and nobody touches it; <b>merge sort</b>; <b>server</b>, a large table, "
              "nine in ten requests read, some entries much more popular than others; <b>worst case</b>, every step writes one "
              "word at a random place of the whole memory.")
    found = family(results, "stand", 3)

    sizes = list(collections.OrderedDict.fromkeys(s for (l, s, _), _ in found if l in LOADS))
    for size in sizes:
        def draw(axes, size=size):
            methods = list(collections.OrderedDict.fromkeys(m for (l, s, m), c in found if s == size and "inside_ms_p50" in c))
            drawn = False
            for i, method in enumerate(methods):
                offset = (i - (len(methods) - 1) / 2) * 0.14
                for j, load_name in enumerate(LOADS):
                    c = results.get(f"stand/{load_name}/{size}/{method}", {})
                    if "inside_ms_p50" not in c:
                        continue
                    drawn = True
                    y = c["inside_ms_p50"]
                    axes.errorbar([j + offset], [y], yerr=[[y - c["inside_ms_min"]], [c["inside_ms_max"] - y]], marker="o", ms=5,
                                  capsize=3, color=colour(method), label=word(method) if j == 0 else None)
            axes.set_yscale("log")
            axes.set_xticks(range(len(LOADS)), LOADS.values())
            axes.set_ylabel("pause seen from inside, ms")
            if drawn:
                axes.legend(frameon=False, fontsize=8)
            return drawn
        page.graph(f"pause_{size}", draw, f"Time threads stand still, {size_words(size)}: median, least and largest.")

        def draw_waits(axes, size=size):
            shares = ["p50", "p90", "p99", "p999", "max"]
            drawn = False
            for load_name, mark in zip(LOADS, "ov^s"):
                c = results.get(f"stand/{load_name}/{size}/realtime", {})
                if "wait_us_p50" in c and c.get("waits", 0) >= 10:
                    axes.plot(shares, [c[f"wait_us_{s}"] for s in shares], marker=mark, label=LOADS[load_name])
                    drawn = True
            axes.set_yscale("log")
            axes.set_xticks(range(len(shares)), ["median", "90 %", "99 %", "99.9 %", "largest"])
            axes.set_ylabel("wait, µs")
            if drawn:
                axes.legend(frameon=False)
            return drawn
        page.graph(f"wait_{size}", draw_waits, f"Waits during a checkpoint besides the pause, real-time mode, {size_words(size)}.")

        def draw_lost(axes, size=size):
            methods = list(collections.OrderedDict.fromkeys(m for (l, s, m), c in found if s == size and "lost_ms" in c))
            drawn = False
            for i, method in enumerate(methods):
                points = [(j, results.get(f"stand/{l}/{size}/{method}", {})) for j, l in enumerate(LOADS)]
                points = [(j, c) for j, c in points if "lost_ms" in c]
                axes.bar([j + (i - (len(methods) - 1) / 2) * 0.8 / len(methods) for j, _ in points],
                         [c["lost_ms"] for _, c in points], width=0.8 / len(methods), color=colour(method), label=word(method))
                drawn = drawn or bool(points)
            axes.set_xticks(range(len(LOADS)), LOADS.values())
            axes.set_ylabel("work lost by a checkpoint, ms")
            if drawn:
                axes.legend(frameon=False, fontsize=8)
            return drawn
        page.graph(f"lost_{size}", draw_lost, f"Work lost over a whole checkpoint, {size_words(size)} (median): pause, waits, and "
                                              "processor time that the checkpoint takes.")

    rows, last = [], None
    for (load_name, size, method), c in found:
        title = f"{LOADS.get(load_name) or SURROUNDINGS.get(load_name, load_name)}, {size_words(size)}"
        first = "" if title == last else title
        last = title
        if "error" in c:
            rows.append([first, word(method), f"<span class='error'>{html.escape(c['error'])}</span>"] + [""] * 13)
            continue
        rows.append([first, word(method)] + [num(c, k) for k in (
            "checkpoints", "inside_ms_p50", "inside_ms_p99", "inside_ms_max", "library_ms_p50", "library_ms_max", "faults",
            "wait_us_p50", "wait_us_p99", "wait_us_p999", "library_wait_us_max", "other_gap_max_ms", "lost_ms",
            "lost_percent")])
    page.table(["program", "method", "check&shy;points", "inside, ms<br>median", "99 %", "largest", "library, ms<br>median",
                "largest", "faults", "wait, µs<br>median", "99 %", "99.9 %", "library's longest", "without, ms", "lost, ms",
                "lost, %"], rows)
    rows = [[f"{LOADS[load_name]}, {size_words(size)}", word(method)] + [num(c, k) for k in (
        "checkpoints", "library_ms_p50", "faults", "buffer_waits", "wait_us_p50", "wait_us_p99", "wait_us_p999", "library_wait_us_max",
        "checkpoint_s", "lost_ms")] for (load_name, size, method), c in family(results, "slow", 3) if "faults" in c]
    if rows:
        page.text("A pool of 16 MiB, and images go where 200 MiB a second go: when nothing of the pool is left, a thread on a protected "
                  "page waits for a buffer as well.")
        page.table(["program", "method", "check&shy;points", "library, ms<br>median", "faults", "for a buffer", "wait, µs<br>median",
                    "99 %", "99.9 %", "library's longest", "checkpoint, s", "lost, ms"], rows)
    for (name,), c in family(results, "rival", 1):
        if "error" in c:
            page.text(f"<b>{html.escape(word(name))}</b> could not be measured here: <span class='error'>"
                      f"{html.escape(c['error'])}</span> " + " ".join(m for e, m in KNOWN.items() if e in c["error"]))


def quiet(page, results):
    page.heading("Costs besides the pause")
    rows = [[w, f"{num(c, 'plain_s')} s", num(c, "lost_percent"), num(c, "lost_percent_min"), num(c, "lost_percent_max"),
             num(c, "quickest_lost_percent")]
            for (w,), c in family(results, "preloaded", 1) if "lost_percent" in c]
    page.text("Work lost while no checkpoint is taken: the same work with and without the library, alternating.")
    page.table(["work", "without the library", "lost with it, %<br>median", "least", "largest", "of the<br>quickest runs"], rows)
    rows = []
    for (method,), c in family(results, "memory", 1):
        r = results.get(f"rate/{method}", {})
        extra = html.escape(c["error"]) if "error" in c else f"{num(c, 'extra_MiB')} ({num(c, 'extra_MiB_min')} to {num(c, 'extra_MiB_max')})"
        rows.append([word(method), extra, num(r, "per_second"), num(r, "checkpoint_ms")])
    page.text("Memory beyond the program's own during a checkpoint of the worst case with 256 MiB (as the kernel counts it for the "
              "program's cgroup, forked children included); and checkpoints of a program of 1 MiB, one after the other.")
    page.table(["method", "extra memory, MiB", "checkpoints a second", "one takes, ms"], rows)
    paced = results.get("rate/increments", {})
    if "per_second" in paced:
        page.text(f"Increments to memory of a program that writes 1 MiB between two: {num(paced, 'per_second')} a second, one after the "
                  f"other; with {num(paced, 'paced_per_second')} a second the program loses {num(paced, 'paced_lost_percent')} % of its work.")
    disk = results.get("disk/write", {})
    if "MB_per_s" in disk:
        page.text(f"The disk without us: {num(disk, 'MB_per_s')} MB/s ({num(disk, 'MB_per_s_min')} to {num(disk, 'MB_per_s_max')}), "
                  "sequential, O_DIRECT.")


def against_goals(page, results):
    """The first table of the page; also goals.md, to be put into a text."""
    rows = goals.goals(results)
    if not rows:
        return
    page.heading("What it is to keep to")
    page.text("Mode <b>realtime</b>, the others beside it below. Pauses are as the library reports them: median and 99 % (of few "
              "checkpoints the largest).")
    page.table(["figure", "goal", "measured", ""], [[html.escape(cell) for cell in row] for row in rows])
    with open(os.path.join(page.directory, "goals.md"), "w", encoding="utf-8") as file:
        file.write(goals.markdown(rows))


def main():
    if len(sys.argv) not in (3, 4):
        print(__doc__.strip(), file=sys.stderr)
        return 64
    try:
        results, context = load(sys.argv[1])
    except (OSError, ValueError, KeyError) as e:
        print(f"report.py: cannot read {sys.argv[1]}: {e}", file=sys.stderr)
        return 66
    os.makedirs(sys.argv[2], exist_ok=True)
    plt.rcParams.update({"font.size": 10, "svg.hashsalt": "ckpt"})
    page = Page(sys.argv[2])
    page.heading("What checkpoints cost", 1)
    known = ["date", "cpu", "cores", "memory", "swap", "kernel", "transparent_huge_pages", "file_system_of_images",
             "load_average_at_start", "load_average_at_end", "memory_cgroups"]
    lines = [(k.replace("_", " "), context[k]) for k in known if k in context]
    lines += [(k.replace("_", " "), v) for k, v in context.items() if k.startswith("mode_unavailable_")]
    if len(sys.argv) == 4:
        lines.append(("command", sys.argv[3]))
    page.body.append("<dl>" + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(str(v))}</dd>" for k, v in lines) + "</dl>")
    against_goals(page, results)
    stand(page, results)
    quiet(page, results)
    paper(page, results)
    print(page.write("ckpt_rt: what checkpoints cost"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
