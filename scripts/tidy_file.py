#!/usr/bin/env python3
"""clang-tidy at one compilation, unless the same was found good before. Usage: tidy_file.py BUILD FILE; called by scripts/tidy.sh, which
sets CKPT_TIDIED (a folder: an empty file for each text that is good) and CKPT_TIDY_KIND (of the checks and of clang-tidy)."""
import hashlib
import json
import os
import shlex
import subprocess
import sys


def text_of(build, file):
    """What clang-tidy reads of the file: the flags, and the text behind the preprocessor, with comments (NOLINT is one) and macros."""
    with open(os.path.join(build, "compile_commands.json")) as commands:
        command = next(c for c in json.load(commands)
                       if os.path.normpath(os.path.join(c["directory"], c["file"])) == os.path.abspath(file))
    words = shlex.split(command["command"])
    output = words.index("-o")
    del words[output:output + 2]
    words.remove("-c")
    text = subprocess.run([*words, "-E", "-CC", "-dD"], cwd=command["directory"], stdout=subprocess.PIPE, check=True).stdout
    # The same in any clone.
    top = os.path.dirname(os.path.abspath(build)).encode() + b"/"
    return shlex.join(words).encode().replace(top, b"") + b"\0" + text.replace(top, b"")


def main():
    build, file = sys.argv[1:]
    seen = hashlib.sha256(os.environ["CKPT_TIDY_KIND"].encode() + text_of(build, file)).hexdigest()
    good = os.path.join(os.environ["CKPT_TIDIED"], seen)
    if os.path.exists(good):
        os.utime(good)
        return 0
    # Files that are compiled together are included by their names.
    together = ["--checks=-bugprone-suspicious-include"] if "/Unity/" in file else []
    # The count of warnings that were left out goes to standard error.
    found = subprocess.run(["clang-tidy", "-p", build, "--quiet", *together, file], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if found.returncode != 0:
        sys.stdout.write(found.stdout)
        return 1
    open(good, "w").close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
