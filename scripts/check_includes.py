#!/usr/bin/env python3
"""Includes point down: a file includes its own room and the rooms below it, and nothing else of this project. Every source file is in
a room.

Run by ctest as house.includes. docs/floors.md quotes the table: a test compares the two.
"""
import os
import re
import sys

# From the ground up. Each room, and the rooms beside it or below that it may include.
ROOMS = [
    ("base", ""),
    ("beside", "base"),
    ("copier", "base"),
    ("job/format", "base"),
    ("image/format", "base job/format"),
    ("image/write", "base image/format"),
    ("image/read", "base image/format image/write job/format"),
    ("image/rewrite", "base image/format image/write image/read"),
    ("job/identity", "job/format"),
    ("job/directory", "job/format image/format"),
    ("libckpt_rt/core/kernel", "base"),
    ("libckpt_rt/core/settings", "libckpt_rt/core/kernel image/format"),
    ("libckpt_rt/core/threads", "libckpt_rt/core/settings"),
    ("libckpt_rt/core/process", "libckpt_rt/core/threads"),
    ("libckpt_rt/core/directory", "libckpt_rt/core/process job/identity image/write"),
    ("libckpt_rt/core/request", "libckpt_rt/core/directory"),
    ("libckpt_rt/core", "libckpt_rt/core/request copier include"),
    ("libckpt_rt/capture", "libckpt_rt/core"),
    ("libckpt_rt/stop", "libckpt_rt/capture"),
    ("libckpt_rt/interpose", "libckpt_rt/stop"),
    ("libckpt_rt/protect", "libckpt_rt/interpose"),
    ("libckpt_rt/guard", "libckpt_rt/protect"),
    ("job/session", "libckpt_rt/stop"),
    ("libckpt_rt/checkpoint/account", "libckpt_rt/core"),
    ("libckpt_rt/checkpoint", "libckpt_rt/guard job/session"),
    ("job/capture", "libckpt_rt/checkpoint job/directory"),
    ("libckpt_rt/back", "libckpt_rt/checkpoint"),
    ("libckpt_rt/entry", "libckpt_rt/checkpoint libckpt_rt/back job/capture"),
    ("heap", "base"),
    ("plugins", "include"),
    ("timewarp", "base copier include"),
    ("restart/restorer", "base image/format"),
    ("restart/reports", "base"),
    ("restart/files", "base image/format image/read job/format"),
    ("restart/channels", "restart/files restart/restorer"),
    ("restart/descriptors", "restart/channels"),
    ("restart/plan", "restart/descriptors restart/reports"),
    ("restart/feed", "restart/plan"),
    ("restart/tree", "restart/feed"),
    ("restart/job", "restart/tree"),
    ("restart", "restart/job"),
    ("cluster/protocol", "base"),
    ("cluster/link", "base"),
    ("cluster/redundancy", "base"),
    ("cluster/keeper", "base cluster/link cluster/redundancy"),
    ("cluster/on", "base cluster/link"),
    ("cluster/srun", "base cluster/on"),
    ("cluster", "base"),
    ("cli/text", "base image/format image/read"),
    ("cli/starting", "cli/text"),
    ("cli/hosts/job", "cli/starting cluster"),
    ("cli/image", "cli/hosts/job image/write image/rewrite job/format job/directory restart"),
    ("cli/ask", "cli/image"),
    ("cli/plan", "cli/ask"),
    ("cli/keeper", "cli/ask"),
    ("cli/back", "cli/keeper"),
    ("cli/hosts", "cli/back"),
    ("cli/gather", "cli/hosts"),
    ("cli/program", "cli/hosts plugins"),
    ("cli", "cli/plan cli/gather cli/program"),
]
# Folders of one room that are one floor: each of a line's leads to each other of them by includes. No other folders may.
ONE_FLOOR = [
    "cli/back cli/back/descriptors cli/back/job",
    "cli/hosts cli/hosts/agent cli/hosts/head cli/hosts/restart",
    "cli/image cli/image/core",
    "cluster/srun cluster/srun/asked cluster/srun/launcher cluster/srun/node cluster/srun/pmi cluster/srun/pmix",
    "copier copier/shared",
    "image/format image/format/encryption",
    "image/read image/read/sources",
    "image/write image/write/compress image/write/sink",
    "job/capture job/capture/coordinator",
    "libckpt_rt/capture/advice libckpt_rt/capture/memory libckpt_rt/capture/rings",
    "libckpt_rt/capture/sockets libckpt_rt/capture/sockets/waiting",
    "libckpt_rt/checkpoint libckpt_rt/checkpoint/back_ends",
    "libckpt_rt/checkpoint/image libckpt_rt/checkpoint/stages libckpt_rt/checkpoint/stages/memory",
    "libckpt_rt/interpose libckpt_rt/interpose/addresses libckpt_rt/interpose/descriptors libckpt_rt/interpose/memory "
    "libckpt_rt/interpose/process libckpt_rt/interpose/signals libckpt_rt/interpose/system_v libckpt_rt/interpose/waits",
    "libckpt_rt/stop libckpt_rt/stop/tracing",
    "restart/plan restart/plan/memory restart/plan/vdso",
    "timewarp/engine timewarp/engine/queue timewarp/mpi timewarp/state",
]
# A floor of libckpt_rt, job, restart or cli may include all that the floors it names may.
INHERIT = ("libckpt_rt/", "job/", "restart/", "cli/")
RULES = "libckpt_rt/core/preload_rules.h"
# What runs on the program's threads, or is called by what does; the agent, which stops them, keeps to the same rules. A room
# below libckpt_rt includes the rules where they stand.
RULES_BELOW = "base/preload_rules.h"
IN_PROGRAM = {"base": RULES_BELOW, "copier": RULES_BELOW, "image/format": RULES_BELOW, "image/write": RULES_BELOW, "job/format": RULES_BELOW,
              "heap": RULES_BELOW, "job/directory": RULES, "job/identity": RULES, "job/session": RULES, "job/capture": RULES}
