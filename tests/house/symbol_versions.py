#!/usr/bin/env python3
"""What is installed runs with glibc 2.31 and with any libstdc++: no file asks for a newer version of a symbol (readelf -V).

Usage: symbol_versions.py FILE...
"""
import re
import subprocess
import sys

NEWEST = {"GLIBC": (2, 31)}
# Linked in, not asked for: the system's may be older than the compiler's.
NEVER = {"GLIBCXX", "CXXABI"}


def needed(path):
    """(symbol, family, version) of what the file wants of others."""
    text = subprocess.run(["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
    for name, family, version in re.findall(r" UND (\S+?)@([A-Z]+)_([0-9.]+)", text):
        yield name, family, tuple(map(int, version.split(".")))


def main():
    found, looked_at = [], 0
    for path in sys.argv[1:]:
        for name, family, version in needed(path):
            looked_at += 1
            if family in NEVER or version > NEWEST.get(family, version):
                found.append(f"{path}: {name} of {family}_{'.'.join(map(str, version))}")
    for line in found:
        print(line)
    if found:
        print("older systems do not have these: give them the old name in base/glibc/*.S, or a body in base/glibc/missing.cc")
    # Every dynamic program asks libc for something: with nothing to look at nothing was shown.
    return 1 if found or looked_at < len(sys.argv) - 1 or looked_at == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
