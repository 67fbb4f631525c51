#!/usr/bin/env python3
"""Manifests of jobs, good ones and spoilt ones, to start the fuzzing of their reader from: make_manifests.py inputs.tar.xz"""
import copy, json, os, random, sys, tarfile, io
r = random.Random(7)
def member(pid, ppid, pgid, sid, **m):
    d = {"pid": pid, "ppid": ppid, "pgid": pgid, "sid": sid, "name": f"p{pid}", "image": f"{pid}.ckpt", "state": "running"}
    d.update(m)
    if d["state"] == "zombie": d.pop("image")
    return d
def manifest(members, root, **more):
    d = {"format": "ckpt_rt job", "version": 1, "job": "0123456789abcdef"*2, "name": "bash", "sequence": 3, "time_ns": 1, "monotonic_ns": 2,
         "root": root, "members": members, "left_out": [], "descriptions": [], "owners": [],
         "files": [{"name": m["image"], "bytes": 4096, "xxh3": "00112233aabbccdd"} for m in members if "image" in m]}
    d.update(more); return d
trees = {
 "one": manifest([member(10, 1, 9, 9)], 10),
 "pipeline": manifest([member(10,1,10,9), member(11,10,10,9), member(12,10,10,9)], 10, descriptions=[{"users":[{"pid":10,"open_file":1},{"pid":11,"open_file":2}]}]),
 "session": manifest([member(10,1,10,9), member(11,10,11,11), member(12,11,12,11), member(13,11,12,11)], 10),
 "daemon": manifest([member(10,1,10,9), member(20,1,20,20,orphan=True), member(21,1,20,20,orphan=True), member(23,1,22,22,orphan=True)], 10),
 "dead_group": manifest([member(10,1,10,9), member(12,10,11,9), member(13,10,11,9)], 10),
 "older_session": manifest([member(10,1,10,10), member(11,10,9,9), member(12,10,12,12), member(13,12,10,10)], 10),
 "zombies": manifest([member(10,1,10,9), member(11,10,10,9,state="zombie",exit_status=256), member(12,10,12,12,state="zombie",exit_status=9), member(13,10,12,12)], 10),
 "subreaper": manifest([member(10,1,10,9,subreaper=True), member(11,10,11,11), member(14,10,12,12), member(15,10,11,11)], 10),
 "stopped": manifest([member(10,1,10,9), member(11,10,10,9,state="stopped",stop_signal=19)], 10),
 "owner": manifest([member(10,1,10,9), member(11,10,10,9)], 10, owners=[{"object": 2**64-1, "pid": 11}], left_out=[{"pid":5,"name":"x","reason":"static"}]),
 "impossible": manifest([member(10,1,10,9), member(11,10,11,11), member(12,11,12,12), member(13,11,14,14), member(15,12,14,14)], 10),
}
values = [-1, 0, 1, 2**31, 2**63, 2**64-1, 1.5, "", "x", "../x", "a/b", ".", "\u0000", None, True, [], {}, [[]], "0"*300, 10, 11]
def paths(d, at=()):
    it = d.items() if isinstance(d, dict) else enumerate(d)
    for k, v in it:
        yield at + (k,)
        if isinstance(v, (dict, list)): yield from paths(v, at + (k,))
def mutate(d):
    d = copy.deepcopy(d)
    for _ in range(r.choice([1,1,1,2,3])):
        p = r.choice(list(paths(d)))
        o = d
        for k in p[:-1]: o = o[k]
        how = r.random()
        if how < .6: o[p[-1]] = r.choice(values)
        elif how < .75: del o[p[-1]]
        elif isinstance(o, list): o.append(copy.deepcopy(r.choice(o)))
        elif isinstance(o[p[-1]], int) : o[p[-1]] = r.choice([10,11,12,13,20,21,23])
    return d
out = {}
def text(d):
    t = json.dumps(d)
    return (t[:-1] + ', "checksum": "0"}').encode()
for n, d in trees.items(): out[n] = text(d)
for i in range(320):
    n = r.choice(list(trees)); out[f"{n}-{i:03}"] = text(mutate(trees[n]))
for i in range(60):
    t = bytearray(text(trees[r.choice(list(trees))]))
    for _ in range(r.choice([1,2,8])): t[r.randrange(len(t))] = r.randrange(256)
    out[f"bytes-{i:02}"] = bytes(t)
for i in range(20):
    t = text(trees[r.choice(list(trees))]); out[f"cut-{i:02}"] = t[:r.randrange(len(t))]
out["raw"] = b"!" + text(trees["one"])
out["empty"] = b""
out["deep"] = b"[" * 100000 + b', "checksum": "0"}'
out["deep2"] = b'{"a":' * 50000 + b'1, "checksum": "0"}'
with tarfile.open(sys.argv[1], "w:xz") as tar:
    for n in sorted(out):
        i = tarfile.TarInfo("inputs/" + n); i.size = len(out[n]); i.mode = 0o644
        tar.addfile(i, io.BytesIO(out[n]))
