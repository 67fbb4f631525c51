#!/usr/bin/env python3
"""Four threads compute with numpy and print digests; the output depends on --rounds alone.

An ordinary program: it knows nothing of checkpoints.
"""
import argparse
import hashlib
import queue
import sys
import threading

import numpy


def work(number, rounds, results):
    generator = numpy.random.Generator(numpy.random.PCG64(number))
    whole = generator.integers(-1000, 1000, size=(160, 160), dtype=numpy.int64)
    real = generator.standard_normal((120, 120))
    history = {}
    for n in range(rounds):
        # Integers wrap, so that every bit of every round matters to the end.
        whole = whole @ whole.T % 1000003 + numpy.roll(whole, n + number, axis=n % 2)
        # Elementwise and sorting only: the same on every processor.
        real = numpy.sort(numpy.sin(real) + real[::-1], axis=n % 2)
        history[n % 50] = [int(whole[i, i]) for i in range(20)]
        if n % 25 == 24:
            digest = hashlib.sha256(whole.tobytes() + real.round(6).tobytes())
            digest.update(repr(sorted(history.items())).encode())
            results.put((n, number, digest.hexdigest()[:32]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    rounds = parser.parse_args().rounds
    results = queue.Queue()
    threads = [threading.Thread(target=work, args=(i, rounds, results)) for i in range(4)]
    for thread in threads:
        thread.start()
    # Printed in a fixed order, as soon as it is known.
    waiting = {}
    for n in range(24, rounds, 25):
        for number in range(4):
            while (n, number) not in waiting:
                a, b, digest = results.get()
                waiting[(a, b)] = digest
            print(f"round {n} thread {number} {waiting.pop((n, number))}", flush=number == 3)
    for thread in threads:
        thread.join()
    print(f"{rounds} rounds by 4 threads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
