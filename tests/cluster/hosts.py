"""Several hosts on this machine: for each namespaces of network, mounts, processes and host name, a veth pair to one bridge,
its own /dev/shm, and /etc/hosts with the names of all. Each host has process ids of its own range, or all have the same.

    with Hosts(3) as hosts:
        subprocess.run(hosts.enter("h2") + ["hostname"])

hosts.launch is for --launch: it runs a command on a host, as ssh would. Needs root.
"""
import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)


def possible():
    """None, or why there can be no hosts here."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("nsenter"):
        return "needs root, ip and nsenter"
    name = f"ckb{os.getpid() % 100000}x"
    if ip("link", "add", name, "type", "bridge", check=False).returncode != 0:
        return "no bridge can be made here"
    ip("link", "del", name)
    return None


class Hosts:
    def __init__(self, count, ids_apart=5000):
        self.ids_apart = ids_apart
        self.names = [f"h{i + 1}" for i in range(count)]
        self.tag = f"ck{os.getpid() % 100000}"
        # For this run alone: two may run at once.
        self.network = f"10.{os.getpid() >> 8 & 0xff}.{os.getpid() & 0xff}"
        self.base = tempfile.mkdtemp(prefix="ckpt-hosts.")
        self.pids = {}
        self.keepers = []

    def address(self, name):
        return f"{self.network}.{self.names.index(name) + 1}"

    def __enter__(self):
        atexit.register(self.remove)
        self.bridge = self.tag + "b"
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.network}.254/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        with open(f"{self.base}/hosts", "w", encoding="ascii") as f:
            f.write("127.0.0.1 localhost\n" + "".join(f"{self.address(n)} {n}\n" for n in self.names))
        for i, name in enumerate(self.names):
            self.make(i, name)
        script = f"{self.base}/enter"
        with open(script, "w", encoding="ascii") as f:
            f.write("#!/bin/sh\nhost=$1; shift\ncase $host in\n")
            for name, pid in self.pids.items():
                f.write(f"{name}) exec nsenter -t {pid} -n -m -u -i -p -- \"$@\";;\n")
            f.write("esac\necho \"$host: no such host\" >&2; exit 1\n")
        os.chmod(script, 0o700)
        self.launch = f"{script} {{host}}"
        return self

    def make(self, index, name):
        net = f"{self.tag}n{index}"
        # The first process: waits for nothing, and reaps what is left to it.
        keeper = subprocess.Popen(
            ["unshare", "-n", "-m", "-u", "-i", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c",
             f"hostname {name}; echo {1000 + self.ids_apart * index} > /proc/sys/kernel/ns_last_pid; mount -t tmpfs none /dev/shm; mount --bind {self.base}/hosts /etc/hosts; ip link set lo up; "
             "trap : CHLD; echo ready; while :; do sleep 1000 & wait; done"],
            stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.keepers.append(keeper)
        assert keeper.stdout.readline() == "ready\n"
        with open(f"/proc/{keeper.pid}/task/{keeper.pid}/children", encoding="ascii") as f:
            pid = int(f.read().split()[0])
        self.pids[name] = pid
        ip("link", "add", net, "type", "veth", "peer", "name", net + "i")
        ip("link", "set", net, "master", self.bridge, "up")
        ip("link", "set", net + "i", "netns", str(pid))
        inside = ["nsenter", "-t", str(pid), "-n", "--", "ip"]
        subprocess.run(inside + ["link", "set", net + "i", "name", "eth0"], check=True)
        subprocess.run(inside + ["addr", "add", self.address(name) + "/24", "dev", "eth0"], check=True)
        subprocess.run(inside + ["link", "set", "eth0", "up"], check=True)

    def enter(self, name):
        return [f"{self.base}/enter", name]

    def run(self, name, *words, **more):
        return subprocess.run(self.enter(name) + list(words), capture_output=True, text=True, **more)

    def cut(self, name, off=True):
        """The host's cable."""
        ip("link", "set", f"{self.tag}n{self.names.index(name)}", "down" if off else "up")

    def crash(self, name):
        """All its processes at once."""
        os.kill(self.pids[name], signal.SIGKILL)

    def processes(self, name):
        """(pid on the host, words) of all but the first."""
        lines = self.run(name, "ps", "-e", "-o", "pid=,args=").stdout.splitlines()
        return [(int(l.split()[0]), l.split(None, 1)[1]) for l in lines if "ps -e -o" not in l]

    def remove(self):
        for keeper in self.keepers:
            keeper.kill()
            keeper.wait()
            keeper.stdout.close()
        self.keepers = []
        for i in range(len(self.names)):
            ip("link", "del", f"{self.tag}n{i}", check=False)
        if hasattr(self, "bridge"):
            ip("link", "del", self.bridge, check=False)
        shutil.rmtree(self.base, ignore_errors=True)

    def __exit__(self, *_):
        self.remove()


if __name__ == "__main__":
    with Hosts(3) as made:
        print(made.launch, flush=True)
        time.sleep(10**6)
