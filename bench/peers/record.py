"""The record files of bench/gaps (bench/gaps/recorder.h)."""

import struct


def read_record(path):
    """Of each thread: its gaps [(begin, length)] and ticks [(at, steps)], ns."""
    data, at, threads = path.read_bytes(), 0, []
    while at < len(data):
        gaps, ticks, _ = struct.unpack_from("QQQ", data, at)
        at += 24
        one = [struct.unpack_from("qq", data, at + 16 * i) for i in range(gaps)]
        at += 16 * gaps
        two = [struct.unpack_from("qQ", data, at + 16 * i) for i in range(ticks)]
        at += 16 * ticks
        threads.append((one, two))
    return threads
