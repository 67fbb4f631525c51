"""The checkpointers that benchmarks run beside each other: each starts a command, takes a checkpoint of it, and restarts it.

CRIU and DMTCP are looked for in CKPT_PEERS (a directory with `criu` and `dmtcp/bin`), then in PATH. CRIU needs root.
"""

import os
import pathlib
import shutil
import subprocess


def find(name):
    peers = os.environ.get("CKPT_PEERS")
    if peers and (pathlib.Path(peers) / name).exists():
        return str((pathlib.Path(peers) / name).resolve())
    return shutil.which(pathlib.Path(name).name)


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: exit code {done.returncode}: {done.stdout.strip()[-300:]}")
    return done.stdout


class Ours:
    name = "ckpt_rt"

    def __init__(self, build, work):
        self.build, self.images = build, work / "images"

    def start(self, command):
        return subprocess.Popen([f"{self.build}/bin/ckpt", "run", "--dir", self.images, "--", *command], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, start_new_session=True)

    def checkpoint(self, pid):
        run([f"{self.build}/bin/ckpt", "now", str(pid)])

    def restart(self):
        return subprocess.Popen([f"{self.build}/bin/ckpt-restart", self.images], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)


class Criu:
    name = "CRIU"
    more = ()  # arguments of its dump and its restore

    def __init__(self, program, work):
        self.program, self.images = program, work / "images"

    def start(self, command):
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)

    def checkpoint(self, pid):
        shutil.rmtree(self.images, ignore_errors=True)
        self.images.mkdir()
        run([self.program, "dump", "-t", str(pid), "-D", str(self.images), "--shell-job", "--leave-running", *self.more])
        os.sync()  # CRIU leaves its images in the page cache; ours and DMTCP's count when they are on the disk

    def restart(self):
        return subprocess.Popen([self.program, "restore", "-D", str(self.images), "--shell-job", *self.more],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Dmtcp:
    name = "DMTCP"

    def __init__(self, launch, work):
        self.bin, self.images, self.port = pathlib.Path(launch).parent, work / "images", 20000 + os.getpid() % 20000

    def start(self, command):
        self.images.mkdir()
        self.port += 1
        return subprocess.Popen([self.bin / "dmtcp_launch", "--no-gzip", "--new-coordinator", "--coord-port",
                                 str(self.port), "--ckptdir", self.images, *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)

    def checkpoint(self, _pid):
        run([self.bin / "dmtcp_command", "--coord-port", str(self.port), "--bcheckpoint"])
        os.sync()

    def restart(self):
        self.port += 1
        return subprocess.Popen([self.bin / "dmtcp_restart", "--new-coordinator", "--coord-port", str(self.port),
                                 *map(str, self.images.glob("*.dmtcp"))], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, start_new_session=True)


def all_methods(build):
    """Name to a function of a work directory; a peer that is missing is named and left out."""
    methods = {"ckpt_rt": lambda work: Ours(build, work)}
    for name, program, maker in (("CRIU", "criu", Criu), ("DMTCP", "dmtcp/bin/dmtcp_launch", Dmtcp)):
        if path := find(program):
            methods[name] = lambda work, path=path, maker=maker: maker(path, work)
        else:
            print(f"{name}: not found in CKPT_PEERS or PATH; left out")
    return methods
