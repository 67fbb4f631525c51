#!/usr/bin/env python3
"""Clang reads sources, with the warnings of the build, and makes nothing of them: a tenth of what compiling takes.

Usage: scripts/clang_look.py BUILD FOLDER...      BUILD was configured for clang, best with CKPT_UNITY=ON; FOLDERs of its targets
"""
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys


def commands(build, folders):
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as f:
        for entry in json.load(f):
            words = shlex.split(entry["command"])
            if "-o" not in words or not entry["file"].endswith((".cc", ".cxx", ".c")):
                continue
            at = words.index("-o")
            output = words[at + 1]
            if not output.startswith(tuple(folder + "/" for folder in folders)):
                continue
            yield entry["directory"], output, words[:at] + words[at + 2:] + ["-fsyntax-only"]


def look(command):
    directory, output, words = command
    done = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False)
    return output, done.returncode, done.stdout + done.stderr


def main():
    build, *folders = sys.argv[1:]
    failed = seen = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for output, code, said in pool.map(look, commands(build, folders)):
            seen += 1
            failed += code != 0
            if code != 0:
                print(f"{output}:\n{said}", flush=True)
    print(f"{seen} looked at, {failed} with errors")
    return 1 if failed or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
