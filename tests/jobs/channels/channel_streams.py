"""Programs whose processes exchange bytes over connected streams (channel_programs.py)."""
import array
import os
import socket
import struct
import time
import zlib

from channel_support import Children, HERE, amount, bind, both_ways, data, fail, linger, receive_stream, remove, send_stream


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
            linger(0.004)  # its stream has ended, all of it waits here
        crc = receive_stream(b.recv, 3, total, 0.004, to_end=True)
        send_stream(b.send, 4, total)
        b.close()
        linger(0.2)  # closed: what it has sent is still to be read
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
                # Every other one never has a name: what is opened while a checkpoint is prepared, and removed after it, is not kept.
                how = os.O_RDWR | (os.O_TMPFILE if i % 2 == 0 else os.O_CREAT | os.O_TRUNC)
                with open(os.open("." if i % 2 == 0 else f"file{i}", how, 0o600), "wb+", buffering=0) as f:
                    f.write(data(3, i * 17, 100 + i))
                    f.seek(i % 50)
                    fds = array.array("i", [r, far.fileno(), f.fileno()])
                    a.sendmsg([struct.pack("<I", i)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])  # pylint: disable=cell-var-from-loop
                os.close(r)
                far.close()
                near.close()
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
