"""Datagrams between hosts, and the list of interfaces, after a restart on other hosts: all addresses are those that the job knows."""
import os
import unittest

import over_hosts
from over_hosts import ON, RESTART, wait_for

# sendmmsg, recvmmsg and getifaddrs by libc's names: python has none of them.
CALLS = """
import ctypes, os, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
class iovec(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
class msghdr(ctypes.Structure):
    _fields_ = [('name', ctypes.c_void_p), ('namelen', ctypes.c_uint), ('iov', ctypes.POINTER(iovec)), ('iovlen', ctypes.c_size_t),
                ('control', ctypes.c_void_p), ('controllen', ctypes.c_size_t), ('flags', ctypes.c_int)]
class mmsghdr(ctypes.Structure):
    _fields_ = [('header', msghdr), ('length', ctypes.c_uint)]
class ifaddrs(ctypes.Structure):
    pass
ifaddrs._fields_ = [('next', ctypes.POINTER(ifaddrs)), ('name', ctypes.c_char_p), ('flags', ctypes.c_uint), ('address', ctypes.c_void_p)]
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)
def say(*words):
    os.write(1, (' '.join(map(str, words)) + '\\n').encode())
def messages(n):
    names = [ctypes.create_string_buffer(16) for _ in range(n)]
    texts = [ctypes.create_string_buffer(64) for _ in range(n)]
    parts = [iovec(ctypes.addressof(t), 64) for t in texts]
    all = (mmsghdr * n)()
    for m, name, part in zip(all, names, parts):
        m.header = msghdr(ctypes.addressof(name), 16, ctypes.pointer(part), 1, None, 0, 0)
    return all, names, texts, parts
def send_many(s, to, said):
    all, names, texts, parts = messages(len(said))
    for i, text in enumerate(said):
        names[i].raw = struct.pack('=H', socket.AF_INET) + struct.pack('>H', to[1]) + socket.inet_aton(to[0]) + bytes(8)
        texts[i].raw = text
        parts[i].length = len(text)
    assert libc.sendmmsg(s.fileno(), all, len(said), 0) == len(said), ctypes.get_errno()
    assert [m.length for m in all] == [len(t) for t in said]
def receive_many(s, n):
    all, names, texts, parts = messages(n)
    got = libc.recvmmsg(s.fileno(), all, n, 0, None)
    assert got == n, (got, ctypes.get_errno())
    return [(socket.inet_ntoa(names[i].raw[4:8]), texts[i].raw[:all[i].length].decode()) for i in range(n)]
def own_addresses():
    first = ctypes.POINTER(ifaddrs)()
    assert libc.getifaddrs(ctypes.byref(first)) == 0
    found, at = [], first
    while at:
        if at.contents.address:
            raw = ctypes.string_at(at.contents.address, 16)
            if struct.unpack('=H', raw[:2])[0] == socket.AF_INET and raw[4] != 127:
                found.append(socket.inet_ntoa(raw[4:8]))
        at = at.contents.next
    libc.freeifaddrs(first)
    return found
"""
SERVER = CALLS + """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('', 5003))
open('bound', 'w').close()
wait('restarted')
say('server', own_addresses(), sorted(receive_many(s, 2)))
text, address = s.recvfrom(100)
say('server', text.decode(), address[0])
send_many(s, address, [b'first', b'second'])
"""
CLIENT = CALLS + """
wait('bound')
server = socket.gethostbyname('h2')
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
send_many(s, (server, 5003), [b'waits', b'waits too'])
open('sent', 'w').close()
wait('restarted')
send_many(s, (server, 5003), [b'sent later'])
say('client', own_addresses(), sorted(receive_many(s, 2)))
"""


class Datagrams(over_hosts.OverHosts):
    count = 4

    def test_on_other_hosts(self):
        for name, text in (("server", SERVER), ("client", CLIENT)):
            with open(f"{self.dir}/{name}.py", "w", encoding="ascii") as f:
                f.write(text)
        job = self.run_job("sh", "-c", f"{ON} h2 python3 server.py & python3 client.py && wait $!")
        wait_for("the messages", lambda: os.path.exists(self.dir + "/sent") or job.poll() is not None)
        wait_for("them in the queue", lambda: self.hosts.run("h2", "ss", "-Hun", "sport", "=", "5003", "-a").stdout.split()[1:2] > ["0"] or
                 job.poll() is not None)
        self.leads(job.pid)
        self.now(job.pid)
        self.kill_all(job)
        job = self.start([RESTART, "--hosts", "h3,h4", "--launch", self.hosts.launch, self.images], "back")
        open(self.dir + "/restarted", "w").close()
        self.assertEqual(job.wait(240), 0, self.said("back"))
        h1, h2 = self.hosts.address("h1"), self.hosts.address("h2")
        self.assertEqual(sorted(self.texts["back"][0].decode().splitlines()),
                         [f"client ['{h1}'] [('{h2}', 'first'), ('{h2}', 'second')]", f"server ['{h2}'] [('{h1}', 'waits'), ('{h1}', 'waits too')]",
                          f"server sent later {h1}"], self.said("back"))


if __name__ == "__main__":
    unittest.main()
