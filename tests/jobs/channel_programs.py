#!/usr/bin/env python3
"""Processes that exchange numbered bytes and messages over one kind of channel: channel_programs.py KIND
Every receiver compares each byte with the one that it must be, and the first process prints the sums at the end. So
whatever is lost, doubled or reordered shows, as an error or as another output. Receivers are slow: the channels are
full nearly always.
"""
import array
import errno
import os
import random
import select
import socket
import struct
import sys
import time
import zlib

TABLE = random.Random(7).randbytes(1 << 18)
AMOUNT = int(os.environ.get("AMOUNT", "100"))  # percent of what each kind exchanges
HERE = f"ckpt-{os.getpid()}-{time.time_ns()}"


def data(seed, at, n):
    """n bytes from place `at` of the endless stream `seed`."""
    at = (at + seed * 7919) % len(TABLE)
    out = TABLE[at:at + n]
    while len(out) < n:
        out += TABLE[:n - len(out)]
    return out


def remove(name):
    """As servers do: what is there is of a former run. So it is after a restart, of a name made after the checkpoint."""
    if os.path.lexists(name):
        os.unlink(name)


def bind(sock, at):
    if isinstance(at, str) and at[0] != "\0":
        remove(at)
    elif sock.family == socket.AF_INET and sock.type == socket.SOCK_STREAM and os.geteuid() != 0:
        # Without it the port is kept for a minute; only root can free it earlier.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(at)


def fail(text):
    sys.stderr.write(f"{sys.argv[1]}: process {os.getpid()}: {text}\n")
    os._exit(3)


def send_stream(write, seed, total):
    sent = 0
    while sent < total:
        sent += write(data(seed, sent, min(65536, total - sent)))


def receive_stream(read, seed, total, pause=0.0006, to_end=False):
    """The checksum of all bytes. They come as they are sent, in any portions."""
    got, crc = 0, 0
    while got < total:
        part = read(1 + (got * 31 + seed) % 40000)
        if not part:
            fail(f"stream {seed} ended at {got} of {total}")
        if part != data(seed, got, len(part)):
            fail(f"stream {seed}: wrong bytes near {got}")
        got += len(part)
        crc = zlib.crc32(part, crc)
        time.sleep(pause)
    if to_end and read(1):
        fail(f"stream {seed} goes on after {total}")
    return crc


class Children:
    """Each tells what it has found through a pipe of its own."""

    def __init__(self):
        self.all = []

    def start(self, work, *args):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(read)
                for _, other in self.all:
                    os.close(other)
                text = repr(work(*args))
                os.write(write, text.encode())
                os._exit(0)
            except BaseException as e:  # pylint: disable=broad-except
                fail(f"{type(e).__name__}: {e}")
        os.close(write)
        self.all.append((pid, read))

    def wait(self):
        results = []
        for pid, read in self.all:
            text = b""
            while part := os.read(read, 65536):
                text += part
            os.close(read)
            status = os.waitpid(pid, 0)[1]
            results.append(text.decode() if status == 0 else f"status {status}")
        self.all = []
        return results


def both_ways(sock, out_seed, in_seed, total):
    """Sends and receives at once, without blocking."""
    sock.setblocking(False)
    sent = got = crc = 0
    poll = select.poll()
    while sent < total or got < total:
        poll.register(sock, (select.POLLOUT if sent < total else 0) | (select.POLLIN if got < total else 0))
        for _, events in poll.poll():
            if events & select.POLLOUT and sent < total:
                try:
                    sent += sock.send(data(out_seed, sent, min(50000, total - sent)))
                except BlockingIOError:
                    pass
            if events & select.POLLIN and got < total:
                try:
                    part = sock.recv(1 + (got * 17 + in_seed) % 30000)
                except BlockingIOError:
                    continue
                if not part:
                    fail(f"stream {in_seed} ended at {got} of {total}")
                if part != data(in_seed, got, len(part)):
                    fail(f"stream {in_seed}: wrong bytes near {got}")
                got += len(part)
                crc = zlib.crc32(part, crc)
                time.sleep(0.0005)
            if events & (select.POLLERR | select.POLLNVAL):
                fail(f"stream {in_seed}: poll says {events:#x} at {got}, error {sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)}")
    sock.setblocking(True)
    return crc


def amount(n):
    return n * AMOUNT // 100


# Connected streams.

