"""What the checkpointer is to keep to, and what was measured: rows for the page, and the same as text.

A goal is a figure of one or more lines of the suite (bench/latency/stand.cc, quiet.cc) and its limit. Lines that were not
measured, because the run was a quick one or the machine too small, are left out.
"""

MODE = "realtime"
ORDINARY = {"idle": "idle", "sort": "merge sort", "server": "server"}


def figure(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{float(f'{value:.3g}'):g}"


def spread(counters, key, shares):
    return ", ".join(figure(counters[f"{key}_{share}"]) for share in shares)


def kept(good):
    return "kept" if good else "missed"


def pauses(results):
    def line(what, name, limit, median_limit=None):
        c = results.get(name, {})
        if "library_ms_p99" not in c:
            return
        median, p99 = c["library_ms_p50"], c["library_ms_p99"]
        fork = results.get(name.rsplit("/", 1)[0] + "/plain-fork", {})
        beside = f"; fork() {figure(fork['inside_ms_p50'])}" if "inside_ms_p50" in fork else ""
        yield (f"threads stand, {what}", f"median ≤ {median_limit:g}, 99 % ≤ {limit:g} ms" if median_limit else f"99 % ≤ {limit:g} ms",
               f"{spread(c, 'library_ms', ['p50', 'p99'])} ms of {figure(c['checkpoints'])} (from inside {figure(c['inside_ms_p50'])}"
               f"{beside})", kept(p99 <= limit and (median_limit is None or median <= median_limit)))

    for size in ("1G", "4G", "16G"):
        for load, words in ORDINARY.items():
            yield from line(f"{size[:-1]} GiB, {words}", f"stand/{load}/{size}/{MODE}", 1, 0.5)
    for load, words in ORDINARY.items():
        small, large = (results.get(f"stand/{load}/{size}/{MODE}", {}).get("library_ms_p50") for size in ("1G", "16G"))
        if small and large:
            yield f"16 GiB against 1 GiB, {words}", "≤ 1.3 times", f"{large / small:.2f}", kept(large <= 1.3 * small)
    for size in ("1G", "4G"):
        yield from line(f"{size[:-1]} GiB, worst case", f"stand/uniform/{size}/{MODE}", 1)
    for name, words, limit in (("threads-128", "128 threads", 1), ("threads-1024", "1,024 threads", 3),
                               ("descriptors-1000", "1,000 descriptors", 1), ("mappings-5000", "5,000 mappings", 1)):
        yield from line(words, f"stand/{name}/256M/{MODE}", limit)


def waits(results):
    for load, words in (("sort", "merge sort"), ("server", "server"), ("uniform", "worst case")):
        c = results.get(f"stand/{load}/1G/{MODE}", {})
        if "wait_us_p50" in c:
            yield (f"wait on a protected page, 1 GiB, {words}", "median ≤ 20, 99.9 % ≤ 1,000 µs",
                   f"{spread(c, 'wait_us', ['p50', 'p999'])} µs", kept(c["wait_us_p50"] <= 20 and c["wait_us_p999"] <= 1000))
    for load, words in (("sort", "merge sort"), ("server", "server"), ("uniform", "worst case")):
        c = results.get(f"slow/{load}/256M/{MODE}", {})
        if "library_wait_us_max" in c:
            yield (f"longest wait, pool of 16 MiB, 200 MiB/s, {words}", "≤ 20 ms while the reserve lasts",
                   f"{figure(c['library_wait_us_max'] / 1000)} ms (median of the longest {figure(c['library_wait_us_p50'] / 1000)}); "
                   f"{figure(c['buffer_waits'])} of {figure(c['faults'])} waited for a buffer",
                   kept(c["library_wait_us_max"] <= 20_000))


def costs(results):
    for load, words in (("sort", "merge sort"), ("server", "server"), ("uniform", "worst case")):
        for size in ("1G", "4G"):
            ours, fork = (results.get(f"stand/{load}/{size}/{method}", {}).get("lost_ms") for method in (MODE, "plain-fork"))
            if ours is not None and fork is not None:
                yield (f"work lost by a checkpoint, {size[:-1]} GiB, {words}", "no more than by fork()",
                       f"{figure(ours)} ms; fork() {figure(fork)}", kept(ours <= fork))
    for work in ("allocate", "syscalls", "compute"):
        c = results.get(f"preloaded/{work}", {})
        if "quickest_lost_percent" in c:
            yield (f"work lost when no checkpoint runs, {work}", "≤ 1 %",
                   f"{c['quickest_lost_percent']:+.1f} % of the quickest runs (pairs of runs {c['lost_percent_min']:+.1f} to "
                   f"{c['lost_percent_max']:+.1f}, median {c['lost_percent']:+.1f})", kept(c["quickest_lost_percent"] <= 1))
    c = results.get(f"memory/{MODE}", {})
    if "extra_MiB" in c:
        limit = 64 + c["program_MiB"] / 1000
        yield ("extra memory", f"pool + 1/1,000: {figure(limit)} MiB",
               f"{figure(c['extra_MiB'])} MiB (most {figure(c['extra_MiB_max'])})", kept(c["extra_MiB_max"] <= limit))
    c = results.get("rate/increments", {})
    if "per_second" in c:
        yield ("checkpoints a second, 1 MiB written between two", "≥ 200", figure(c["per_second"]), kept(c["per_second"] >= 200))
        yield (f"work lost with {figure(c['paced_per_second'])} a second", "≤ 5 %", f"{figure(c['paced_lost_percent'])} %",
               kept(c["paced_lost_percent"] <= 5))


def goals(results):
    """[(figure, goal, measured, "kept" or "missed")]"""
    return [*pauses(results), *waits(results), *costs(results)]


def markdown(rows):
    lines = ["| figure | goal | measured | |", "| --- | --- | --- | --- |"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"
