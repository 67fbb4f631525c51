"""Programs with servers: connections that wait to be accepted, and what forked workers share (channel_programs.py)."""
import os
import select
import socket
import struct
import time
import zlib

from channel_support import Children, HERE, amount, linger, listening, receive_stream, send_stream


def prefork():
    """Several processes accept on one listening socket."""
    out = []
    for family, address in ((socket.AF_UNIX, "\0" + HERE), (socket.AF_INET, ("127.0.0.1", 0))):
        with listening(family, address) as (s, at):
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


def backlog(family, address):
    """Connections that wait for a server which accepts late. Nothing is written before they are accepted."""
    with listening(family, address) as (s, at):
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
                linger(0.15)
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
    with listening(family, address) as (s, at):
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
