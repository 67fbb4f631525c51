"""ckpt check -- PROGRAM: what of a program can be saved, and what not."""

import glob
import unittest

from support import *

IO_URING_CALL = "import ctypes, mmap, time; p = (ctypes.c_uint * 30)(); f = ctypes.CDLL('libc.so.6').syscall(425, 4, p); m = mmap.mmap(f, 4096, offset=0x10000000); time.sleep(600)"


class CheckProgram(CkptTest):
    def check(self, *words, after="500ms", **kwargs):
        env = clean_environment(TMPDIR=self.directory)
        result = self.ckpt("check", "--json", "--after", after, "--", *words, env=env, **kwargs)
        # Nothing of the trial is left.
        self.assertEqual(os.listdir(self.directory), [])
        report = load(result)
        self.assertEqual(report["exit_code"], result.returncode, result.stderr)
        self.assertEqual(report["restartable"], result.returncode == OK)
        return result.returncode, {f["id"]: f for f in report["findings"]}, result

    def test_good(self):
        code, findings, _ = self.check("sleep", "600")
        self.assertEqual(code, OK)
        self.assertEqual({i: f["level"] for i, f in findings.items()}, {"preload": "ok", "saved": "ok", "restart": "ok"})

    def test_job(self):
        one, two, three = (f"{597 + i}.{os.getpid()}" for i in range(3))  # no other test's
        code, findings, result = self.check("bash", "-c", f"setsid sleep {one} & sleep {two} & sleep {three}", after="2s")
        self.assertEqual(code, OK, result.stdout)
        self.assertIn("4 processes", findings["saved"]["detail"])
        for name in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(name, "rb") as f:
                    self.assertNotRegex(f.read(), rb"^sleep\x0059[789]\.%d\x00" % os.getpid())
            except OSError:
                pass

    def test_cannot_be_preloaded(self):
        static = self.path("static")
        with open(static + ".c", "w", encoding="utf-8") as f:
            f.write("int main(void) { return 0; }\n")
        subprocess.run(["gcc", "-static", "-o", static, static + ".c"], check=True)
        result = self.ckpt("check", "--json", "--", static)
        self.assertEqual(result.returncode, UNSUPPORTED)
        finding, = load(result)["findings"]
        self.assertEqual((finding["id"], finding["level"]), ("preload", "missing"))
        self.assertIn("static", finding["detail"])

    def test_member_that_cannot_be_preloaded(self):
        code, findings, _ = self.check("bash", "-c", "env -i /bin/sleep 600; :", after="2s")
        self.assertEqual(code, UNSUPPORTED)
        self.assertIn("without libckpt_rt.so", findings["checkpoint"]["detail"])

    def test_saved_but_not_restartable(self):
        code, findings, result = self.check("python3", "-c", IO_URING_CALL, after="2s")
        if "no_restart" not in findings and code == OK:
            self.skipTest("no io_uring here")
        self.assertEqual(code, 76, result.stdout)
        self.assertIn("io_uring", findings["no_restart"]["detail"])

    def test_ended_before(self):
        code, findings, _ = self.check("true", after="5s")
        self.assertEqual(code, TIMEOUT)
        self.assertIn("--after", findings["ended"]["remedy"])

    def test_output_is_not_mixed(self):
        _, _, result = self.check("bash", "-c", "echo said; exec sleep 600")
        self.assertIn("said", result.stderr)

    def test_text(self):
        result = self.ckpt("check", "--after", "300ms", "--", "sleep", "600")
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^ok +checkpoint +one process, mode ")

    def test_usage(self):
        self.refuse(USAGE, "no program", "check", "--after", "1s")
        self.refuse(USAGE, "ckpt check", "check", self.directory, "--", "sleep", "1")
        self.refuse(USAGE, "--after", "check", "--after", "soon", "--", "sleep", "1")
        result = self.ckpt("check", "--", "no-such-program-here")
        self.assertEqual(result.returncode, NOT_FOUND)


if __name__ == "__main__":
    unittest.main()
