#!/usr/bin/env python3
"""Every named point (base/checks/named_points.h) is one at which some test kills or stops a process: a new point without one fails here."""
import ast
import os
import re
import sys
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ROOMS = ("base", "cli", "cluster", "copier", "heap", "image", "job", "libckpt_rt", "plugins", "restart", "timewarp")


def files(folders, ends):
    for folder in folders:
        for path, _, names in os.walk(os.path.join(SOURCE, folder)):
            for name in sorted(names):
                if name.endswith(ends):
                    with open(os.path.join(path, name), encoding="utf-8") as f:
                        yield os.path.join(path, name), f.read()


def points_in(text):
    """Of the source: those that at() is called with, of which there may be two in one call."""
    return {p for call in re.findall(r"points::at\(([^;]*)\);", text) for p in re.findall(r'"([^"]*)"', call)}


def used_in(text):
    """Of a test that wants points: every string that begins with a point's name, but for descriptions."""
    if "CKPT_TEST_POINT" not in text:
        return set()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return {name for s in strings for name in re.findall(r"(?:^|CKPT_TEST_POINT=)([a-z]+(?:\.[a-z]+)+)(?=[=@]|$)", s)}


class Points(unittest.TestCase):
    def test_each_is_used(self):
        points = set().union(*(points_in(text) for _, text in files(ROOMS, (".cc", ".h"))))
        self.assertGreater(len(points), 100)
        used = set().union(*(used_in(text) for _, text in files(["tests"], ".py")))
        self.assertEqual(sorted(points - used), [], "no test kills or stops a process there")

    def test_what_counts(self):
        self.assertEqual(points_in('points::at(kept ? "a.kept" : "a.ended");\nat("b.c");'), {"a.kept", "a.ended"})
        text = '"""at a.described"""\nenv = {"CKPT_TEST_POINT": point}\nfor point in ("a.listed",): run(f"CKPT_TEST_POINT=a.run@{name}", "a.stopped=stop", "no a.word")\n'
        self.assertEqual(used_in(text), {"a.listed", "a.run", "a.stopped"})
        self.assertEqual(used_in('print("a.listed")'), set())


if __name__ == "__main__":
    sys.exit(unittest.main())
