#!/usr/bin/env python3
"""What a chain costs at restart: a program of 256 MiB, a full image and 20 increments in which 5 % of it were
written each time, in segments of 64 KiB anywhere; against one full image of the same instant.

    chain_speed.py BUILD [ROUNDS]"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

PROGRAM = """
import mmap, random, sys
rng = random.Random(1)
m = mmap.mmap(-1, 256 << 20)
for i in range(0, len(m), 65536): m[i:i + 65536] = rng.randbytes(65536)
print('up', flush=True)
for line in sys.stdin:
    for i in range(len(m) // 65536 // 20):
        at = rng.randrange(len(m) // 65536) * 65536
        m[at:at + 65536] = rng.randbytes(65536)
    print('done', flush=True)
"""


def main():
    binaries, rounds = os.path.join(sys.argv[1], "bin"), int(sys.argv[2]) if len(sys.argv) > 2 else 5
    ckpt, restart = os.path.join(binaries, "ckpt"), os.path.join(binaries, "ckpt-restart")
    directory = tempfile.mkdtemp(prefix="ckpt-speed-")
    chain, full = os.path.join(directory, "chain"), os.path.join(directory, "full")
    try:
        child = subprocess.Popen([ckpt, "run", "--dir", chain, "--keep", "0", "--", "/usr/bin/python3", "-c", PROGRAM],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
        for n in range(21):
            subprocess.run([ckpt, "now", str(child.pid)], check=True, stdout=subprocess.DEVNULL)
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
        child.kill()
        child.communicate()
        newest = sorted(f for f in os.listdir(chain) if f.endswith(".ckpt"))[-1]
        os.mkdir(full, 0o700)
        shutil.copy(os.path.join(chain, newest), full)
        subprocess.run([os.path.join(binaries, "make_chain"), chain], check=True, stdout=subprocess.DEVNULL)
        shown = json.loads(subprocess.run([ckpt, "show", "--json", chain], check=True, capture_output=True).stdout)
        assert len(shown["chain"]) == 21
        print("chain: %d images, %.0f MiB for %.0f MiB of memory" %
              (len(shown["chain"]), sum(c["bytes"] for c in shown["chain"]) / 2**20, shown["bytes_memory"] / 2**20))

        def once(images):
            done = subprocess.Popen([restart, "--json", images], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE)
            costs = json.loads(done.stderr.readline())
            done.stdin.close()
            done.wait()
            done.stderr.close()
            return costs["restart_ns"] / 1e6, costs["check_ns"] / 1e6

        once(chain), once(full)  # into the page cache
        results = {"chain": [], "full": []}
        for _ in range(rounds):
            results["chain"].append(once(chain))
            results["full"].append(once(full))
        for name, values in results.items():
            print("%-5s restart ms (check ms): %s" % (name, ", ".join("%.0f (%.0f)" % v for v in values)))
        print("median ratio: %.2f" % (statistics.median(v[0] for v in results["chain"]) /
                                      statistics.median(v[0] for v in results["full"])))
    finally:
        shutil.rmtree(directory)


main()
