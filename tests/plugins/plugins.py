"""Plug-ins: loaded into the program, called at a checkpoint and a restart; what is no plug-in to be trusted is refused."""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from own_network import enter_own_network  # noqa: E402

CKPT, RESTART, CLIENT, RECONNECT = (os.environ[n] for n in ("CKPT", "CKPT_RESTART", "CKPT_CLIENT", "CKPT_RECONNECT_PLUGIN"))
COUNT = 4000


class Server:
    """Squares, for as many clients as come."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.clients = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                peer = self.listener.accept()[0]
            except OSError:
                return
            self.clients += 1
            threading.Thread(target=self.answer, args=(peer,), daemon=True).start()

    def answer(self, peer):
        with peer, peer.makefile("rwb") as lines:
            try:
                for line in lines:
                    lines.write(b"%d\n" % int(line) ** 2)
                    lines.flush()
            except OSError:
                pass


class Plugins(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ckpt-plugins.")
        self.addCleanup(shutil.rmtree, self.dir, True)
        self.server = Server()
        self.addCleanup(self.server.listener.close)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("CKPT") and k != "LD_PRELOAD"}
        self.environment["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
        self.environment["CKPT_RECONNECT"] = f"127.0.0.1:{self.server.port}"

    def run_client(self, *options):
        return subprocess.Popen([CKPT, "run", "--dir", self.dir + "/images", *options, "--", CLIENT, str(self.server.port), str(COUNT), self.dir + "/go"],
                                env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def second_life(self, *options):
        client = self.run_client(*options)
        self.assertEqual(client.stdout.readline(), "asks\n")
        taken = subprocess.run([CKPT, "now", str(client.pid)], capture_output=True, text=True, env=self.environment, check=False)
        self.assertEqual(taken.returncode, 0, taken.stderr)
        client.kill()
        client.communicate()
        open(self.dir + "/go", "w", encoding="ascii").close()
        return subprocess.run([RESTART, self.dir + "/images"], capture_output=True, text=True, env=self.environment, timeout=60, check=False)

    def test_a_client_connects_again(self):
        back = self.second_life("--plugins", RECONNECT)
        self.assertEqual(back.returncode, 0, back.stderr)
        self.assertEqual(back.stdout, f"sum {sum(i * i for i in range(COUNT))}\n")
        self.assertEqual(self.server.clients, 2)

    def test_without_it_the_connection_is_reset(self):
        back = self.second_life()
        self.assertEqual(back.returncode, 4, back.stdout)
        self.assertEqual(self.server.clients, 1)

    def test_a_checkpoint_alone_changes_nothing(self):
        client = self.run_client("--plugins", RECONNECT)
        self.assertEqual(client.stdout.readline(), "asks\n")
        for _ in range(3):
            subprocess.run([CKPT, "now", str(client.pid)], env=self.environment, check=True, capture_output=True)
        open(self.dir + "/go", "w", encoding="ascii").close()
        said = client.communicate(timeout=60)
        self.assertEqual((client.returncode, said[0]), (0, f"sum {sum(i * i for i in range(COUNT))}\n"), said)
        self.assertEqual(self.server.clients, 1)

    def refused(self, path, code, words):
        client = self.run_client("--plugins", path)
        said = client.communicate(timeout=60)
        self.assertEqual(client.returncode, code, said)
        self.assertIn(words, said[1])
        self.assertEqual(self.server.clients, 0)

    def test_whose_it_is(self):
        copy = self.dir + "/copy.so"
        shutil.copy(RECONNECT, copy)
        os.chmod(copy, 0o775)
        self.refused(copy, 77, "others may write it")
        os.chmod(copy, 0o755)
        link = self.dir + "/link.so"
        os.symlink(copy, link)
        self.refused(link, 77, "no link")
        self.refused("reconnect.so", 77, "no absolute path")
        self.refused(self.dir + "/none.so", 77, "cannot be read")
        os.mkdir(self.dir + "/open")
        os.chmod(self.dir + "/open", 0o777)
        shutil.copy(RECONNECT, self.dir + "/open/copy.so")
        os.chmod(self.dir + "/open/copy.so", 0o755)
        self.refused(self.dir + "/open/copy.so", 77, "lies in a directory")
        if os.geteuid() == 0:
            os.chown(copy, 1234, 0)
            self.refused(copy, 77, "belongs to someone else")

    def test_what_is_none(self):
        library = os.path.join(os.path.dirname(CKPT), "../lib/libckpt_rt.so")
        copy = self.dir + "/rt.so"
        shutil.copy(library, copy)
        self.refused(copy, 68, "is none of this version")

    def test_its_own_word(self):
        self.environment["CKPT_STOP_TIMEOUT"] = "30s"  # of one thread: the host may take a processor away for seconds
        self.environment["CKPT_RECONNECT"] = "nowhere"
        self.refused(RECONNECT, 78, "CKPT_RECONNECT names no servers")


if __name__ == "__main__":
    enter_own_network()
    unittest.main()
