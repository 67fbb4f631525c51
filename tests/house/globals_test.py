#!/usr/bin/env python3
"""Each variable that all of a program can reach, or that outlives its function, is `constinit`: so grep finds it, and no code runs to make it.

Usage: globals_test.py BINARY...      what is installed: the libraries and the commands
"""
import os
import re
import subprocess
import sys
import unittest

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BINARIES = sys.argv[1:]
del sys.argv[1:]

NOT_CONSTINIT = {
    "reached": "a std::map, whose constructor is not constexpr (image/read/sources/keeper_images.cc)",
    "error": "a std::string, which clang 14 does not make without code (timewarp/ccl/ccl.cc)",
    "peeked": "another (image/read/sources/image_spool.cc)",
    "self": "another (cli/keeper/exchange_main.cc)",
    "cache_": "of a C header (include/ckpt_rt.h)",
}
# Nothing changes these: constants of which the address is taken, and what the compiler makes.
CONSTANT = re.compile(r"^(k[A-Z]\w*|__\w+|guard variable for .*|(vtable|typeinfo|typeinfo name|VTT|construction vtable) for .*)$")


def variables_of(binary):
    """(scope, name) of each variable in writable memory that is this project's."""
    symbols = subprocess.run(["nm", "-C", "--defined-only", binary], capture_output=True, text=True, check=True).stdout
    for line in symbols.splitlines():
        found = re.match(r"\S+ [bBdDuV] (.*)$", line)
        if not found or not re.match(r"(guard variable for )?ckpt(::|_)", found[1]):
            continue
        symbol = re.sub(r"\[abi:\w+\]|\.\d+$", "", found[1])
        if CONSTANT.match(symbol):
            continue
        scope, _, name = symbol.rpartition("::")
        yield scope, name


def named(declaration):
    """The variables of `constinit TYPE a{0}, b[] = {1, 2};`, more than there are rather than fewer: words that stand where a name may."""
    return set(re.findall(r"(?<!::)\b([A-Za-z_]\w*)(?=(?:\[[^\]]*\])*\s*(?:[=;{,(]|$))", declaration))


def constinit_names(text):
    """And those that are constant once a function has been called: `static const int pid = getpid();`."""
    names = set(re.findall(r"\bstatic const\b[^;=(]*?(\w+) = ", text))
    for found in re.finditer(r"\bconstinit\b([^;]*;)", text):
        names |= named(found[1])
    return names


class Globals(unittest.TestCase):
    def test_all_are_constinit(self):
        known = set()
        for folder in ("base", "cli", "cluster", "copier", "heap", "image", "job", "libckpt_rt", "plugins", "restart", "timewarp"):
            for path, _, names in os.walk(os.path.join(SOURCE, folder)):
                for name in names:
                    if name.endswith((".cc", ".h")):
                        with open(os.path.join(path, name), encoding="utf-8") as f:
                            known |= constinit_names(f.read())
        self.assertGreater(len(known), 100)
        seen, missing = 0, set()
        for binary in BINARIES:
            for scope, name in variables_of(binary):
                seen += 1
                local = scope.rpartition("::")[2].split("(")[0]
                if name not in known and not CONSTANT.match(name) and name not in NOT_CONSTINIT and local not in NOT_CONSTINIT:
                    missing.add(f"{scope}::{name}")
        self.assertGreater(seen, 100)
        self.assertEqual(sorted(missing), [], "is not constinit, or is a constant that is not called kName")

    def test_what_counts(self):
        self.assertEqual(constinit_names("constinit int a = 1, b[2] = {3, 4};\nint c = 0;") & {"a", "b", "c"}, {"a", "b"})
        self.assertIn("d", constinit_names("LARGE constinit Place\n    d[kMost];"))
        self.assertEqual(constinit_names("static const int pid = getpid();\nstatic int other = 0;"), {"pid"})
        self.assertIn("f", constinit_names("static constinit LiburingFunction f(\"name\");"))


if __name__ == "__main__":
    unittest.main()
