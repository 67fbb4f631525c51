#!/usr/bin/env python3
"""What is installed runs with glibc 2.31 and with any libstdc++: no file asks for a newer version of a symbol (readelf -V). The
Debian package names the packages of all libraries that its files ask for. And what every process loads asks for libc alone.

Usage: symbol_versions.py --package CPackConfig.cmake FILE...
"""
import argparse
import os
import re
import subprocess
import sys

NEWEST = {"GLIBC": (2, 31)}
# Linked in, not asked for: the system's may be older than the compiler's.
NEVER = {"GLIBCXX", "CXXABI"}

# Of each library that files ask for. What is not here is linked in, or a new dependency: it belongs here and into CMakeLists.txt.
PACKAGES = {"libc.so.6": "libc6", "libm.so.6": "libc6", "libpthread.so.0": "libc6", "libdl.so.2": "libc6", "ld-linux-x86-64.so.2": "libc6",
            "libdw.so.1": "libdw1", "libelf.so.1": "libelf1", "libisal.so.2": "libisal2", "libxxhash.so.0": "libxxhash0",
            "libunwind.so.8": "libunwind8", "libunwind-ptrace.so.0": "libunwind8", "libunwind-x86_64.so.8": "libunwind8"}

# Each library more is five mappings, which every fork of a preloaded program copies.
ALONE = {"libckpt_rt.so": {"libc.so.6", "ld-linux-x86-64.so.2"}}


def not_in_every_libc():
    """The functions that were in libpthread.so.0 or libdl.so.2 before glibc 2.34."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "base", "glibc")
    names = set()
    for stub in ("pthread.S", "dl.S"):
        with open(os.path.join(folder, stub), encoding="utf-8") as f:
            names |= set(re.findall(r"^ +old (\S+)", f.read(), re.M))
    return names


def more_than_libc(path):
    """What a file that may ask for libc alone asks for besides."""
    alone = ALONE.get(os.path.basename(path))
    if alone is None:
        return
    yield from (f"{path}: the library {name}" for name in sorted(set(libraries(path)) - alone))
    text = subprocess.run(["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
    elsewhere = not_in_every_libc()
    for bind, name in re.findall(r" (GLOBAL|WEAK) +DEFAULT +UND ([^\s@]+)", text):
        if bind == "GLOBAL" and name in elsewhere:
            yield f"{path}: {name}, which libc.so.6 of glibc 2.31 does not have (core/process/dynamic_linker.h)"


def libraries(path):
    text = subprocess.run(["readelf", "-W", "-d", path], capture_output=True, text=True, check=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", text)


def named(package):
    """The packages that the Debian package depends on."""
    with open(package, encoding="utf-8") as f:
        depends = re.search(r'CPACK_DEBIAN_PACKAGE_DEPENDS "(.+)"', f.read())[1]
    return {one.split()[0] for one in depends.split(",")}


def needed(path):
    """(symbol, family, version) of what the file wants of others."""
    text = subprocess.run(["readelf", "-W", "--dyn-syms", path], capture_output=True, text=True, check=True).stdout
    for name, family, version in re.findall(r" UND (\S+?)@([A-Z]+)_([0-9.]+)", text):
        yield name, family, tuple(map(int, version.split(".")))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", required=True)
    parser.add_argument("files", nargs="+")
    options = parser.parse_args()
    found, looked_at, depends = [], 0, named(options.package)
    missing = [f"{path}: {library}, of no package that the Debian package depends on"
               for path in options.files for library in libraries(path) if PACKAGES.get(library) not in depends]
    more = [line for path in options.files for line in more_than_libc(path)]
    for path in options.files:
        for name, family, version in needed(path):
            looked_at += 1
            if family in NEVER or version > NEWEST.get(family, version):
                found.append(f"{path}: {name} of {family}_{'.'.join(map(str, version))}")
    for line in found:
        print(line)
    if found:
        print("older systems do not have these: give them the old name in base/glibc/*.S, or a body in base/glibc/missing.cc")
    for line in missing + more:
        print(line)
    # Every dynamic program asks libc for something: with nothing to look at nothing was shown.
    return 1 if found or missing or more or looked_at < len(options.files) else 0


if __name__ == "__main__":
    sys.exit(main())
