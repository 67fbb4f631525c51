#!/usr/bin/env python3
"""Runs the cases of some files of unit tests, several at a time: of tests that wait more than they compute.
  at_once.py N FILE[:CLASS...]...      each case is a process of its own: `FILE CLASS.test_case`
What a case says comes out when it has ended. Exit codes: 0 all passed or were skipped; 1 some failed.
"""
import concurrent.futures
import importlib.util
import os
import subprocess
import sys
import time
import unittest

sys.dont_write_bytecode = True  # the source directory stays as it is


def cases_of(path, classes):
    """As `CLASS.test_case`, in the file's order of classes."""
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    loader = unittest.TestLoader()
    return [f"{name}.{case}" for name, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == spec.name and (not classes or name in classes)
            for case in loader.getTestCaseNames(value)]


def run(path, case):
    began = time.monotonic()
    done = subprocess.run([sys.executable, path, "-v", case], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout.decode(errors="replace"), time.monotonic() - began


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    tasks = []
    for argument in sys.argv[2:]:
        path, *classes = argument.split(":")
        tasks += [(path, case) for case in cases_of(path, classes)]
    if not tasks:
        sys.exit("no cases")
    failed = []
    with concurrent.futures.ThreadPoolExecutor(int(sys.argv[1])) as workers:
        running = {workers.submit(run, *task): task for task in tasks}
        for done in concurrent.futures.as_completed(running):
            path, case = running[done]
            code, said, seconds = done.result()
            print(f"== {os.path.basename(path)} {case}: {'passed' if code == 0 else 'FAILED'}, {seconds:.1f} s\n{said}", flush=True)
            if code != 0:
                failed.append(case)
    print(f"{len(tasks) - len(failed)} passed, {len(failed)} failed: {' '.join(failed)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
