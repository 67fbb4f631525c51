#!/usr/bin/env python3
"""Each test, file and folder that a document or a comment names exists, and docs/defects.md names nothing else as what shows a defect mended.

Usage: citations_test.py BUILD CTEST      BUILD: configured; its tests need not be built
"""
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CTEST = sys.argv.pop()
BUILD = os.path.abspath(sys.argv.pop())


def files(*patterns):
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=SOURCE, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        with open(os.path.join(SOURCE, name), encoding="utf-8") as f:
            yield name, f.read()


def cases_in(text):
    """Of a C++ test: "Suite.Case" of each."""
    return {f"{suite}.{case}" for suite, case in re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", text, re.M)}


def shown_by(text):
    """Of docs/defects.md: the words in the last column of its tables."""
    rows = [re.split(r"(?<!\\)\|", line.strip())[1:-1] for line in text.splitlines() if line.startswith("| ")]
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row[-1])]


class Paths:
    """Files and folders that are committed. In a document by their path from the root, or from the document's folder; NAME stands for any
    name. In a comment the folders at the beginning may be left out."""

    def __init__(self, listed):
        self.all, self.ends = set(listed), set()
        for path in listed:
            parts = path.split("/")
            self.all |= {"/".join(parts[:i]) for i in range(1, len(parts))}
            self.ends |= {"/".join(parts[i:]) for i in range(len(parts))}
        self.folders = {part for path in listed for part in path.split("/")[:-1]}
        self.tops = {path.split("/")[0] for path in listed if "/" in path}

    def has(self, path, folder=""):
        braces = re.search(r"\{([^}]*)\}", path)
        if braces:
            return all(self.has(path.replace(braces[0], part), folder) for part in braces[1].split(","))
        pattern = path.rstrip("/").replace("NAME", "*")
        if "*" in pattern:
            return any(fnmatch.fnmatch(name, pattern) for name in self.all)
        return pattern in self.all or os.path.normpath(os.path.join(folder, pattern)) in self.all

    def missing_in_document(self, name, text):
        words = [re.match(r"[\w./*{},+-]*", word)[0].rstrip(".,") for word in re.findall(r"`([^`]+)`", text)]
        words = [word for word in words if "/" in word and word.split("/")[0] in self.tops]
        links = [link for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text) if "://" not in link]
        folder = os.path.dirname(name)
        return [(name, word) for word in words if not self.has(word, folder)] + \
               [(name, link) for link in links if os.path.normpath(os.path.join(folder, link)) not in self.all]

    def missing_in_comments(self, name, text):
        """Only paths that begin with a folder of this project: headers of libraries are named too."""
        comments = [line[line.index("//"):] for line in text.splitlines() if "//" in line and "#include" not in line]
        words = [word for line in comments for word in re.findall(r"(?<![\w./$~{}-])[a-z_]+(?:/\w+)+\.(?:h|cc|py|md)\b", line)]
        return [(name, word) for word in words if word.split("/")[0] in self.folders and word not in self.ends]


class Tests:
    def __init__(self):
        self.cases, self.in_python, self.exercises, self.paths = set(), set(), set(), set()
        for name, text in files("tests/*.cc", "tests/*.c", "tests/*.py", "bench/*.py"):
            self.paths.add(name)
            if name.endswith((".cc", ".c")):
                self.cases |= cases_in(text)
                self.exercises |= set(re.findall(r'^\s*\{"(\w+)", ', text, re.M))
            if name.endswith(".py"):
                self.in_python |= set(re.findall(r"^\s*def (test_\w+)\(|^class (\w+)\(", text, re.M))
        self.in_python = {name for pair in self.in_python for name in pair if name}
        self.suites = {case.split(".")[0] for case in self.cases}
        # In a folder of its own: each ctest writes a log, and that of BUILD may be the one that runs this test.
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "CTestTestfile.cmake"), "w", encoding="utf-8") as f:
                f.write(f'subdirs("{BUILD}")\n')
            listed = subprocess.run([CTEST, "--show-only=json-v1"], cwd=folder, capture_output=True, text=True, check=True).stdout
        self.registered = {test["name"] for test in json.loads(listed)["tests"]}
        # In parentheses behind a test: the program that it runs.
        for _, text in files("tests/*CMakeLists.txt"):
            self.registered |= set(re.findall(r"(?:add_executable|victim)\((\w+)", text))

    def has(self, word):
        if word in self.paths | self.cases | self.suites | self.in_python | self.registered | self.exercises:
            return True
        if word.startswith(("tests/", "bench/")):
            return os.path.exists(os.path.join(SOURCE, word))
        prefix = word.removesuffix("*")
        return prefix != word and any(name.startswith(prefix) for name in self.cases | self.registered)


