"""What the programs of channel_programs.py share: numbered bytes, and children that tell what they found."""
import contextlib
import os
import random
import select
import socket
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


@contextlib.contextmanager
def listening(family, address):
    with socket.socket(family) as s:
        bind(s, address)
        s.listen(16)
        yield s, s.getsockname()


def require_part(seed, got, part, total):
    """The next bytes of a stream, and they are right."""
    if not part:
        fail(f"stream {seed} ended at {got} of {total}")
    if part != data(seed, got, len(part)):
        fail(f"stream {seed}: wrong bytes near {got}")


def poll_for(poll, sock, send, receive):
    poll.register(sock, (select.POLLOUT if send else 0) | (select.POLLIN if receive else 0))


def linger(seconds):
    """The state that the program is in lasts, so that some of the checkpoints, which come at any instant, find it. This orders nothing."""
    time.sleep(seconds)


def receive_stream(read, seed, total, pause=0.0006, to_end=False):
    """The checksum of all bytes. They come as they are sent, in any portions."""
    got, crc = 0, 0
    while got < total:
        part = read(1 + (got * 31 + seed) % 40000)
        require_part(seed, got, part, total)
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
        poll_for(poll, sock, sent < total, got < total)
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
                require_part(in_seed, got, part, total)
                got += len(part)
                crc = zlib.crc32(part, crc)
                time.sleep(0.0005)
            if events & (select.POLLERR | select.POLLNVAL):
                fail(f"stream {in_seed}: poll says {events:#x} at {got}, error {sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)}")
    sock.setblocking(True)
    return crc


def amount(n):
    return n * AMOUNT // 100
