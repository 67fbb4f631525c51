"""A network of the test's own, and System V objects of its own.

A program that comes back wants the ports that it had. Between its end and its return the kernel may give them to any process that asks for
a free port, such as another test. In a network namespace of its own, a test meets nobody else's ports, nor their abstract socket names. The same holds for the numbers of shared memory, semaphores and message
queues, and an IPC namespace.
"""
import ctypes
import fcntl
import socket
import struct

CLONE_NEWNET, CLONE_NEWIPC = 0x40000000, 0x08000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def enter_own_network():
    """For this process and those that it starts from now on. Without the right to it, they stay in the network they share with all."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNET) != 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        name, flags = struct.unpack("16sH14x", fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0)))
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sH14x", name, flags | IFF_UP))


def enter_own_ipc():
    """The same for System V objects and POSIX message queues."""
    ctypes.CDLL(None).unshare(CLONE_NEWIPC)