def stream_pair():
    a, b = socket.socketpair()
    children = Children()

    def one(mine, other, out, into):
        other.close()
        return both_ways(mine, out, into, amount(12_000_000))

    children.start(one, a, b, 1, 2)
    children.start(one, b, a, 2, 1)
    a.close()
    b.close()
    return children.wait()


def clients_of(listener, connect, count=3, total=5_000_000):
    """A server that forks for each connection, as many do; the listening socket is everybody's."""
    children = Children()
    total = amount(total)

    def client(i):
        listener.close()
        with connect() as sock:
            sock.sendall(bytes([i]))
            return both_ways(sock, 10 + i, 20 + i, total)

    def server():
        served = Children()

        def serve(sock):
            i = sock.recv(1)[0]
            return i, both_ways(sock, 20 + i, 10 + i, total)

        for _ in range(count):
            sock, _ = listener.accept()
            served.start(serve, sock)
            sock.close()
        return sorted(served.wait())

    children.start(server)
    for i in range(count):
        children.start(client, i)
    listener.close()
    return children.wait()


def unix_path():
    with socket.socket(socket.AF_UNIX) as s:
        bind(s, "server.sock")
        s.listen(8)

        def connect():
            c = socket.socket(socket.AF_UNIX)
            c.connect("server.sock")
            return c

        return clients_of(s, connect)


def unix_abstract():
    with socket.socket(socket.AF_UNIX) as s:
        s.bind("\0" + HERE)
        s.listen(8)

        def connect():
            c = socket.socket(socket.AF_UNIX)
            c.connect("\0" + HERE)
            return c

        return clients_of(s, connect)


def tcp(family, address):
    with socket.socket(family) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind((address, 0))
        s.listen(8)
        port = s.getsockname()[1]

        def connect():
            c = socket.socket(family)
            c.connect((address, port))
            return c

        return clients_of(s, connect)


def tcp4():
    return tcp(socket.AF_INET, "127.0.0.1")


def tcp6():
    return tcp(socket.AF_INET6, "::1")


def tcp_options():
    """Corked and small-buffered ends: what has not been sent must come all the same."""
    s = socket.create_server(("127.0.0.1", 0))
    children = Children()
    total = amount(3_000_000)

    def client():
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 5000)
        c.connect(s.getsockname())
        s.close()
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
        crc = both_ways(c, 1, 2, total)
        return (crc, c.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK), c.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
                c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))

    def server():
        c, _ = s.accept()
        s.close()
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        crc = both_ways(c, 2, 1, total)
        return crc, c.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), c.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

    children.start(server)
    children.start(client)
    s.close()
    return children.wait()


def half_closed(make):
    """The client has ended its stream long before the server has read it; the answer comes the other way."""
    a, b = make()
    children = Children()
    total = amount(150_000)
    rounds = 60

    def client():
        b.close()
        send_stream(a.send, 3, total)
        a.shutdown(socket.SHUT_WR)
        return receive_stream(a.recv, 4, total, to_end=True)

    def server():
        a.close()
        crc = 0
        for _ in range(rounds):
            time.sleep(0.004)  # its stream has ended, all of it waits here
        crc = receive_stream(b.recv, 3, total, 0.004, to_end=True)
        send_stream(b.send, 4, total)
        b.close()
        time.sleep(0.2)  # closed: what it has sent is still to be read
        return crc

    children.start(client)
    children.start(server)
    a.close()
    b.close()
    return children.wait()


def tcp_pair():
    with socket.create_server(("127.0.0.1", 0)) as s:
        a = socket.create_connection(s.getsockname())
        b, _ = s.accept()
    return a, b


def half_closed_unix():
    return half_closed(socket.socketpair)


def half_closed_tcp():
    return half_closed(tcp_pair)


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
            poll.register(mine, (select.POLLOUT if sent < n else 0) | (select.POLLIN if got < n else 0))
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


