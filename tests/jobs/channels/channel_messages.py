"""Programs whose processes exchange messages, or share one end of a channel (channel_programs.py)."""
import os
import select
import socket
import struct
import time
import zlib

from channel_streams import tcp_pair
from channel_support import Children, HERE, amount, bind, data, fail, poll_for, send_stream


# Messages.

def messages(kind, make, count=2500):
    a, b = make(kind)
    children = Children()
    n = amount(count)

    def length(i):
        return 1 + (i * 101) % 3000

    def talk(mine, other, out, into):
        other.close()
        mine.setblocking(False)
        sent = got = crc = 0
        poll = select.poll()
        while sent < n or got < n:
            poll_for(poll, mine, sent < n, got < n)
            for _, events in poll.poll():
                if events & select.POLLOUT and sent < n:
                    try:
                        mine.send(struct.pack("<I", sent) + data(out, sent * 5, length(sent)))
                        sent += 1
                    except BlockingIOError:
                        time.sleep(0.0002)
                if events & select.POLLIN and got < n:
                    try:
                        part = mine.recv(65536)
                    except BlockingIOError:
                        continue
                    if part != struct.pack("<I", got) + data(into, got * 5, length(got)):
                        fail(f"message {got} is wrong: {len(part)} bytes, number {part[:4].hex()}")
                    got += 1
                    crc = zlib.crc32(part, crc)
                    time.sleep(0.0005)
        return crc

    children.start(talk, a, b, 1, 2)
    children.start(talk, b, a, 2, 1)
    a.close()
    b.close()
    return children.wait()


def unix_pair(kind):
    return socket.socketpair(socket.AF_UNIX, kind)


def dgram_named(kind):
    ends = [socket.socket(socket.AF_UNIX, kind) for _ in range(2)]
    names = ["one.sock", "\0" + HERE]
    for end, name in zip(ends, names):
        bind(end, name)
    for end, name in zip(ends, reversed(names)):
        end.connect(name)
    return ends


def seqpacket_pair():
    return messages(socket.SOCK_SEQPACKET, unix_pair)


def dgram_pair():
    return messages(socket.SOCK_DGRAM, unix_pair)


def dgram_names():
    return messages(socket.SOCK_DGRAM, dgram_named)


def udp(family, address):
    """Datagrams with a window, which the receiver opens again: the kernel drops none."""
    ends = [socket.socket(family, socket.SOCK_DGRAM) for _ in range(2)]
    for end in ends:
        end.bind((address, 0))
    for end, other in zip(ends, reversed(ends)):
        end.connect(other.getsockname())
    children = Children()
    n, window = amount(2500), 40

    def sender(mine, other):
        other.close()
        allowed = window
        for i in range(n):
            while i >= allowed:
                allowed = struct.unpack("<I", mine.recv(100))[0] + window
            mine.send(struct.pack("<I", i) + data(5, i * 3, 1 + i * 37 % 1200))
        while allowed < n + window:
            allowed = struct.unpack("<I", mine.recv(100))[0] + window
        return allowed

    def receiver(mine, other):
        other.close()
        crc = 0
        for i in range(n):
            part = mine.recv(65536)
            if part != struct.pack("<I", i) + data(5, i * 3, 1 + i * 37 % 1200):
                fail(f"datagram {i} is wrong: {len(part)} bytes, number {part[:4].hex()}")
            crc = zlib.crc32(part, crc)
            if (i + 1) % 10 == 0 or i + 1 == n:
                mine.send(struct.pack("<I", i + 1))
            time.sleep(0.0005)
        return crc

    children.start(sender, *ends)
    children.start(receiver, ends[1], ends[0])
    for end in ends:
        end.close()
    return children.wait()


def udp4():
    return udp(socket.AF_INET, "127.0.0.1")


def udp6():
    return udp(socket.AF_INET6, "::1")


def udp_cork():
    """Datagrams that are put together from parts: half of one is in the kernel most of the time."""
    UDP_CORK = 1
    ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for end in ends:
        end.bind(("127.0.0.1", 0))
    for end, other in zip(ends, reversed(ends)):
        end.connect(other.getsockname())
    children = Children()
    n = amount(120)

    def sender():
        for i in range(n):
            ends[0].setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1)
            for part in range(3):
                ends[0].send(data(i, part * 100, 100))
                time.sleep(0.003)
            ends[0].setsockopt(socket.IPPROTO_UDP, UDP_CORK, 0)
            ends[0].recv(1)
        return "sent"

    def receiver():
        crc = 0
        for i in range(n):
            part = ends[1].recv(65536)
            if part != data(i, 0, 300):
                fail(f"datagram {i} is wrong: {len(part)} bytes")
            crc = zlib.crc32(part, crc)
            ends[1].send(b"!")
        return crc

    children.start(sender)
    children.start(receiver)
    return children.wait()


