"""Several hosts on this machine: for each namespaces of network, mounts, processes, IPC and host name, a veth pair to one bridge,
its own /dev/shm, and /etc/hosts with the names of all. Needs root.

    with hosts.Hosts(3) as some:                 hosts.missing() says what is not here
        subprocess.run(some.enter("h1") + ["hostname"])

some.launch is for --launch: it runs a command on a host, as ssh would. With ssh=True each host has an ssh server (dropbear) and its
own /tmp as well, and some.agent is what to call on the hosts in place of ssh: agent HOST COMMAND...
A host ends, with all that runs on it, when its first process does: crash() is a host that dies.
"""
import atexit
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time

TOOLS = ("ip", "unshare", "nsenter", "mount")
SSH_TOOLS = ("dropbear", "dropbearkey", "dbclient")


def missing(ssh=False):
    """Why no hosts can be made here; None if they can."""
    if os.geteuid() != 0:
        return "hosts in namespaces are made by root"
    absent = [tool for tool in TOOLS + (SSH_TOOLS if ssh else ()) if shutil.which(tool) is None]
    if absent:
        return f"not here: {' '.join(absent)}"
    probe = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-ec",
                            "ip link add name ckb type bridge; ip link add name ckv type veth peer name ckw"],
                           capture_output=True, text=True, check=False)
    return None if probe.returncode == 0 else f"no namespaces, bridges or veth pairs here: {probe.stderr.strip()}"