def prefork():
    """Several processes accept on one listening socket."""
    out = []
    for family, address in ((socket.AF_UNIX, "\0" + HERE), (socket.AF_INET, ("127.0.0.1", 0))):
        with socket.socket(family) as s:
            bind(s, address)
            s.listen(16)
            at = s.getsockname()
            children = Children()
            n = amount(150)

            def worker():
                served = 0
                while True:
                    c, _ = s.accept()  # pylint: disable=cell-var-from-loop
                    with c:
                        ask = c.recv(8)
                        if ask == b"end":
                            return "worker"
                        seed, total = struct.unpack("<II", ask)
                        send_stream(c.send, seed, total)
                        c.shutdown(socket.SHUT_WR)
                        c.recv(1)
                        served += 1

            def client(k):
                crc = 0
                for i in range(n):  # pylint: disable=cell-var-from-loop
                    with socket.socket(family) as c:  # pylint: disable=cell-var-from-loop
                        c.connect(at)  # pylint: disable=cell-var-from-loop
                        total = 1 + i * 1777 % 60000
                        c.send(struct.pack("<II", k * 100 + i, total))
                        crc = zlib.crc32(b"%d" % receive_stream(c.recv, k * 100 + i, total, 0.0003, to_end=True), crc)
                return crc

            workers = Children()
            for _ in range(3):
                workers.start(worker)
            for k in range(2):
                children.start(client, k)
            out += children.wait()
            for _ in range(3):
                with socket.socket(family) as c:
                    c.connect(at)
                    c.send(b"end")
                    c.recv(1)
            out += workers.wait()
    return out


# Names in the file system, descriptors under way.

def fifo():
    remove("one.fifo")
    os.mkfifo("one.fifo")
    children = Children()
    total = amount(6_000_000)

    def writer():
        fd = os.open("one.fifo", os.O_WRONLY)
        send_stream(lambda part: os.write(fd, part), 8, total)
        return "sent"

    def reader():
        fd = os.open("one.fifo", os.O_RDONLY)
        return receive_stream(lambda n: os.read(fd, n), 8, total, 0.001, to_end=True)

    children.start(writer)
    children.start(reader)
    return children.wait()


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


def rights():
    """Pipes with bytes in them, files and connected sockets are sent through a socket, and wait there a while."""
    out = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        a, b = socket.socketpair(socket.AF_UNIX, kind)
        children = Children()
        n, ahead = amount(120), 4

        def sender():
            b.close()  # pylint: disable=cell-var-from-loop
            for i in range(n):  # pylint: disable=cell-var-from-loop
                r, w = os.pipe()
                os.write(w, data(1, i * 11, 500 + i))
                os.close(w)
                far, near = socket.socketpair()
                near.send(data(2, i * 13, 300 + i))
                with open(f"file{i}", "wb+", buffering=0) as f:
                    f.write(data(3, i * 17, 100 + i))
                    f.seek(i % 50)
                    fds = array.array("i", [r, far.fileno(), f.fileno()])
                    a.sendmsg([struct.pack("<I", i)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])  # pylint: disable=cell-var-from-loop
                os.close(r)
                far.close()
                near.close()
                os.unlink(f"file{i}")
                if i >= ahead:
                    a.recv(1)  # pylint: disable=cell-var-from-loop
            for _ in range(min(n, ahead)):  # pylint: disable=cell-var-from-loop
                a.recv(1)  # pylint: disable=cell-var-from-loop
            return "sent"

        def receiver():
            a.close()  # pylint: disable=cell-var-from-loop
            crc = 0
            for i in range(n):  # pylint: disable=cell-var-from-loop
                time.sleep(0.004)
                part, control, _, _ = b.recvmsg(4, 200)  # pylint: disable=cell-var-from-loop
                if part != struct.pack("<I", i):
                    fail(f"message {i} is {part.hex()}")
                fds = array.array("i", control[0][2])
                if len(fds) != 3:
                    fail(f"message {i} has {len(fds)} descriptors")
                texts = [os.read(fds[0], 5000), socket.socket(fileno=os.dup(fds[1])).recv(5000), os.read(fds[2], 5000)]
                if texts != [data(1, i * 11, 500 + i), data(2, i * 13, 300 + i), data(3, i * 17, 100 + i)[i % 50:]]:
                    fail(f"message {i}: wrong bytes {[len(t) for t in texts]}")
                if os.read(fds[0], 1) or os.read(fds[1], 1):
                    fail(f"message {i}: no end")
                for fd in fds:
                    os.close(fd)
                for t in texts:
                    crc = zlib.crc32(t, crc)
                b.send(b"x")  # pylint: disable=cell-var-from-loop
            return crc

        children.start(sender)
        children.start(receiver)
        a.close()
        b.close()
        out += children.wait()
    return out


