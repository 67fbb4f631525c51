"""ckpt check: findings that agree with what the machine does."""

import unittest

from support import *


class Check(CkptTest):
    def findings(self, **kwargs):
        result = self.ckpt("check", "--json", self.directory, **kwargs)
        report = load(result)
        self.assertEqual(result.returncode, OK if report["usable"] else UNAVAILABLE)
        return report, {f["id"]: f for f in report["findings"]}

    def test_every_finding_has_reason_and_remedy(self):
        report, findings = self.findings()
        for name in ["kernel", "userfaultfd", "pagemap_scan", "io_uring", "set_tid", "user_namespace", "pid_namespace",
                     "time_namespace", "mm_map", "pidfd_getfd", "kcmp", "ptrace", "directory", "direct_io"]:
            f = findings[name]
            self.assertTrue(f["detail"], name)
            self.assertEqual(f["level"] != "ok", bool(f["effect"]), name)
            self.assertEqual(f["level"] != "ok", bool(f["remedy"]), name)
        self.assertIn(report["mode"], ("realtime", "fork"))

    def test_text_names_the_mode(self):
        self.assertIn("mode auto takes: ", self.ckpt("check", self.directory).stdout)

    def test_without_rights(self):
        kwargs = {}
        if ROOT:
            os.chmod(self.directory, 0o777)
            kwargs["preexec_fn"] = as_nobody
        _, findings = self.findings(**kwargs)
        full = findings["userfaultfd"]["level"] == "ok"
        with open("/proc/sys/vm/unprivileged_userfaultfd") as f:
            allowed = f.read().strip() == "1"
        self.assertEqual(full, allowed or "/dev/userfaultfd" in findings["userfaultfd"]["detail"] and full)
        if not full:
            self.assertIn("unprivileged_userfaultfd", findings["userfaultfd"]["detail"] + findings["userfaultfd"]["remedy"])

    def test_directory_not_writable(self):
        report, findings = self.findings()
        result = self.ckpt("check", "--json", self.path("none"))
        self.assertEqual(result.returncode, UNAVAILABLE)
        self.assertFalse(load(result)["usable"])

    def test_file_size_limit(self):
        import resource
        _, findings = self.findings(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
        self.assertEqual(findings["file_size_limit"]["level"], "limited")


if __name__ == "__main__":
    unittest.main()