class Citations(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tests = Tests()

    def test_what_shows_a_defect_mended(self):
        (_, text), = files("docs/defects.md")
        words = shown_by(text)
        self.assertGreater(len(words), 50)
        self.assertEqual([word for word in words if not self.tests.has(word)], [], "no such test")

    def test_cases_that_are_named_elsewhere(self):
        """Only what looks like a case of a suite that there is, or of a suite called ...Test: `Type.Member` is none."""
        missing, seen = [], 0
        for name, text in files("*.md", "*.cc", "*.h", "*.c", "*.S"):
            for word in re.findall(r"\b[A-Z]\w+\.[A-Z]\w+\b", text):
                suite = word.split(".")[0]
                if suite.endswith("Test") or (name.endswith(".md") and suite in self.tests.suites):
                    seen += 1
                    if word not in self.tests.cases:
                        missing.append((name, word))
            if name.endswith(".md"):
                missing += [(name, word) for word in re.findall(r"`(test_\w+)`", text) if word not in self.tests.in_python]
        self.assertGreater(seen, 10)
        self.assertEqual(missing, [], "no such test")

    def test_paths(self):
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=SOURCE, capture_output=True, text=True, check=True).stdout
        paths = Paths([path for path in listed.split("\0") if os.path.exists(os.path.join(SOURCE, path)) and path])
        missing = []
        for name, text in files("*.md", ":!CHANGELOG.md"):
            missing += paths.missing_in_document(name, text)
        for name, text in files("*.cc", "*.h", "*.c", "*.S"):
            missing += paths.missing_in_comments(name, text)
        self.assertEqual(missing, [], "no such file or folder")

    def test_what_counts_as_a_path(self):
        paths = Paths(["a/b/c.h", "a/b/c.cc", "docs/d.md", "docs/low/e.md"])
        text = "`a/b/c.h` `a/b/c.*` `a/b/c.{h,cc}` `a/b/` `a/b/NAME.h` `other/f.h` `a/b/c.cc --all` [d](d.md#there) [out](https://x.y/z)"
        self.assertEqual(paths.missing_in_document("docs/d.md", text), [])
        for wrong in ("`a/c.h`", "`a/b/c.{h,py}`", "`a/c.*`", "`docs/f.md`", "[e](e.md)"):
            self.assertEqual(len(paths.missing_in_document("docs/d.md", wrong)), 1, wrong)
        self.assertEqual(paths.missing_in_comments("x.cc", "// see b/c.h, a/b/c.h and linux/fs.h\n#include \"b/gone.h\"\n"), [])
        self.assertEqual(paths.missing_in_comments("x.cc", "f();  // b/gone.h"), [("x.cc", "b/gone.h")])

    def test_what_counts(self):
        self.assertEqual(cases_in("TEST_F(Some, Case) {\nTEST(Other,\n     One) {\n// TEST(Not, This)"), {"Some.Case", "Other.One"})
        text = "| 1 | `a` | b | `cli.x`: `test_y`; `Some.Case` |\n| --- | --- |\n`outside`"
        self.assertEqual(shown_by(text), ["cli.x", "test_y", "Some.Case"])
        self.assertFalse(self.tests.has("UserfaultfdTest.NoSuchCase"))
        self.assertFalse(self.tests.has("restart.no_such_test"))


if __name__ == "__main__":
    unittest.main()
