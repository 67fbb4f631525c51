"""ckpt ls, show and verify: whole, unfinished, truncated, corrupted, foreign and future images."""

import fcntl
import unittest

from support import *


def spoil(path, at, data):
    with open(path, "r+b") as f:
        f.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        f.write(data)


class Listing(CkptTest):
    def test_table(self):
        paths = [self.make_image(1), self.make_image(2), self.make_image(1, comm="other", pid=99)]
        result = self.ckpt("ls", self.directory)
        self.assertEqual((result.returncode, result.stderr), (OK, ""))
        for path in paths:
            self.assertIn(path, result.stdout)
        self.assertIn("1.25 ms", result.stdout)
        self.assertIn("complete", result.stdout)

    def test_json(self):
        self.make_image(7)
        self.make_image(8, kind="tmp")
        spoil(self.make_image(9), -4096, bytes(4096))
        rows = {row["sequence"]: row for row in load(self.ckpt("ls", self.directory, "--json"))}
        self.assertEqual([rows[n]["state"] for n in (7, 8, 9)], ["complete", "unfinished", "damaged"])
        self.assertEqual((rows[7]["program"], rows[7]["pid"], rows[7]["pause_ns"]), ("prog", 1234, 1250000))
        self.assertIn("problem", rows[9])

    def test_default_directories_of_the_current_one(self):
        os.mkdir(self.path("ckpt-prog.1234"))
        path = self.make_image(1, directory=self.path("ckpt-prog.1234"))
        result = self.ckpt("ls", cwd=self.directory)
        self.assertIn(os.path.basename(path), result.stdout)

    def test_nothing_there(self):
        result = self.ckpt("ls", self.directory)
        self.assertEqual((result.returncode, result.stdout), (OK, ""))
        self.assertIn("holds no images", result.stderr)
        self.assertEqual(load(self.ckpt("ls", self.directory, "--json")), [])

    def test_refusals(self):
        self.refuse(NOT_FOUND, self.path("none"), "ls", self.path("none"))
        with open(self.path("file"), "w"):
            pass
        self.assertIn(self.ckpt("ls", self.path("file")).returncode, (USAGE, NOT_FOUND))


class Showing(CkptTest):
    def test_text(self):
        result = self.ckpt("show", self.make_image(5))
        self.assertEqual((result.returncode, result.stderr), (OK, ""))
        for text in ["prog", "1234", "2 threads", "1235", "1 mapping", "rw-p", "256 KiB", "2 descriptors", "/dev/null",
                     "SIGUSR1", "ignored", "realtime", "17 forced", "comes back closed"]:
            self.assertIn(text, result.stdout)

    def test_names_do_not_steer_the_terminal(self):
        self.assertNotIn("\033", self.ckpt("show", self.make_image(5)).stdout)

    def test_json(self):
        image = load(self.ckpt("show", "--json", self.make_image(5)))
        self.assertEqual((image["sequence"], image["process"]["pid"]), (5, 1234))
        self.assertEqual([t["tid"] for t in image["threads"]], [1234, 1235])
        self.assertEqual(image["mappings"][0]["bytes_saved"], 64 * 4096)
        self.assertEqual(image["cost"]["pause_ns"], 1250000)
        self.assertEqual([d["fd"] for d in image["descriptors"]], [0, 1])

    def test_newest_of_a_directory(self):
        for n in (1, 2, 3):
            self.make_image(n)
        self.assertEqual(load(self.ckpt("show", "--json", self.directory))["sequence"], 3)
        self.assertEqual(load(self.ckpt("show", "--json", self.directory + "@-1"))["sequence"], 2)
        self.assertEqual(load(self.ckpt("show", "--json", self.directory + "@1"))["sequence"], 1)

    def test_several_programs(self):
        self.make_image(1)
        self.make_image(1, comm="other", pid=99)
        self.refuse(USAGE, ["prog", "other"], "show", self.directory)


