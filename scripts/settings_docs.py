#!/usr/bin/env python3
"""Writes what the table of settings (base/settings/settings_table.cc) says into README.md and the man pages.

usage: settings_docs.py BUILD [--check]     BUILD/bin/settings_json prints the table

What lies between two marks is written by this script; the rest, also the details after a setting's head in
libckpt_rt.7, is written by hand. --check: changes nothing, fails where a document differs.
"""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
README, COMMAND, LIBRARY = "README.md", "docs/man/ckpt.1", "docs/man/libckpt_rt.7"


def default_of(s):
    return s["when_empty"] or s["default"]


def readme_table(table):
    lines = ["| variable | option | meaning | default |", "| --- | --- | --- | --- |"]
    for s in table:
        option = f"`{s['option']}`" if s["by_run"] else ""
        if s["by_now"]:
            option += ", also of `ckpt now`"
        if s["by_readers"]:
            option += ", also of all that open images"
        more = f" ([more]({s['document'].removeprefix('README.md')}))" if s["document"] else ""
        cells = [f"`{s['variable']}`", option, f"{s['meaning']}: {s['accepts']}{more}", f"`{default_of(s)}`"]
        lines.append("| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |")
    return lines


def sentence(words):
    return words[0].upper() + words[1:] + "."


def man_text(s):
    text = [sentence(s["meaning"]), f"Accepts {s['accepts']}.", f"Default: {default_of(s)}."]
    return [line.replace("\\", "\\e") for line in text]


def synopsis(table):
    return [f".Op Fl {s['option'][1:]} Ar {s['value']}" for s in table if s["by_run"]]


def options(table):
    lines = []
    for s in table:
        if s["by_run"]:
            lines += [f".It Fl {s['option'][1:]} Ar {s['value']}", *man_text(s)]
            if s["by_readers"]:
                lines.append("All commands that open images take it too.")
    return lines


def entry(s):
    return [f".It Ev {s['variable']} Ns = Ns Ar {s['value']}", *man_text(s)]


def blocks(table):
    """(document, name of the block): its lines."""
    wanted = {(README, "table"): readme_table(table), (COMMAND, "synopsis"): synopsis(table),
              (COMMAND, "options"): options(table)}
    wanted.update({(LIBRARY, s["variable"]): entry(s) for s in table})
    return wanted


def marks(document, name):
    if document == README:
        return f"<!-- settings: {name}; scripts/settings_docs.py writes it -->", "<!-- settings: end -->"
    return f'.\\" settings: {name}; scripts/settings_docs.py writes it', '.\\" settings: end'


def rewrite(text, document, wanted):
    """The document with its blocks as wanted. Raises ValueError: a block is missing, unknown or out of order."""
    names = [name for d, name in wanted if d == document]
    found = re.findall(r"settings: (\S+); scripts/settings_docs\.py writes it", text)
    if found != names:
        raise ValueError(f"{document}: has the blocks {found}, the table asks for {names}, in this order")
    for name in names:
        begin, end = marks(document, name)
        first = text.index(begin) + len(begin)
        last = text.index(end, first)
        text = text[:first] + "\n" + "\n".join(wanted[document, name]) + "\n" + text[last:]
    return text


def main(arguments):
    check = "--check" in arguments
    places = [a for a in arguments if a != "--check"]
    if len(places) != 1:
        print(__doc__, file=sys.stderr)
        return 64
    said = subprocess.run([pathlib.Path(places[0]) / "bin/settings_json"], check=True, capture_output=True, text=True)
    wanted = blocks(json.loads(said.stdout))
    behind = 0
    for document in (README, COMMAND, LIBRARY):
        path = ROOT / document
        before = path.read_text(encoding="utf-8")
        try:
            after = rewrite(before, document, wanted)
        except ValueError as e:
            print(e, file=sys.stderr)
            return 1
        if after == before:
            continue
        if check:
            print(f"{document}: is not what the table of settings gives; run scripts/settings_docs.py BUILD",
                  file=sys.stderr)
            behind = 1
        else:
            path.write_text(after, encoding="utf-8")
    return behind


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
