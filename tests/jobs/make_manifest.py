#!/usr/bin/env python3
"""Makes a job's checkpoint of an idle tree: an image of each process, taken one by one, and the manifest.

For trees that a checkpoint of a job cannot be asked for, or not yet: whatever /proc shows becomes the manifest.
Nothing in the tree may move meanwhile.
  make_manifest.py CKPT ROOT_PID DIRECTORY_OF_IMAGES JOB_DIRECTORY
"""
import ctypes
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

import xxhash

SYS_KCMP, KCMP_FILE = 312, 0
libc = ctypes.CDLL(None, use_errno=True)


def stat_of(pid):
    text = open(f"/proc/{pid}/stat").read()
    name = text[text.index("(") + 1:text.rindex(")")]
    rest = text[text.rindex(")") + 2:].split()
    return {"name": name, "state": rest[0], "ppid": int(rest[1]), "pgid": int(rest[2]), "sid": int(rest[3]),
            "tty": int(rest[4]), "tpgid": int(rest[5]), "exit_code": int(rest[49])}


def tree(root, session_orphans=()):
    """The root and all that descend from it, with what else is named."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = stat_of(int(entry))["ppid"]
            except (FileNotFoundError, ProcessLookupError):
                pass
    found = [root] + [p for p in session_orphans]
    for pid in found:
        found += sorted(p for p, parent in parents.items() if parent == pid and p not in found)
    return found


def same_file(pid_a, fd_a, pid_b, fd_b):
    return libc.syscall(SYS_KCMP, pid_a, pid_b, KCMP_FILE, fd_a, fd_b) == 0


def take_image(ckpt, pid, images):
    done = subprocess.run([ckpt, "now", "--json", str(pid)], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise RuntimeError(f"ckpt now {pid}: {done.stderr}")
    return os.path.join(images, os.path.basename(json.loads(done.stdout)["image"]))


def open_files(ckpt, image):
    """OpenFileRecord::id of each descriptor."""
    shown = json.loads(subprocess.run([ckpt, "show", "--json", image], capture_output=True, text=True, check=True).stdout)
    return {d["fd"]: d["open_file"] for d in shown["descriptors"]}


def make(ckpt, root, images, job, orphans=()):
    os.mkdir(job, 0o700)
    members, numbers = [], {}
    pids = tree(root, orphans)
    for pid in pids:
        facts = stat_of(pid)
        member = {"pid": pid, "ppid": facts["ppid"], "pgid": facts["pgid"], "sid": facts["sid"], "name": facts["name"],
                  "tty": facts["tty"], "foreground_group": facts["tpgid"], "subreaper": False,
                  "orphan": facts["ppid"] not in pids}
        if facts["state"] == "Z":
            member |= {"state": "zombie", "exit_status": facts["exit_code"], "exit_signal": 17}
        else:
            stopped = facts["state"] == "T"
            if stopped:
                os.kill(pid, 18)
            image = take_image(ckpt, pid, images)
            member |= {"state": "stopped" if stopped else "running", "image": f"{pid}.ckpt"}
            if stopped:
                member["stop_signal"] = 19
            numbers[pid] = open_files(ckpt, image)
            shutil.move(image, os.path.join(job, f"{pid}.ckpt"))
        members.append(member)
    descriptions = []
    for pid, files in numbers.items():
        done = set()
        for fd, open_file in files.items():
            if open_file in done:
                continue
            done.add(open_file)
            for users in descriptions:
                other, other_file = users[0]["pid"], users[0]["open_file"]
                other_fd = next(f for f, o in numbers[other].items() if o == other_file)
                if other != pid and same_file(other, other_fd, pid, fd):
                    users.append({"pid": pid, "open_file": open_file})
                    break
            else:
                descriptions.append([{"pid": pid, "open_file": open_file}])
    manifest = {
        "format": "ckpt_rt job", "version": 1, "job": "00112233445566778899aabbccddeeff", "name": stat_of(root)["name"],
        "sequence": 1, "time_ns": time.time_ns(), "monotonic_ns": time.monotonic_ns(), "root": root, "members": members,
        "left_out": [], "descriptions": [{"users": u} for u in descriptions if len(u) > 1], "owners": [],
        "files": [{"name": os.path.basename(f), "bytes": os.path.getsize(f)} for f in glob.glob(job + "/*.ckpt")],
    }
    write_manifest(manifest, job)
    return manifest


def write_manifest(manifest, job):
    text = json.dumps(manifest, indent=1)
    text = text[:text.rindex("}")].rstrip() + ",\n "
    text += f'"checksum": "{xxhash.xxh3_64_hexdigest(text.encode())}"\n}}\n'
    path = os.path.join(job, "manifest.json")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
        f.write(text)


if __name__ == "__main__":
    make(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], [int(p) for p in sys.argv[5:]])
