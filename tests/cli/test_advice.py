"""What a program told the kernel about its memory holds after a restart, however much memory it has."""

import time

from support import *

RESTART = os.path.join(os.path.dirname(CKPT), "ckpt-restart")

PROGRAM = """
import mmap, os, sys, time
megabytes, fork_advice, path = int(sys.argv[1]), sys.argv[2] == 'fork', sys.argv[3]
anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
kept = [mmap.mmap(-1, megabytes << 20, flags=anonymous)]
for at in range(0, megabytes << 20, 4096): kept[0][at] = 7
gap = lambda: kept.append(mmap.mmap(-1, 4096, flags=anonymous, prot=mmap.PROT_READ))
def piece(advice=None, flags=anonymous, fd=-1, prot=mmap.PROT_READ | mmap.PROT_WRITE):
    gap()
    kept.append(mmap.mmap(fd, 1 << 20, flags=flags, prot=prot))
    if advice is not None: kept[-1].madvise(advice)
piece(mmap.MADV_HUGEPAGE)
piece(mmap.MADV_NOHUGEPAGE)
piece(mmap.MADV_SEQUENTIAL)
piece(mmap.MADV_RANDOM)
piece(flags=anonymous | 0x4000)  # MAP_NORESERVE
if fork_advice: piece(mmap.MADV_DONTFORK)
with open(path + '.data', 'wb') as data: data.truncate(1 << 20)
for mode in (os.O_RDONLY, os.O_RDWR):
    piece(flags=mmap.MAP_SHARED, fd=os.open(path + '.data', mode), prot=mmap.PROT_READ)
def flags():
    # Of each megabyte alone, in address order: those that a program sets.
    found, name, size = [], '', 0
    for line in open('/proc/self/smaps'):
        word = line.split()
        if '-' in word[0]: name = ' '.join(word[1:2] + word[5:])
        elif word[0] == 'Size:': size = int(word[1])
        elif word[0] == 'VmFlags:' and size == 1024:
            found.append(name + ' ' + ' '.join(f for f in word[1:] if f in ('hg', 'nh', 'sr', 'rr', 'nr', 'dc', 'mw')))
    return '\\n'.join(found)
def say(name):
    with open(path + '.new', 'w') as out: out.write(flags() + '\\n')
    os.rename(path + '.new', path + name)
say('.before')
while not os.path.exists(path + '.again'): time.sleep(0.01)
say('.after')
"""


class Advice(CkptTest):
    def await_file(self, path, child):
        deadline = time.monotonic() + 60
        while not os.path.exists(path):
            self.assertIsNone(child.poll(), "the program ended")
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        with open(path, encoding="ascii") as said:
            return said.read()

    def holds(self, megabytes, advice):
        said = self.path("said")
        child = subprocess.Popen([CKPT, "run", "--dir", self.path("images"), "--", "/usr/bin/python3", "-c", PROGRAM,
                                  str(megabytes), advice, said], stdin=subprocess.DEVNULL, env=clean_environment())
        before = self.await_file(said + ".before", child)
        self.assertEqual(self.ckpt("now", child.pid).returncode, OK)
        child.kill()
        child.wait()
        with open(said + ".again", "w", encoding="ascii"):
            pass
        restart = subprocess.run([RESTART, self.path("images")], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                 timeout=60, env=clean_environment())
        self.assertEqual(restart.returncode, 0, restart.stderr)
        with open(said + ".after", encoding="ascii") as after:
            self.assertEqual(after.read(), before)
        for flag in ("hg", "nh", "sr", "rr", "nr", "mw") + (("dc",) if advice == "fork" else ()):
            self.assertIn(flag, before)

    def test_little_memory(self):
        self.holds(1, "none")

    def test_much_memory(self):
        self.holds(80, "none")

    def test_what_changes_the_meaning_of_memory(self):
        self.holds(80, "fork")


if __name__ == "__main__":
    unittest.main()