def backlog(family, address):
    """Connections that wait for a server which accepts late. Nothing is written before they are accepted."""
    with socket.socket(family) as s:
        bind(s, address)
        s.listen(16)
        at = s.getsockname()
        children = Children()
        total, count = amount(200_000), 6

        def client(i):
            with socket.socket(family) as c:
                c.connect(at)
                head = c.recv(1)  # the server speaks first
                c.sendall(bytes([i]))
                return head, receive_stream(c.recv, 30 + i, total, to_end=True)

        def server():
            seen = []
            for _ in range(count):
                time.sleep(0.15)
                c, _ = s.accept()
                with c:
                    c.send(b"!")
                    i = c.recv(1)[0]
                    seen.append(i)
                    send_stream(c.send, 30 + i, total)
            return sorted(seen)

        for i in range(count):
            children.start(client, i)
        children.start(server)
        return children.wait()


def backlog_unix():
    return backlog(socket.AF_UNIX, "late.sock")


def backlog_tcp():
    return backlog(socket.AF_INET, ("127.0.0.1", 0))


def backlog_bytes(family, address):
    """As above, but each client writes before it is accepted."""
    with socket.socket(family) as s:
        bind(s, address)
        s.listen(16)
        at = s.getsockname()
        children = Children()
        total, count = amount(30_000), 40

        def client(k):
            for i in range(k, count, 2):
                with socket.socket(family) as c:
                    c.connect(at)
                    c.sendall(struct.pack("<I", i))
                    send_stream(c.send, i, total)
                    c.recv(1)
            return "sent"

        def server():
            crc = 0
            for _ in range(count):
                time.sleep(0.01)
                c, _ = s.accept()
                with c:
                    i = struct.unpack("<I", c.recv(4))[0]
                    crc ^= receive_stream(c.recv, i, total)
                    c.send(b"!")
                time.sleep(0.02)
            return crc

        children.start(server)
        for k in range(2):
            children.start(client, k)
        return children.wait()


def backlog_bytes_unix():
    return backlog_bytes(socket.AF_UNIX, "late.sock")


def backlog_bytes_tcp():
    return backlog_bytes(socket.AF_INET, ("127.0.0.1", 0))


def shared_epoll():
    """Children wait on an epoll set that their parent made: pipes of which each event goes to one of them."""
    children, feeders = Children(), Children()
    pipes = [os.pipe() for _ in range(4)]
    quit_pipe, done_pipe = os.pipe(), os.pipe()
    queue = select.epoll()
    for r, _ in pipes:
        os.set_blocking(r, False)
        queue.register(r, select.EPOLLIN | select.EPOLLONESHOT)
    queue.register(quit_pipe[0], select.EPOLLIN)
    n = amount(500)

    def worker():
        count = total = 0
        while True:
            for fd, _ in queue.poll(maxevents=1):
                if fd == quit_pipe[0]:
                    return count, total
                k = [r for r, _ in pipes].index(fd)
                part = os.read(fd, 4)
                if part == b"done":
                    os.write(done_pipe[1], b"x")
                    continue
                total = (total + zlib.crc32(bytes([k]) + part)) & 0xffffffff
                count += 1
                time.sleep(0.001)
                queue.modify(fd, select.EPOLLIN | select.EPOLLONESHOT)

    def feeder(k):
        for i in range(n):
            os.write(pipes[k][1], struct.pack("<I", i))
        os.write(pipes[k][1], b"done")
        return "fed"

    for _ in range(3):
        children.start(worker)
    for k in range(4):
        feeders.start(feeder, k)
    out = feeders.wait()
    for _ in pipes:
        os.read(done_pipe[0], 1)
    os.write(quit_pipe[1], b"q")
    found = [eval(r) if r.startswith("(") else r for r in children.wait()]  # pylint: disable=eval-used
    if any(isinstance(r, str) for r in found):
        return out + found
    return out + [sum(r[0] for r in found), sum(r[1] for r in found) & 0xffffffff]


KINDS = [stream_pair, unix_path, unix_abstract, tcp4, tcp6, tcp_options, half_closed_unix, half_closed_tcp, seqpacket_pair,
         dgram_pair, dgram_names, udp4, udp6, udp_cork, shared_seqpacket, shared_dgram, shared_stream, prefork, fifo, packets, rights,
         backlog_unix, backlog_tcp, backlog_bytes_unix, backlog_bytes_tcp, shared_epoll]

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in [k.__name__ for k in KINDS]:
        sys.exit(f"usage: channel_programs.py {'|'.join(k.__name__ for k in KINDS)}")
    print(sys.argv[1], *globals()[sys.argv[1]](), flush=True)
