#!/usr/bin/env python3
"""What a program works in or has open although its name had been removed before the checkpoint: a working directory, directories, symbolic
links. One that several processes have is one after a restart, and `..` leads where it led."""

import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from stepped_test import SteppedTest, needs_root  # noqa: E402

NOBODY = 65534
AS_USER = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")


class RemovedNames(SteppedTest):
    program_text = """
def is_one(*files):
    return len({(s.st_dev, s.st_ino) for s in map(os.stat, files)}) == 1
def of_removed(path):
    s = os.stat(path)
    return stat.filemode(s.st_mode), s.st_uid, s.st_gid, s.st_nlink, int(s.st_mtime), os.listdir(path)
"""
    how = ()

    def begin(self):
        os.mkdir(self.path("above"))
        if self.how:
            for name in (".", "above"):
                os.chown(self.path(name), NOBODY, NOBODY)
        self.start(*self.how)

    def back(self):
        """To a checkpoint of now, killed and restarted, as its user. What both say."""
        notes = self.come_back(how=self.how)
        return notes + self.notes

    def test_working_directory(self):
        self.begin()
        self.do("os.mkdir('above/gone', 0o710); os.chdir('above/gone'); os.utime('.', (1000, 2000)); os.rmdir('../gone'); os.utime('.', (1000, 2000))",
                "seen = lambda: (attempt(os.getcwd), os.readlink('/proc/self/cwd'), of_removed('.'), is_one('..', %r), attempt(os.open, 'x', os.O_CREAT))"
                % self.path("above"))
        before = self.ask("seen()")
        self.assertIn("ENOENT", before)
        self.assertIn("True", before)
        for _ in range(3):
            self.assertEqual(self.back(), [])
            self.assertEqual(self.ask("seen()"), before)
            self.assertEqual(os.listdir(self.path("above")), [])

    def test_working_directories_of_other_threads(self):
        """Two have removed ones of their own (unshare(2)), and are at work: they stand later than the first, whose directory is the process's."""
        self.begin()
        self.do("at = os.getcwd()", "os.mkdir('stays', 0o711)", "os.chdir('stays')", "ready = threading.Barrier(3)",
                "def work(k):\\n    libc.unshare(0x200)\\n    os.umask(0o70 + k)\\n    os.chdir(at)\\n    os.mkdir(f'goes{k}')\\n    os.chdir(f'goes{k}')\\n"
                "    os.rmdir(f'../goes{k}')\\n    ready.wait()\\n    while True: pass",
                "[threading.Thread(target=work, args=(k,), daemon=True).start() for k in range(2)]", "ready.wait()")
        for _ in range(8):
            self.back()
            self.assertEqual(self.ask("os.path.relpath(os.getcwd(), at), oct(os.stat('.').st_mode)"), "('stays', '0o40711')")

    def test_its_name_is_taken(self):
        self.begin()
        self.do("os.mkdir('above/gone'); os.chdir('above/gone'); os.rmdir('../gone'); open('../gone', 'w').close()")
        for _ in range(2):
            self.assertEqual(self.back(), [])
            self.assertEqual(self.ask("os.stat('.').st_nlink, os.listdir('..')"), "(0, ['gone'])")

    def test_directories_above_it(self):
        self.begin()
        self.do("os.makedirs('above/a/b'); os.chdir('above/a/b'); os.rmdir('../b'); os.rmdir('../../a')")
        for _ in range(2):
            self.assertEqual(self.back(), [])
            self.assertEqual(self.ask("os.stat('.').st_nlink, os.listdir('.'), is_one('../..', %r)" % self.path("above")), "(0, [], True)")
            self.assertEqual(os.listdir(self.path("above")), [])

    def test_shut(self):
        self.begin()
        self.do("os.mkdir('above/gone'); os.chdir('above/gone'); os.rmdir('../gone'); os.chmod('/proc/self/cwd', 0)")
        for _ in range(2):
            self.assertEqual(self.back(), [])
            self.assertEqual(self.ask("os.stat('/proc/self/cwd').st_nlink, oct(os.stat('/proc/self/cwd').st_mode)"), "(0, '0o40000')")

    def test_as_one_with_its_descriptors(self):
        self.begin()
        self.do("os.mkdir('above/gone'); os.chdir('above/gone'); d = os.open('.', os.O_RDONLY); p = os.open('.', os.O_PATH); os.rmdir('../gone')")
        for _ in range(2):
            self.assertEqual(self.back(), [])
            self.assertEqual(self.ask("is_one('.', d, p), os.stat('.').st_nlink"), "(True, 0)")

    def test_goes_back_in_place(self):
        self.begin()
        self.do("os.mkdir('above/gone'); os.chdir('above/gone'); os.rmdir('../gone')",
                "seen = lambda: (os.stat('.').st_nlink, os.listdir('.'), is_one('..', %r))" % self.path("above"))
        self.checkpoint()
        self.go_back()
        self.assertEqual(self.ask("seen()"), "(0, [], True)")
        self.do("os.chdir('/')")
        for _ in range(2):
            self.go_back()
            self.assertEqual(self.ask("seen()"), "(0, [], True)")
        self.kill_program()
        self.restart(how=self.how)
        self.assertEqual(self.ask("seen()"), "(0, [], True)")

    def test_places(self):
        """Open by O_PATH: a symbolic link, a file."""
        self.begin()
        self.do("os.chdir('above'); os.symlink('no/where', 'link'); f = [os.open('link', os.O_PATH | os.O_NOFOLLOW) for _ in range(2)]",
                "os.utime('link', (1000, 2000), follow_symlinks=False); os.unlink('link')",
                "open('file', 'w').write('text'); g = os.open('file', os.O_PATH); os.chmod('file', 0o640); os.unlink('file')",
                "seen = lambda: ([os.readlink('', dir_fd=i) for i in f], os.readlink('/proc/self/fd/%d' % f[0]), is_one(*f), [(s.st_mode, s.st_uid, s.st_gid, "
                "s.st_nlink, s.st_mtime) for s in map(os.fstat, f)], open('/proc/self/fd/%d' % g).read(), oct(os.fstat(g).st_mode), fcntl.fcntl(g, 3) & os.O_PATH != 0)")
        before = self.ask("seen()")
        self.assertIn("'no/where', 'no/where'", before)
        for _ in range(3):
            self.assertEqual(self.back(), [])
            self.assertEqual(self.ask("seen()"), before)
            self.assertEqual(os.listdir(self.path("above")), [])

    def test_of_a_job(self):
        """Parent and child work in one, a second child in another one; a third has the first one open."""
        program = """
os.chdir(%r)
os.makedirs('above/common/one'); os.makedirs('above/common/two')
d = os.open('above/common/one', os.O_RDONLY)
os.chdir('above/common/one')
def child(what):
    if os.fork() == 0:
        what()
        open(%r %% os.getpid(), 'w').close()
        while not os.path.exists(%r): time.sleep(0.002)
        s, above = os.stat('.'), is_one('../..', %r)
        with open(%r %% os.getpid(), 'w') as f: f.write(f'{what.__name__} {s.st_ino} {s.st_nlink} {os.fstat(d).st_ino} {above}')
        os._exit(0)
def stays(): pass
def elsewhere(): os.chdir('../two')
def at_root(): os.chdir('/')
for what in (stays, elsewhere, at_root): child(what)
def files(of): return [n for n in os.listdir(%r) if n.startswith(of)]
while len(files('ready-')) < 3: time.sleep(0.002)
os.rmdir('../one'); os.rmdir('../two'); os.rmdir('../../common')
open(%r, 'w').close()
while not os.path.exists(%r): time.sleep(0.002)
for _ in range(3): assert os.wait()[1] == 0
said = dict((line.split()[0], line.split()[1:]) for line in (open(os.path.join(%r, n)).read() for n in files('said-')))
own = str(os.stat('.').st_ino)
assert said['stays'] == [own, '0', own, 'True'], (own, said)
assert said['elsewhere'][0] != own and said['elsewhere'][1:] == ['0', own, 'True'], (own, said)
assert said['at_root'][2] == own, (own, said)
os._exit(7)
""" % (self.directory, self.path("ready-%d"), self.path("go"), self.path("above"), self.path("said-%d"), self.directory, self.path("up"), self.path("go"),
            self.directory)
        if self.how:
            self.skipTest("as root does")
        self.assertEqual(self.comes_back_as_job(program)[0], 7)
        self.assertEqual(os.listdir(self.path("above")), [])


@needs_root
class AsUser(RemovedNames):
    how = AS_USER

    def test_restarted_by_root(self):
        self.begin()
        self.do("os.mkdir('above/gone', 0o710); os.chdir('above/gone'); os.rmdir('../gone')", "seen = lambda: (of_removed('.'), is_one('..', %r))" % self.path("above"))
        before = self.ask("seen()")
        self.come_back("--trust")
        self.assertEqual(self.ask("seen()"), before)

    def test_where_it_may_make_none(self):
        self.begin()
        self.do("os.mkdir('above/gone'); os.chdir('above/gone'); os.rmdir('../gone')")
        os.chown(self.path("above"), 0, 0)
        # Where it is made then may be reached by a symbolic link.
        os.symlink(self.images, self.path("link"))
        self.images = self.path("link")
        self.assertIn("cannot be made again where it was", " ".join(self.back()))
        self.assertEqual(self.ask("os.stat('.').st_nlink, os.listdir('.')"), "(0, [])")


if __name__ == "__main__":
    sys.exit(unittest.main())
