"""The page of a study: figures 2 to 5 and tables 3 and 4 of the paper, from study.json."""
import html

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "study"  # the same figures, the same file
import matplotlib.pyplot as plt  # noqa: E402

NAMES = {"nbody": "NBODY", "mat": "MAT", "pstswm": "PSTSWM", "cell": "CELL", "pcg": "PCG"}
# As many as there are variants, and no fewer: zip() would leave the last ones out.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#777777", "#000000", "#f0e442", "#7b3294", "#a6611a", "#018571", "#80b1d3"]


def of(rows, **wanted):
    return [r for r in rows if all(r[k] == v for k, v in wanted.items())]


def unique(rows, key):
    return list(dict.fromkeys(r[key] for r in rows))


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path.rsplit("/", 1)[1]


def by_size(rows, variants, path):
    """Figures 2 and 3: latency and overhead beside the size of a process."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3))
    for axis, key, title in ((axes[0], "latency", "latency, s"), (axes[1], "measured_overhead", "overhead, s")):
        for variant, colour in zip(variants, COLOURS):
            points = sorted((r["size"] / 2**20, r[key], r["program"]) for r in of(rows, variant=variant) if key in r)
            axis.plot([p[0] for p in points], [p[1] for p in points], "o-", color=colour, label=variant)
            for x, y, name in points:
                axis.annotate(NAMES[name], (x, y), fontsize=6)
        axis.set_xlabel("checkpoint of a process, MiB")
        axis.set_title(title, fontsize=9)
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
        axis.legend(fontsize=7)
    return save(figure, path)


def bars(rows, variants, path):
    """Figure 4: per program and variant."""
    programs = unique(rows, "program")
    keys = (("latency", 1, "latency, s"), ("measured_overhead", 1, "overhead, s"), ("pause", 1e-3, "pause, ms"), ("sent", 2**20, "sent by all, MiB"))
    figure, axes = plt.subplots(len(keys), 1, figsize=(8, 2 * len(keys)))
    width = 0.8 / max(1, len(variants))
    for axis, (key, unit, title) in zip(axes, keys):
        for i, (variant, colour) in enumerate(zip(variants, COLOURS)):
            found = {r["program"]: r for r in of(rows, variant=variant) if key in r}
            at = [p + (i - len(variants) / 2) * width for p, name in enumerate(programs) if name in found]
            axis.bar(at, [found[name][key] / unit for name in programs if name in found], width, color=colour, label=variant, align="edge")
        axis.set_xticks(range(len(programs)), [NAMES[p] for p in programs])
        axis.set_title(title, fontsize=9)
    axes[0].legend(fontsize=6, ncol=3)
    return save(figure, path)


def disk_and_best(rows, path):
    """Figure 5: overhead on a disk beside that of the best variant without one."""
    programs = unique(rows, "program")
    figure, axis = plt.subplots(figsize=(6, 2.5))
    for i, name in enumerate(programs):
        disk = [r for r in of(rows, program=name, variant="DISK-FORK") if "overhead" in r]
        others = [r for r in of(rows, program=name) if "overhead" in r and r["variant"] != "DISK-FORK"]
        if disk:
            axis.bar(i - 0.4, disk[0]["overhead"], 0.4, color=COLOURS[6], align="edge")
        if others:
            best = min(others, key=lambda r: r["overhead"])
            axis.bar(i, best["overhead"], 0.4, color=COLOURS[0], align="edge")
            axis.annotate(best["variant"], (i, best["overhead"]), fontsize=6)
    axis.set_xticks(range(len(programs)), [NAMES[p] for p in programs])
    axis.set_ylabel("overhead, s")
    return save(figure, path)


def table(heads, lines):
    return "| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads) + "\n" + "".join("| " + " | ".join(line) + " |\n" for line in lines)


def figures(r):
    return [NAMES[r["program"]], r["variant"], f"{r['size'] / 2**20:.1f}", f"{r['latency']:.2f}", f"{r['pause'] * 1000:.1f}",
            f"{r['measured_overhead']:.2f}" if "measured_overhead" in r else "–", f"{r['sent'] / 2**20:.0f}", f"{r['recovery']:.2f}"]


def plans(r):
    p = r["plan"]
    return [NAMES[r["program"]], r["variant"], f"{p['interval']:.0f}", f"{p['expected']:.0f}", f"{p['overhead_ratio'] if 'overhead_ratio' in p else p['ratio']:.5f}",
            *(f"{p[k]:.4f}" if k in p else "–" for k in ("with", "without"))]


def text(study):
    """The tables, as the page and docs/diskless_study.md have them."""
    parts = []
    for rate in unique(study["rows"], "rate"):
        for scheme in unique(study["rows"], "scheme"):
            rows = [r for r in of(study["rows"], rate=rate, scheme=scheme) if r["variant"] != "BASE"]
            if not rows:
                continue
            parts.append((f"{scheme}, network {'as it is' if rate == 'asis' else rate}", rows, table(
                ["program", "variant", "size, MiB", "latency, s", "pause, ms", "overhead, s", "sent, MiB", "recovery, s"], map(figures, rows)),
                table(["program", "variant", "T_opt, s", "Γ, s", "r", "T_ckp, s", "T_nockp, s"], (plans(r) for r in rows if "plan" in r))))
    return parts


def as_html(markdown):
    lines = [line.strip("|").split("|") for line in markdown.splitlines() if "---" not in line]
    cells = ["".join(f"<td>{html.escape(c.strip())}</td>" for c in line) for line in lines]
    return "<table>" + "".join(f"<tr>{c}</tr>" for c in cells) + "</table>"


def write(study, output):
    page = ["<!doctype html><meta charset=utf-8><title>Diskless checkpoints</title><style>body{font:14px sans-serif;max-width:60em;margin:auto}"
            "td{padding:0 1em 0 0}</style><h1>Diskless checkpoints of five MPI programs</h1>",
            f"<p>{html.escape(study['date'])}, {html.escape(study['machine'])}, load average at the end {study['load']:.1f}. "
            f"<code>{html.escape(study['command'])}</code>"]
    markdown = []
    for number, (title, rows, costs, plan) in enumerate(text(study)):
        variants = unique(rows, "variant")
        page.append(f"<h2>{html.escape(title)}</h2>")
        drawings = [("figure 2", by_size(rows, ["DISK-FORK"], f"{output}/study{number}_2.svg")),
                    ("figure 3", by_size(rows, [v for v in ("SIMP", "FORK") if v in variants], f"{output}/study{number}_3.svg")),
                    ("figure 4", bars(rows, variants, f"{output}/study{number}_4.svg")),
                    ("figure 5", disk_and_best(rows, f"{output}/study{number}_5.svg"))]
        for name, path in drawings:
            page.append(f"<h3>As {name} of the paper</h3><img src='{path}' alt='{name}'>")
        page.append("<h3>Costs, with recovery (as table 3)</h3>" + as_html(costs) + "<h3>Expected times (as table 4)</h3>" + as_html(plan))
        markdown.append(f"### {title}\n{costs}\n{plan}")
    if study["failures"]:
        page.append("<h2>Failed</h2><ul>" + "".join(
            f"<li>{f['rate']} {f['scheme']} {f['program']} {f['variant']}: {html.escape(f['why'])}" for f in study["failures"]) + "</ul>")
    if study.get("left_out"):
        page.append("<h2>Left out: the time was up</h2><p>" + html.escape("; ".join(
            f"{f['rate']} {f['scheme']} {f['program']} {f['variant']}" for f in study["left_out"])))
    with open(f"{output}/study.html", "w", encoding="utf-8") as f:
        f.write("\n".join(page))
    with open(f"{output}/study.md", "w", encoding="utf-8") as f:
        f.write("\n".join(markdown))