def run(*argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    def __init__(self, count, ids_apart=5000, ssh=False, keep=()):
        """ids_apart: between the process ids of two hosts; 0: all have the same. keep: directories under /tmp that hosts with an
        own /tmp see too."""
        self.names = [f"h{i + 1}" for i in range(count)]
        self.ids_apart, self.ssh = ids_apart, ssh
        self.keep = [os.path.abspath(path) for path in keep]
        # For this run alone: two may run at once.
        self.network = f"10.{os.getpid() >> 8 & 0xff}.{os.getpid() & 0xff}"
        self.network6 = f"fd77:{os.getpid() >> 16:x}:{os.getpid() & 0xffff:x}"
        self.bridge = f"ckb{os.getpid()}"
        self.base = tempfile.mkdtemp(prefix="ckpt-hosts.")
        self.keys = f"{self.base}/keys"
        self.agent = f"{self.base}/agent"
        self.pids = {}     # host: its first process, as we see it
        self.keepers = []  # the processes that made them

    def address(self, name):
        return f"{self.network}.{self.names.index(name) + 1}"

    def ipv6_address(self, name):
        return f"{self.network6}::{self.names.index(name) + 1}"

    def ipv6_alone(self):
        """No IPv4 on the network of the hosts any more, IPv6 in its place."""
        for name in self.names:
            done = self.run(name, "sh", "-ec", f"ip -4 address flush dev eth0; ip -6 address add {self.ipv6_address(name)}/64 dev eth0 nodad")
            if done.returncode != 0:
                raise RuntimeError(done.stderr)
        run("ip", "-4", "address", "flush", "dev", self.bridge)
        run("ip", "-6", "address", "add", self.network6 + "::ff/64", "dev", self.bridge, "nodad")

    def __enter__(self):
        atexit.register(self.close)
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def _make(self):
        # An address of its own: else it has that of one of the hosts and changes when that host dies, which the others learn by and by.
        number = os.getpid() & 0xffffff
        run("ip", "link", "add", self.bridge, "address", f"02:43:4b:{number >> 16:02x}:{number >> 8 & 0xff:02x}:{number & 0xff:02x}", "type", "bridge")
        run("ip", "address", "add", f"{self.network}.254/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        with open(f"{self.base}/hosts", "w", encoding="ascii") as f:
            f.write("127.0.0.1 localhost\n" + "".join(f"{self.address(n)} {n}\n" for n in self.names))
        if self.ssh:
            self._make_keys()
        for i, name in enumerate(self.names):
            self._make_host(i, name)
        if self.ssh:
            self.launch = f"dbclient -q -y -y -T -i {self.keys}/key {{host}}"
            self._script(self.agent, "while [ \"${1#-}\" != \"$1\" ]; do shift; done\n"
                         f"exec dbclient -q -y -y -T -i {self.keys}/key \"$@\" </dev/null\n")
        else:
            cases = "".join(f"{name}) exec {' '.join(self.enter(name))} \"$@\";;\n" for name in self.names)
            self._script(f"{self.base}/enter",
                         f"host=$1; shift\ncase $host in\n{cases}esac\necho \"$host: no such host\" >&2; exit 1\n")
            self.launch = f"{self.base}/enter {{host}}"

    @staticmethod
    def _script(path, text):
        with open(path, "w", encoding="ascii") as f:
            f.write("#!/bin/sh\n" + text)
        os.chmod(path, stat.S_IRWXU)

    def _make_keys(self):
        os.mkdir(self.keys, 0o700)
        public = run("dropbearkey", "-t", "ed25519", "-f", f"{self.keys}/key")
        with open(f"{self.keys}/authorized_keys", "w", encoding="ascii") as f:
            f.writelines(line + "\n" for line in public.splitlines() if line.startswith("ssh-"))
        os.makedirs(os.path.join(pwd.getpwuid(0).pw_dir, ".ssh"), 0o700, exist_ok=True)

    def _own_tmp(self, name):
        """Lines of a shell that give the host an own /tmp."""
        own = f"{self.base}/{name}"
        os.mkdir(own)
        lines = f"mount --bind '{self.keys}' '{pwd.getpwuid(0).pw_dir}/.ssh'\n"
        for path in self.keep + [self.base]:
            if path.startswith("/tmp/"):
                inside = own + path[len("/tmp"):]
                os.makedirs(inside)
                lines += f"mount --bind '{path}' '{inside}'\n"
        return lines + f"mount --rbind '{own}' /tmp\n"

    def _make_host(self, number, name):
        # The first process: waits for nothing, and reaps what is left to it.
        script = (f"hostname {name}\necho {1000 + self.ids_apart * number} > /proc/sys/kernel/ns_last_pid\n"
                  f"mount -t tmpfs none /dev/shm\nmount --bind '{self.base}/hosts' /etc/hosts\n"
                  f"{self._own_tmp(name) if self.ssh else ''}ip link set lo up\n"
                  "trap : CHLD\necho ready\nset +e\nwhile :; do sleep 1000 & wait; done\n")
        keeper = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--mount-proc", "--kill-child=KILL",
                                   "sh", "-ec", script], stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.keepers.append(keeper)
        if keeper.stdout.readline() != "ready\n":
            raise RuntimeError(f"{name}: its namespaces could not be made")
        with open(f"/proc/{keeper.pid}/task/{keeper.pid}/children", encoding="ascii") as f:
            self.pids[name] = int(f.read().split()[0])
        outer = f"{self.bridge}.{number}"
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", str(self.pids[name]))
        run("ip", "link", "set", outer, "master", self.bridge, "up")
        run(*self.enter(name), "ip", "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        run(*self.enter(name), "ip", "link", "set", "eth0", "up")
        # The kernel hears of the cable by and by, and what is sent before that is lost.
        end = time.monotonic() + 60
        while "state forwarding" not in run("ip", "-d", "link", "show", "dev", outer):
            if time.monotonic() > end:
                raise RuntimeError(f"{name}: its link does not come up")
        if self.ssh:
            # Listens when the command is back: it goes into the background then. Not through a pipe: it would keep the other end.
            subprocess.run([*self.enter(name), "dropbear", "-s", "-r", f"{self.keys}/key", "-P", "/dev/shm/dropbear.pid"], check=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def enter(self, name):
        """The beginning of a command line that runs on that host."""
        return ["nsenter", "-t", str(self.pids[name]), "-m", "-u", "-i", "-n", "-p", "--"]

    def shape(self, name, rate):
        """What the host sends, and what it receives, as `tc` says rates: 1gbit."""
        words = ("root", "tbf", "rate", rate, "burst", "512kb", "latency", "50ms")
        self.run(name, "tc", "qdisc", "add", "dev", "eth0", *words, check=True)
        run("tc", "qdisc", "add", "dev", f"{self.bridge}.{self.names.index(name)}", *words)

    def run(self, name, *words, **more):
        return subprocess.run(self.enter(name) + list(words), capture_output=True, text=True, **more)

    def processes(self, name):
        """(pid on the host, words) of all but ps."""
        lines = self.run(name, "ps", "-e", "-o", "pid=,args=").stdout.splitlines()
        return [(int(l.split()[0]), l.split(None, 1)[1]) for l in lines if "ps -e -o" not in l]

    def cut(self, name, off=True):
        """Its cable is pulled out, or put in again."""
        run("ip", "link", "set", f"{self.bridge}.{self.names.index(name)}", "down" if off else "up")

    def crash(self, name):
        """The host dies: all its processes at once."""
        os.kill(self.pids[name], signal.SIGKILL)

    def close(self):
        atexit.unregister(self.close)
        for keeper in self.keepers:
            keeper.kill()  # --kill-child
            keeper.wait()
            keeper.stdout.close()
        self.keepers = []
        for device in [f"{self.bridge}.{i}" for i in range(len(self.names))] + [self.bridge]:
            subprocess.run(["ip", "link", "del", device], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.base, ignore_errors=True)


if __name__ == "__main__":
    with Hosts(3) as made:
        print(made.launch, flush=True)
        time.sleep(10**6)