class Damage(CkptTest):
    def each(self, code, words, path):
        for command in ["show", "verify"]:
            with self.subTest(command):
                self.refuse(code, words, command, path)

    def test_whole(self):
        path = self.make_image(1)
        self.make_image(2)
        result = self.ckpt("verify", path)
        self.assertEqual((result.returncode, result.stderr), (OK, ""))
        self.assertIn("whole", result.stdout)
        self.assertEqual(self.ckpt("verify", self.directory).stdout.count("whole"), 2)

    def test_missing_and_unreadable(self):
        self.each(NOT_FOUND, self.path("none.ckpt"), self.path("none.ckpt"))
        self.refuse(NOT_FOUND, "no images", "verify", self.directory)
        self.refuse(NOT_FOUND, self.directory, "show", self.directory)
        if ROOT:
            path = self.make_image(1)
            os.chmod(self.directory, 0o711)
            result = self.ckpt("verify", path, preexec_fn=as_nobody)
            self.check_refusal(result, PERMISSION if result.returncode == PERMISSION else IO, path)

    def test_foreign_files(self):
        for name, content in [("empty", b""), ("text", b"hello\n" * 4000), ("zeros", bytes(20000)),
                              ("elf", open("/bin/true", "rb").read())]:
            with open(self.path(name), "wb") as f:
                f.write(content)
            with self.subTest(name):
                self.each(DAMAGED, self.path(name), self.path(name))

    def test_truncated_anywhere(self):
        path = self.make_image(1)
        whole = os.path.getsize(path)
        for size in [0, 1, 100, 4095, 4096, 8192, whole // 2, whole - 4096, whole - 1]:
            os.truncate(path, size)
            with self.subTest(size):
                self.each(DAMAGED, path, path)
            os.unlink(path)
            path = self.make_image(1)

    def test_a_flipped_bit_in_every_block(self):
        path = self.make_image(1)
        with open(path, "rb") as f:
            data = f.read()
        for at in range(17, len(data), 4096):
            spoil(path, at, bytes([data[at] ^ 0x10]))
            result = self.ckpt("verify", path)
            self.check_refusal(result, DAMAGED, path)
            spoil(path, at, data[at:at + 1])
        self.assertEqual(self.ckpt("verify", path).returncode, OK)

    def test_future_version(self):
        path = self.make_image(1, kind="future")
        self.each(INCOMPATIBLE, [path, "2"], path)

    def test_directory_reports_each(self):
        good, bad = self.make_image(1), self.make_image(2)
        unfinished = self.make_image(3, kind="tmp")
        spoil(bad, 9000, b"\xff\xff")
        result = self.ckpt("verify", self.directory)
        self.assertEqual(result.returncode, DAMAGED)
        self.assertIn(good + ": whole", result.stdout)
        self.assertIn(bad, result.stderr)
        self.assertIn("unfinished", result.stderr)
        verdicts = {v["image"]: v for v in load(self.ckpt("verify", "--json", self.directory))}
        self.assertEqual((verdicts[good]["ok"], verdicts[bad]["ok"], verdicts[bad]["code"]), (True, False, DAMAGED))
        self.assertNotIn(unfinished, verdicts)
        # The damaged one is newer; a restart would still find the good one.
        rows = load(self.ckpt("ls", "--json", self.directory))
        self.assertIn("complete", [r["state"] for r in rows])


class LeftoversOfRunsWithoutImages(CkptTest):
    def test_are_removed(self):
        kept = self.make_image(1, pid=7)
        left = self.make_image(3, pid=8, kind="tmp")
        # What the writer had given to the disk keeps the file locked until it is written, though the writer is gone.
        with open(left, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        said = load(self.ckpt("gc", self.directory, "--keep", "0", "--json"))
        self.assertEqual((said["images_removed"], said["leftovers_removed"], said["images_kept"]), (0, 1, 1))
        self.assertEqual(os.listdir(self.directory), [os.path.basename(kept)])


if __name__ == "__main__":
    unittest.main()