# The same end in many processes.

def shared_ends(make, kind):
    """Two processes write into one end, three read from the other; all hold both."""
    a, b = make(kind)
    children = Children()
    n = amount(2000)

    def writer(which):
        for i in range(n):
            a.send(struct.pack("<BI", which, i) + data(which, i * 5, 1 + (i * 101) % 2000))
        return "sent"

    def reader():
        total = count = 0
        while True:
            part = b.recv(65536)
            if len(part) == 1:
                break
            which, i = struct.unpack_from("<BI", part)
            if part[5:] != data(which, i * 5, 1 + (i * 101) % 2000):
                fail(f"message {which}.{i} is wrong: {len(part)} bytes")
            total = (total + zlib.crc32(part)) & 0xffffffff
            count += 1
            time.sleep(0.0005)
        return count, total

    for which in range(2):
        children.start(writer, which)
    writers, children.all = children.all, []
    for _ in range(3):
        children.start(reader)
    readers, children.all = children.all, writers
    out = children.wait()
    for _ in range(3):
        a.send(b"e")
    children.all = readers
    found = [eval(r) if r.startswith("(") else r for r in children.wait()]  # pylint: disable=eval-used
    if any(isinstance(r, str) for r in found):
        return out + found
    return out + [sum(r[0] for r in found), sum(r[1] for r in found) & 0xffffffff]


def shared_seqpacket():
    return shared_ends(unix_pair, socket.SOCK_SEQPACKET)


def shared_dgram():
    return shared_ends(unix_pair, socket.SOCK_DGRAM)


def shared_stream():
    """Parent and children hold both ends of a TCP connection and of a pair; one writes, others read by turns."""
    out = []
    for make in (socket.socketpair, tcp_pair):
        a, b = make()
        children = Children()
        total = amount(2_000_000)
        turn = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        turn[0].send(struct.pack("<QI", 0, 0))

        def writer():
            send_stream(a.send, 6, total)  # pylint: disable=cell-var-from-loop
            return "sent"

        def reader():
            done = 0
            while True:
                state = turn[1].recv(100)  # pylint: disable=cell-var-from-loop
                got, crc = struct.unpack("<QI", state)
                if got < total:  # pylint: disable=cell-var-from-loop
                    part = b.recv(1 + got * 31 % 20000)  # pylint: disable=cell-var-from-loop
                    if part != data(6, got, len(part)):
                        fail(f"wrong bytes near {got}")
                    got, crc = got + len(part), zlib.crc32(part, crc)
                    done += 1
                turn[0].send(struct.pack("<QI", got, crc))  # pylint: disable=cell-var-from-loop
                if got >= total:  # pylint: disable=cell-var-from-loop
                    return crc
                time.sleep(0.001)

        children.start(writer)
        for _ in range(3):
            children.start(reader)
        out += children.wait()
    return out


def packets():
    """Pipes of packets (O_DIRECT): one that is full nearly always, and one with at most one packet in it."""
    many, single, turns = os.pipe2(os.O_DIRECT), os.pipe2(os.O_DIRECT), os.pipe()
    children = Children()
    n = amount(1500)

    def packet(i):
        return struct.pack("<I", i) + data(1, i * 5, 1 + (i * 101) % 700)

    def keep(*ends):
        for fd in {*many, *single, *turns} - {*ends}:
            os.close(fd)

    def writer():
        keep(many[1])
        for i in range(n):
            os.write(many[1], packet(i))
        return "sent"

    def reader():
        keep(many[0])
        crc = 0
        for i in range(n):
            part = os.read(many[0], 65536)
            if part != packet(i):
                fail(f"packet {i} is wrong: {len(part)} bytes, number {part[:4].hex()}")
            crc = zlib.crc32(part, crc)
            time.sleep(0.0005)
        return crc

    def single_writer():
        keep(single[1], turns[0])
        for i in range(n):
            os.write(single[1], packet(i))
            os.read(turns[0], 1)
        return "sent"

    def single_reader():
        keep(single[0], turns[1])
        crc = 0
        for i in range(n):
            time.sleep(0.0005)
            part = os.read(single[0], 4)  # what one read leaves of a packet is gone
            if part != packet(i)[:4]:
                fail(f"single packet {i} is wrong: {part.hex()}")
            crc = zlib.crc32(part, crc)
            os.write(turns[1], b"t")
        return crc

    for work in (writer, reader, single_writer, single_reader):
        children.start(work)
    for fd in (*many, *single, *turns):
        os.close(fd)
    return children.wait()
