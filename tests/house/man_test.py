#!/usr/bin/env python3
"""The synopses of ckpt(1) and ckpt-restart(1) have the options that --help names: all of them, and no others.

Usage: man_test.py BUILD      BUILD/bin has the commands
"""
import os
import re
import subprocess
import sys
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = sys.argv.pop(1)
# Every command has these; the manual says so once.
EVERYWHERE = {"--help", "--version"}
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def said_by(*command):
    """The options that the help of a command lists, and the names of the commands below it."""
    text = subprocess.run([os.path.join(BUILD, "bin", command[0]), *command[1:], "--help"],
                          check=True, capture_output=True, text=True).stdout
    options = re.search(r"^Options:\n((?:  .*\n)+)", text, re.M)
    below = re.search(r"^Subcommands:\n((?:  .*\n)+)", text, re.M)
    starts = re.findall(r"^  (-\S+)", options.group(1), re.M)
    return (set(OPTION.findall(" ".join(starts))) - EVERYWHERE,
            re.findall(r"^  ([a-z]\S*)", below.group(1), re.M) if below else [])


def written_in(page):
    with open(os.path.join(SOURCE, "docs/man", page)) as file:
        text = file.read().replace("\\-", "-")
    return re.sub(r"\bFl (?=-[a-z])", "-", text)


def synopses(text):
    """The options of each command in the section SYNOPSIS: {"now": {"--json", ...}}."""
    section = re.search(r"^\.Sh SYNOPSIS\n(.*?)^\.Sh ", text, re.M | re.S).group(1)
    result = {}
    for part in re.split(r"^\.Nm\n", section, flags=re.M)[1:]:
        command = re.match(r"\.Cm (.*)\n", part).group(1)
        result.setdefault(command, set()).update(OPTION.findall(part))
    return result


class Man(unittest.TestCase):
    def test_synopses(self):
        written = synopses(written_in("ckpt.1"))
        commands = []
        for name in said_by("ckpt")[1]:
            below = said_by("ckpt", name)[1]
            commands += [f"{name} {other}" for other in below] or [name]
        self.assertEqual(sorted(written), sorted(commands))
        for command in commands:
            with self.subTest(command):
                self.assertEqual(sorted(written[command]), sorted(said_by("ckpt", *command.split())[0]))

    def test_restart(self):
        text = written_in("ckpt-restart.1")
        self.assertEqual(sorted(set(OPTION.findall(" ".join(re.findall(r"^\.(?:B|BI|BR|TP|Op|It) .*", text, re.M)))) - EVERYWHERE),
                         sorted(said_by("ckpt-restart")[0]))


if __name__ == "__main__":
    unittest.main()