# malloc itself, which defines the names that the rules poison.
EXEMPT = ("heap/install.cc",)
# Programs, which include what they like, and interfaces, which include nothing of ours.
NO_ROOMS = ("bench", "tests", "examples", "include")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def allowed(rooms):
    """Room -> the set of rooms that its files may include."""
    result = {}
    for room, below in rooms:
        may = {room} | set(below.split())
        for lower in below.split():
            if lower.startswith(INHERIT):
                may |= result.get(lower, set())
        result[room] = may
    return result


def sources(root, room):
    for folder, _, files in os.walk(os.path.join(root, room)):
        for name in sorted(files):
            if name.endswith((".h", ".cc", ".c", ".S")):
                yield os.path.relpath(os.path.join(folder, name), root)


def includes(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as f:
        return re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', f.read(), re.M)


def out_of_order(rooms):
    """A row names rows above it, or folders that have none (include, plugins' interface): so the table has no cycle."""
    named, rows = set(), {room for room, _ in rooms}
    for room, below in rooms:
        yield from (f"the table: {room} names {lower}, which is not above it" for lower in below.split() if lower in rows - named)
        named.add(room)


def without_a_room(root, rooms=ROOMS):
    """Files of ours of which no row of the table says what they may include."""
    for top in sorted(os.listdir(root)):
        # A build's folder holds what others have made.
        if top in NO_ROOMS or top.startswith((".", "build")) or not os.path.isdir(os.path.join(root, top)):
            continue
        yield from (f"{path}: is in no room of the table" for path in sources(root, top)
                    if not any(path.startswith(room + "/") for room, _ in rooms))


def violations(root, rooms=ROOMS):
    found = list(out_of_order(rooms))
    for room, may in allowed(rooms).items():
        for path in sources(root, room):
            named = includes(root, path)
            for header in named:
                # "libc", <errno.h>: not of this project. But nothing of it is named from another place than its root.
                if not os.path.exists(os.path.join(root, header)):
                    if os.path.isfile(os.path.join(root, os.path.dirname(path), header)):
                        found.append(f"{path}: includes {header}, not by its path from the root")
                    continue
                # The rules themselves are for every file that may come to run in the program.
                if header != RULES and not any(header.startswith(r + "/") for r in may):
                    found.append(f"{path}: includes {header}, which {room} may not")
    for room in [room for room, _ in rooms if room.startswith("libckpt_rt/")] + list(IN_PROGRAM):
        rules = IN_PROGRAM.get(room, RULES)
        for path in sources(root, room):
            if path.endswith(".cc") and path not in EXEMPT and includes(root, path)[-1:] != [rules]:
                found.append(f"{path}: its last include is not {rules}")
    # A room may lie in another.
    return list(dict.fromkeys(found))


def cycles(root, rooms=ROOMS):
    """Folders that lead to each other by includes, all together: a line as in ONE_FLOOR for each such set. A header and its source file
    are their folder's."""
    below = {}
    for top in sorted({room.split("/")[0] for room, _ in rooms}):
        for path in sources(root, top):
            others = below.setdefault(os.path.dirname(path), set())
            others |= {os.path.dirname(header) for header in includes(root, path)
                       if header not in (RULES, RULES_BELOW) and os.path.exists(os.path.join(root, header))}

    def reached(folder):
        found, left = set(), [folder]
        while left:
            new = below.get(left.pop(), set()) - found
            found |= new
            left += new
        return found
    reach = {folder: reached(folder) - {folder} for folder in below}
    together = ({folder} | {other for other in reach[folder] if folder in reach.get(other, ())} for folder in below)
    return sorted({" ".join(sorted(folders)) for folders in together if len(folders) > 1})


def unnamed_cycles(root, rooms=ROOMS, one_floor=None):
    one_floor = ONE_FLOOR if one_floor is None else one_floor
    there = cycles(root, rooms)
    yield from (f"folders that include each other, and are no floor of ONE_FLOOR: {line}" for line in there if line not in one_floor)
    yield from (f"ONE_FLOOR: these do not include each other, or not only these: {line}" for line in one_floor if line not in there)


def table(rooms=ROOMS):
    """The table as docs/floors.md quotes it."""
    width = max(len(room) for room, _ in rooms) + 2
    return "\n".join(f"{room:<{width}}{below or '-'}" for room, below in rooms)


def floor_lines(one_floor=None):
    """ONE_FLOOR as docs/floors.md quotes it."""
    return "\n".join(ONE_FLOOR if one_floor is None else one_floor)


def main():
    if "--table" in sys.argv:
        print(table() + "\n\n" + floor_lines())
        return 0
    found = violations(ROOT) + list(without_a_room(ROOT)) + list(unnamed_cycles(ROOT))
    with open(os.path.join(ROOT, "docs/floors.md"), encoding="utf-8") as f:
        text = f.read()
        if table() not in text or floor_lines() not in text:
            found.append("docs/floors.md: does not quote the tables (scripts/check_includes.py --table)")
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
