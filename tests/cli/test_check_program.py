"""ckpt check -- PROGRAM: what of a program can be saved, and what not."""

import glob
import signal
import sys
import time
import unittest

from support import *

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import adapter  # noqa: E402

IO_URING_CALL = "import ctypes, mmap, time; p = (ctypes.c_uint * 30)(); f = ctypes.CDLL('libc.so.6').syscall(425, 4, p); m = mmap.mmap(f, 4096, offset=0x10000000); open('AT_WORK', 'w').close(); time.sleep(600)"


class CheckProgram(CkptTest):
    def check(self, *words, options=("--after", "500ms"), variables=None, **kwargs):
        os.makedirs(self.path("tmp"), exist_ok=True)
        env = clean_environment(TMPDIR=self.path("tmp"), **(variables or {}))
        result = self.ckpt("check", "--json", *options, "--", *words, env=env, **kwargs)
        # Nothing of the trial is left.
        self.assertEqual(os.listdir(self.path("tmp")), [])
        report = load(result)
        self.assertEqual(report["exit_code"], result.returncode, result.stderr)
        self.assertEqual(report["restartable"], result.returncode == OK)
        return result.returncode, {f["id"]: f for f in report["findings"]}, result

    def check_at_work(self, *words):
        """The same, of a program that makes the file AT_WORK when it does what is looked at."""
        at_work = self.path("at_work")
        return self.check(*(word.replace("AT_WORK", at_work) for word in words), options=("--when", at_work))

    def test_good(self):
        code, findings, _ = self.check("sleep", "600")
        self.assertEqual(code, OK)
        self.assertEqual({i: f["level"] for i, f in findings.items()}, {"preload": "ok", "saved": "ok", "restart": "ok"})

    def test_long_in_the_dynamic_linker(self):
        """How long it runs counts from the start of the library in it."""
        slow = self.path("slow")
        with open(slow + ".c", "w", encoding="utf-8") as f:
            f.write("#define _GNU_SOURCE\n#include <errno.h>\n#include <string.h>\n#include <unistd.h>\n__attribute__((constructor)) static void slow(void) {\n"
                    "  if (strcmp(program_invocation_short_name, \"sleep\") == 0) sleep(1);\n}\n")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", slow + ".so", slow + ".c"], check=True)
        code, findings, _ = self.check("sleep", "600", options=("--after", "1ms"), variables={"LD_PRELOAD": slow + ".so"})
        self.assertEqual((code, findings.get("saved", {}).get("level")), (OK, "ok"), findings)

    def test_job(self):
        one, two, three = (f"{597 + i}.{os.getpid()}" for i in range(3))  # no other test's
        code, findings, result = self.check_at_work("bash", "-c", f"setsid sleep {one} & sleep {two} & sleep {three} & : > AT_WORK; wait")
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
        code, findings, _ = self.check_at_work("bash", "-c", "env -i /bin/sh -c ': > AT_WORK; exec sleep 600'; :")
        self.assertEqual(code, UNSUPPORTED)
        self.assertIn("without libckpt_rt.so", findings["checkpoint"]["detail"])

    def test_saved_but_not_restartable(self):
        code, findings, result = self.check_at_work("python3", "-c", IO_URING_CALL)
        if "no_restart" not in findings and code == OK:
            self.skipTest("no io_uring here")
        self.assertEqual(code, 76, result.stdout)
        self.assertIn("io_uring", findings["no_restart"]["detail"])

    @unittest.skipIf(adapter.missing(), str(adapter.missing()))
    def test_an_adapter_of_a_fast_network(self):
        """Open, and nothing of it mapped yet: it is refused with what has MPI go without it."""
        def check(how):
            opened = self.path("opened_" + how)
            inner = (f"{adapter.lines(self.path('dev' + how))} exec {CKPT} check --json --when {opened} -- "
                     f"python3 -c 'import os, time; os.open(\"{adapter.PATH}\", os.{how}); os.open(\"/dev/infiniband\", 0); open(\"{opened}\", \"w\"); time.sleep(600)'")
            return subprocess.run(["unshare", "-m", "sh", "-ec", inner], capture_output=True, text=True, env=clean_environment(TMPDIR=self.directory))
        done = check("O_PATH")  # a place, of which nothing is open
        self.assertEqual(done.returncode, OK, done.stdout + done.stderr)
        done = check("O_RDWR")
        self.assertEqual(done.returncode, 76, done.stdout + done.stderr)
        said = {f["id"]: f for f in json.loads(done.stdout)["findings"]}["no_restart"]["detail"]
        self.assertIn(f"is an InfiniBand adapter ({adapter.PATH})", said)
        self.assertIn("UCX_TLS=tcp", said)
        self.assertIn("OMPI_MCA_coll=^hcoll", said)

    def test_interrupted(self):
        """Nothing of the trial is left."""
        os.makedirs(self.path("tmp"))
        trial = subprocess.Popen([CKPT, "check", "--after", "100s", "--", "sleep", "600"], env=clean_environment(TMPDIR=self.path("tmp")))
        while not glob.glob(self.path("tmp") + "/ckpt-check-*/images"):
            self.assertIsNone(trial.poll())
            time.sleep(0.01)
        with open(f"/proc/{trial.pid}/task/{trial.pid}/children", encoding="ascii") as f:
            children = f.read().split()
        trial.send_signal(signal.SIGINT)
        self.assertEqual(trial.wait(60), -signal.SIGINT)
        self.assertEqual(os.listdir(self.path("tmp")), [])
        self.assertTrue(children and not any(os.path.exists("/proc/" + child) for child in children))

    def test_interrupted_where_the_signal_is_blocked(self):
        """It does not end by the signal, and must not say that all comes back."""
        trial = subprocess.Popen([CKPT, "check", "--json", "--after", "100s", "--", "sleep", "600"], env=clean_environment(),
                                 stdout=subprocess.PIPE, text=True,
                                 preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]))
        children = f"/proc/{trial.pid}/task/{trial.pid}/children"
        while trial.poll() is None and not open(children, encoding="ascii").read():
            time.sleep(0.01)
        trial.send_signal(signal.SIGINT)
        said, _ = trial.communicate(timeout=60)
        self.assertEqual(trial.returncode, TIMEOUT, said)
        self.assertIn("interrupted", [f["id"] for f in json.loads(said)["findings"]])

    def test_ended_before(self):
        code, findings, _ = self.check("true", options=("--after", "5s"))
        self.assertEqual(code, TIMEOUT)
        self.assertIn("--after", findings["ended"]["remedy"])

    def test_output_is_not_mixed(self):
        _, _, result = self.check_at_work("bash", "-c", "echo said; : > AT_WORK; exec sleep 600")
        self.assertIn("said", result.stderr)

    def test_text(self):
        result = self.ckpt("check", "--after", "1ms", "--", "sleep", "600")
        self.assertEqual(result.returncode, OK, result.stderr)
        self.assertRegex(result.stdout, r"(?m)^ok +checkpoint +one process, mode ")

    def test_when_a_file_is_there(self):
        """Not before, and where it never comes until the program ends."""
        code, findings, _ = self.check_at_work("python3", "-c", "import os, time\nfor _ in range(7):\n    if os.fork() == 0: time.sleep(600)\nopen('AT_WORK', 'w').close()\ntime.sleep(600)")
        self.assertEqual((code, "8 processes" in findings["saved"]["detail"]), (OK, True), findings)
        self.refuse(USAGE, "is there before the program runs", "check", "--when", self.path("at_work"), "--", "sleep", "1")
        code, findings, _ = self.check("sleep", "0.1", options=("--when", self.path("never")))
        self.assertEqual((code, "ended" in findings), (TIMEOUT, True), findings)

    def test_usage(self):
        self.refuse(USAGE, "no program", "check", "--after", "1s")
        self.refuse(USAGE, "ckpt check", "check", self.directory, "--", "sleep", "1")
        self.refuse(USAGE, "--after", "check", "--after", "soon", "--", "sleep", "1")
        result = self.ckpt("check", "--", "no-such-program-here")
        self.assertEqual(result.returncode, NOT_FOUND)


if __name__ == "__main__":
    unittest.main()
