#!/usr/bin/env python3
"""No sentence of what users read is longer than 25 words: README, man pages, and the documents that are named here. A document that has been
gone through is added to DOCUMENTS.

sentences_test.py FILE...: prints the sentences that are too long, of any document."""
import glob
import os
import re
import sys
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCUMENTS = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "docs/README.md", "docs/account.md", "docs/architecture.md", "docs/back.md",
             "docs/benchmarks.md", "docs/channels.md", "docs/defects.md", "docs/descriptors.md", "docs/diskless.md", "docs/diskless_in_place.md",
             "docs/diskless_study.md", "docs/exit_codes.md", "docs/fault_back_ends.md", "docs/findings.md", "docs/floors.md", "docs/glossary.md",
             "docs/heap.md", "docs/hosts.md", "docs/image_format.md", "docs/in_the_program.md", "docs/increments.md", "docs/interposition.md",
             "docs/jobs.md", "docs/kernel_notes.md", "docs/limits.md", "docs/locks.md", "docs/man/*", "docs/plan.md", "docs/plugins.md",
             "docs/restart.md", "docs/shared_memory.md", "docs/srun.md", "docs/static_programs.md", "docs/streaming.md", "docs/timewarp.md",
             "docs/timewarp_tutorial.md", "docs/tracing.md")
MOST = 25

# A sentence ends here; so does what leads to a list or an example.
END = re.compile(r"(?<=[.?!:])[)*_\"]*\s+(?=[^a-z\s])|(?<=:)\s+")
# Of mdoc(7) and man(7): macros that begin something else, and those that are called within a line.
BREAKS = {"Sh", "Ss", "Pp", "It", "Bl", "El", "Bd", "Ed", "Dl", "SH", "SS", "PP", "TP", "IP", "TS", "TE", "nf", "fi"}
CALLED = {"Fl", "Ar", "Cm", "Ev", "Pa", "Xr", "Sy", "Em", "No", "Op", "Nm", "Va", "Li", "Ql", "Dq", "Sq", "Pq", "Fn", "In", "Dv", "B", "I", "BR", "RB", "IR", "RI", "BI", "IB"}


def blocks_of_markdown(text):
    """Paragraphs, entries of lists, cells of tables; no code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    block = ""
    for line in text.split("\n") + [""]:
        cells = line.strip().strip("|").split(" | ") if line.startswith("|") else None
        if cells or not line.strip() or re.match(r"\s*([*-]|\d+\.) |#|<!--|    ", line):
            yield block
            block = ""
        if cells:
            yield from cells
        elif not re.match(r"#|<!--|    ", line):
            block += " " + re.sub(r"^\s*([*-]|\d+\.) ", "", line).strip()


def words_of_macro(line):
    """What a line of macros prints: flags with their dash, what follows Ns or is punctuation joined to what stands before."""
    printed, join = [], False
    for word in line.split():
        if word == "Ns":
            join = True
        elif word in CALLED:
            continue
        elif printed and (join or re.fullmatch(r"[.,:;?!)]+", word)):
            printed[-1] += word
            join = False
        else:
            printed.append(word)
            join = False
    return " ".join(printed)


def blocks_of_manual(text):
    """Paragraphs of a man page, without the synopsis and what is literal."""
    block, skipped, tag = "", None, False
    for line in text.split("\n"):
        macro = re.match(r"\.\s*(\w+)\s*(.*)", line)
        name = macro[1] if macro else None
        if skipped:
            skipped = None if name in skipped else skipped
            # The heading that ends a synopsis may be that of another one.
            if skipped or name != "Sh":
                continue
        if line.startswith(".\\\""):
            continue
        if name in BREAKS or not line.strip() or tag:
            yield block
            block, tag = "", name == "TP"
        if name in ("Sh", "SH") and macro[2] == "SYNOPSIS":
            skipped = (name,)
        elif name in ("Bd", "nf", "TS"):
            skipped = {"Bd": ("Ed",), "nf": ("fi",), "TS": ("TE",)}[name]
        elif name is None:
            block += " " + line.strip()
        elif name in CALLED:
            block += " " + words_of_macro(line.lstrip(". "))
        # A sentence ends with its line there, whatever the next one begins with.
        if re.search(r"[.?!]\)?$", block):
            yield block
            block = ""
    yield block


def too_long(path, text):
    blocks = blocks_of_manual(text) if re.search(r"\.\d$", path) else blocks_of_markdown(text)
    for block in blocks:
        for sentence in END.split(re.sub(r"\\f.|\\&", "", block)):
            if len(sentence.split()) > MOST:
                yield f"{path}: {len(sentence.split())} words: {' '.join(sentence.split())}"


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class Sentences(unittest.TestCase):
    def test_of_what_users_read(self):
        paths = [p for pattern in DOCUMENTS for p in sorted(glob.glob(os.path.join(SOURCE, pattern)))]
        self.assertGreater(len(paths), 5)
        found = [line for p in paths for line in too_long(os.path.relpath(p, SOURCE), read(p))]
        self.assertEqual(found, [], "\n" + "\n".join(found))

    def test_what_counts(self):
        long = " ".join(["word"] * 26)
        self.assertEqual(len(list(too_long("a.md", f"It is: {long}. And a\nshort one.\n"))), 1)
        self.assertEqual(list(too_long("a.md", f"{long[:60]}. A {long[:60]}.\n\n* {long[:60]}\n* {long[:60]}\n\n| {long[:100]} | {long[:100]} |\n")), [])
        self.assertEqual(list(too_long("a.md", f"```\n{long}\n```\n")), [])
        self.assertEqual(len(list(too_long("a.1", f".Sh SYNOPSIS\n{long}\n.Sh DESCRIPTION\n{long[:80]}\n.Fl -flag\n{long[:80]}\n"))), 1)
        self.assertEqual(list(too_long("a.1", f"{long[:80]}\n.Xr ptrace 2 .\nother {long[:80]}\n.It Fl -flag\n{long[:80]}\n")), [])


if __name__ == "__main__":
    if sys.argv[1:]:
        print("\n".join(line for p in sys.argv[1:] for line in too_long(p, read(p))))
    else:
        sys.exit(unittest.main())
