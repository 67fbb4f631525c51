#!/usr/bin/env python3
"""What a preloaded process touches before its first checkpoint lies close together, for each fork(2) copies it (base/memory/large_table.h):
no large table is among the small variables of the library, and a program that has started, and forked, has touched no table.

Usage: small_variables.py LIBRARY
"""
import os
import re
import subprocess
import sys
import unittest

LIBRARY = os.path.realpath(sys.argv.pop())
LARGE = 3072  # bytes

# Forks, and tells which pages of a part of the library it has: library, offset, size.
PROGRAM = """
import os, struct, sys
(os.fork() == 0 and os._exit(0)) or os.wait()
base = min(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if line.rstrip().endswith(sys.argv[1]))
first, count = (base + int(sys.argv[2])) // 4096, int(sys.argv[3]) // 4096
with open("/proc/self/pagemap", "rb") as f:
    f.seek(first * 8)
    entries = struct.unpack(f"{count}Q", f.read(count * 8))
print(*[i for i, e in enumerate(entries) if e >> 62])
"""


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def sections():
    """Name to (address, size, kind)."""
    rows = re.findall(r"^ +\[ *\d+\] (\S+) +(\S+) +([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+)", output_of("readelf", "-SW", LIBRARY), re.M)
    return {name: (int(address, 16), int(size, 16), kind) for name, kind, address, size in rows}


class SmallVariables(unittest.TestCase):
    def test_small_variables_are_in_the_file(self):
        found = sections()
        self.assertEqual(found["ckpt_fork_data"][2], "PROGBITS")
        self.assertEqual(found[".lbss"][2], "NOBITS")
        self.assertEqual(found.get(".bss", (0, 0, ""))[1], 0, "variables are behind the file: libckpt_rt/small_variables.ld")

    def test_large_tables_are_marked(self):
        start, size, _ = sections()["ckpt_fork_data"]
        for line in output_of("nm", "-S", "-C", LIBRARY).splitlines():
            words = line.split(None, 3)
            if len(words) == 4 and start <= int(words[0], 16) < start + size:
                self.assertLess(int(words[1], 16), LARGE, f"{words[3]}: mark it with CKPT_LARGE_TABLE (base/memory/large_table.h)")

    def test_a_program_touches_no_table(self):
        start, size, _ = sections()[".lbss"]
        env = {k: v for k, v in os.environ.items() if not k.startswith("CKPT")} | {"LD_PRELOAD": LIBRARY}
        out = subprocess.run([sys.executable, "-c", PROGRAM, LIBRARY, str(start), str(size)], env=env, capture_output=True, text=True, check=True).stdout
        self.assertEqual(out.split(), [], "pages of tables that are there, from the first table's")



if __name__ == "__main__":
    unittest.main()
