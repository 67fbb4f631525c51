"""Several hosts on one machine: each has namespaces of its own (network, processes, mounts, names, IPC), an address on
one bridge, its own /tmp and /dev/shm, and all know each other's names.

    with hosts.Hosts(3, keep=[build]) as some:     needs root; hosts.missing() says what is not here
        subprocess.run(some.on("h1") + ["hostname"])
        some.agent                                 what to call in place of ssh, on the hosts: agent HOST COMMAND...

A host ends, with all that runs on it, when its first process does: kill() is a host that dies.
"""
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile

TOOLS = ("ip", "unshare", "nsenter", "mount", "dropbear", "dropbearkey", "dbclient")


def missing():
    """Why no hosts can be made here; None if they can."""
    if os.geteuid() != 0:
        return "hosts in namespaces are made by root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"not here: {' '.join(absent)}"
    probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "v", "type", "veth"],
                           capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else f"no namespaces here: {probe.stderr.strip()}"


class Hosts:
    def __init__(self, count, keep=()):
        """keep: directories under /tmp that the hosts see too."""
        self.names = [f"h{i + 1}" for i in range(count)]
        self.keep = [os.path.abspath(path) for path in keep]
        self.unshared = {}  # host: the process that made it
        self.first = {}     # host: its first process, as we see it
        self.directory = tempfile.mkdtemp(prefix="ckpt-hosts.")
        # Of 10.0.0.0/8, for this run alone: two may run at once.
        self.network = f"10.{os.getpid() >> 8 & 0xff}.{os.getpid() & 0xff}"
        self.bridge = f"ckb{os.getpid()}"
        self.keys = os.path.join(self.directory, "keys")
        self.agent = os.path.join(self.directory, "agent")

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _run(self, *argv):
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def _make(self):
        table = os.path.join(self.directory, "hosts")
        with open(table, "w", encoding="ascii") as f:
            f.write("127.0.0.1 localhost\n")
            f.writelines(f"{self.network}.{i + 1} {name}\n" for i, name in enumerate(self.names))
        os.mkdir(self.keys, 0o700)
        public = subprocess.run(["dropbearkey", "-t", "ed25519", "-f", f"{self.keys}/key"], check=True,
                                capture_output=True, text=True).stdout
        with open(f"{self.keys}/authorized_keys", "w", encoding="ascii") as f:
            f.writelines(line + "\n" for line in public.splitlines() if line.startswith("ssh-"))
        os.makedirs(os.path.join(pwd.getpwuid(0).pw_dir, ".ssh"), 0o700, exist_ok=True)
        self._run("ip", "link", "add", self.bridge, "type", "bridge")
        self._run("ip", "link", "set", self.bridge, "up")
        for i, name in enumerate(self.names):
            self._make_host(i, name, table)
        with open(self.agent, "w", encoding="ascii") as f:
            f.write("#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
                    f"exec dbclient -q -y -y -T -i {self.keys}/key \"$@\" </dev/null\n")
        os.chmod(self.agent, stat.S_IRWXU)

    def _make_host(self, number, name, table):
        own = os.path.join(self.directory, name)
        os.mkdir(own)
        binds = ""
        for path in self.keep + [self.directory]:
            if path.startswith("/tmp/"):
                inside = own + path[len("/tmp"):]
                os.makedirs(inside)
                binds += f"mount --bind '{path}' '{inside}'\n"
        # The line says that it is ready; from then on it waits for the end of its input.
        script = (f"hostname {name}\nmount --bind '{table}' /etc/hosts\n"
                  f"mount --bind '{self.keys}' '{pwd.getpwuid(0).pw_dir}/.ssh'\n{binds}mount --rbind '{own}' /tmp\n"
                  "mount -t tmpfs none /dev/shm\nip link set lo up\necho ready\nread end\n")
        host = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc",
                                 "--kill-child=KILL", "sh", "-ec", script],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if host.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name}: its namespaces could not be made")
        with open(f"/proc/{host.pid}/task/{host.pid}/children", encoding="ascii") as f:
            first = int(f.read().split()[0])
        self.unshared[name], self.first[name] = host, first
        outer, inner = f"{self.bridge}.{number}", "eth0"
        self._run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", str(first))
        self._run("ip", "link", "set", outer, "master", self.bridge, "up")
        on = self.on(name)
        self._run(*on, "ip", "address", "add", f"{self.network}.{number + 1}/24", "dev", inner)
        self._run(*on, "ip", "link", "set", inner, "up")
        # Listens when the command is back: it goes into the background then.
        self._run(*on, "dropbear", "-s", "-r", f"{self.keys}/key", "-P", "/dev/shm/dropbear.pid")

    def on(self, name):
        """The beginning of a command line that runs on that host."""
        return ["nsenter", "-t", str(self.first[name]), "-m", "-u", "-i", "-n", "-p", "--"]

    def kill(self, name):
        """The host dies: all its processes at once."""
        os.kill(self.first[name], signal.SIGKILL)

    def cut(self, name, off=True):
        """Its cable is pulled out, or put in again."""
        self._run("ip", "link", "set", f"{self.bridge}.{self.names.index(name)}", "down" if off else "up")

    def close(self):
        for host in self.unshared.values():
            host.kill()  # --kill-child
            host.wait()
            host.stdin.close()
            host.stdout.close()
        self.unshared.clear()
        self.first.clear()
        subprocess.run(["ip", "link", "del", self.bridge], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.directory, ignore_errors=True)
