"""ckpt back: a running program goes back, or is left as it was with one line that says why."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

from support import CkptTest, LIBRARY, NOT_FOUND, NO_PROCESS, UNSUPPORTED, USAGE, clean_environment

# Does what a line on its standard input says, and answers with a line.
VICTIM = r"""
import ctypes, os, select, signal, socket, struct, subprocess, sys, threading, mmap
state = {"n": 0, "files": {}, "children": []}
stop = threading.Event()
def handler(*_): state["n"] += 1000
while True:
    line = sys.stdin.readline()
    if not line: break
    try:
        result = eval(line)
    except Exception as error:
        result = repr(error)
    sys.stdout.write(repr(result) + "\n")
    sys.stdout.flush()
"""

BY_ITSELF = r"""
import ctypes, os, sys
lib = ctypes.CDLL(None)
lib.ckpt_rt_back.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
steps = []
text = ctypes.create_string_buffer(400)
print("refused", lib.ckpt_rt_back(b"/nowhere.ckpt", text, 400), text.value.decode(), flush=True)
lib.ckpt_rt_checkpoint(None)
n = lib.ckpt_rt_restarted()
print("here", n, len(steps), flush=True)
if n < 3:
    steps.append(bytes(50_000_000))
    print("failed", lib.ckpt_rt_back(None, text, 400), text.value.decode(), flush=True)
"""


class BackTest(CkptTest):
    def start(self, **settings):
        images = self.path("images")
        env = clean_environment(LD_PRELOAD=LIBRARY, CKPT_DIR=images, **settings)
        program = subprocess.Popen([sys.executable, "-u", "-c", VICTIM], env=env, cwd=self.directory, text=True,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)

        def end():
            program.kill()
            program.wait()
            program.stdin.close()
            program.stdout.close()
        self.addCleanup(end)
        self.program = program
        self.assertEqual(self.do("1 + 1"), "2")
        return program.pid

    def do(self, line):
        self.program.stdin.write(line + "\n")
        self.program.stdin.flush()
        return self.program.stdout.readline().strip()

    def now(self, pid):
        answer = self.ckpt("now", "--json", pid)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)["image"]

    def back(self, pid, *more):
        answer = self.ckpt("back", "--json", *more, pid)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)

    def await_tasks(self, pid, tasks):
        """Other threads end, and the agent, which has answered before."""
        end = time.monotonic() + 120
        while (now := set(os.listdir(f"/proc/{pid}/task"))) != tasks and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(now, tasks)

    def descriptors(self, pid):
        return {int(fd): os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}

    def test_memory_descriptors_and_settings(self):
        for increments in ("0", "8"):
            with self.subTest(increments=increments):
                pid = self.start(CKPT_INCREMENTS=increments)
                path = self.path(f"file.{increments}")
                self.do(f"state['files'].update(a=open({path!r}, 'w+b', buffering=0))")
                self.do("state['files']['a'].write(b'0123456789')")
                self.do("state['files']['a'].seek(4)")
                self.do("state['files'].update(pipe=os.pipe())")
                self.do("os.write(state['files']['pipe'][1], b'in the pipe')")
                self.do("state.update(n=7)")
                before = self.descriptors(pid)
                self.now(pid)
                self.do("state.update(n=8, more=bytearray(30_000_000))")
                self.do("state['files']['a'].seek(0, 2)")
                self.do("state['files']['a'].write(b'more than there was')")
                self.do("state['files']['a'].close()")
                self.do("state['files'].update(b=open('/dev/null'), c=open('/dev/zero'))")
                self.do("os.read(state['files']['pipe'][0], 6)")
                self.do("os.chdir('/'), os.umask(0o123)")
                self.do("signal.signal(signal.SIGUSR1, handler)")
                self.do("signal.setitimer(signal.ITIMER_REAL, 1000)")
                self.do("threading.Thread(target=stop.wait).start()")
                said = self.back(pid)
                self.assertEqual(said["watched"], 1 if increments != "0" else 0)
                self.assertEqual(said["threads_ended"], 1)
                self.assertEqual(self.do("state['n'], 'more' in state, threading.active_count()"), "(7, False, 1)")
                self.assertEqual(self.do("state['files']['a'].tell()"), "4")
                self.assertEqual(self.do("os.fstat(state['files']['a'].fileno()).st_size"), "10")
                self.assertEqual(self.do("state['files']['a'].read(2)"), "b'45'")
                self.assertEqual(self.do("os.read(state['files']['pipe'][0], 100)"), "b'in the pipe'")
                self.assertEqual(self.do("os.getcwd()"), repr(os.path.realpath(self.directory)))
                self.assertEqual(self.do("signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL"), "True")
                self.assertEqual(self.do("signal.getitimer(signal.ITIMER_REAL)[0]"), "0.0")
                self.assertEqual(self.descriptors(pid), before)
                tails = [name for name in os.listdir(self.path("images")) if ".tail-" in name]
                self.assertEqual(len(tails), 1)
                with open(os.path.join(self.path("images"), tails[0]), "rb") as tail:
                    self.assertEqual(tail.read(), b"more than there was")
                shutil.rmtree(self.path("images"))

    def test_watches_on_files(self):
        pid = self.start()
        path, other = self.path("file"), self.path("other")
        for name in path, other:
            with open(name, "wb"):
                pass
        self.do("state.update(libc=__import__('ctypes').CDLL(None))")
        self.do("state.update(watch=state['libc'].inotify_init1(os.O_NONBLOCK))")
        watched = "state['libc'].inotify_add_watch(state['watch'], {!r}, 2)"  # IN_MODIFY
        read = "[int.from_bytes(e[:4], sys.byteorder) for e in [os.read(state['watch'], 4096)]]"
        self.assertEqual(self.do(watched.format(os.fsencode(path))), "1")
        before = self.descriptors(pid)
        self.now(pid)
        # Since then: an event, a watch on another file, and that on the first is gone.
        os.truncate(path, 1)
        self.assertEqual(self.do(watched.format(os.fsencode(other))), "2")
        self.do("state['libc'].inotify_rm_watch(state['watch'], 1)")
        self.back(pid)
        self.assertEqual(self.descriptors(pid), before)
        self.assertIn("BlockingIOError", self.do(read))
        os.truncate(other, 2)
        self.assertIn("BlockingIOError", self.do(read))
        os.truncate(path, 2)
        self.assertEqual(self.do(read), "[1]")

    def test_a_thread_that_has_ended_comes_back(self):
        if os.geteuid() != 0:
            self.skipTest("takes CAP_CHECKPOINT_RESTORE")
        pid = self.start()
        self.do("threading.Thread(target=stop.wait).start()")
        tasks = set(os.listdir(f"/proc/{pid}/task"))
        self.now(pid)
        self.do("stop.set(), [t.join() for t in threading.enumerate()[1:]]")
        self.assertEqual(self.do("threading.active_count()"), "1")
        # Python counts a thread no more when it is about to end.
        self.await_tasks(pid, {str(pid)})
        self.assertEqual(self.back(pid)["threads_made"], 1)
        self.await_tasks(pid, tasks)
        self.assertEqual(self.do("threading.active_count(), stop.is_set()"), "(2, False)")
        self.assertEqual(self.do("stop.set(), [t.join() for t in threading.enumerate()[1:]]"), "(None, [None])")

    def test_any_image_and_the_newest(self):
        pid = self.start(CKPT_INCREMENTS="8")
        self.do("state.update(n=1)")
        first = self.now(pid)
        self.do("state.update(n=2)")
        self.now(pid)
        self.do("state.update(n=3)")
        self.back(pid)
        self.assertEqual(self.do("state['n']"), "2")
        answer = self.ckpt("back", "--json", pid, first)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertEqual(self.do("state['n']"), "1")
        self.do("state.update(n=4)")
        self.now(pid)
        self.do("state.update(n=5)")
        self.back(pid)
        self.assertEqual(self.do("state['n']"), "4")

    def test_a_child_born_since_is_said(self):
        pid = self.start()
        self.now(pid)
        self.do("state['children'].append(subprocess.Popen(['sleep', '1000'], preexec_fn=lambda: None))")
        self.do("state.update(n=9)")
        self.refuse(UNSUPPORTED, ["child process", "sleep", "--anyway"], "back", pid)
        self.assertEqual(self.do("state['n']"), "9")
        child = int(self.do("state['children'][0].pid"))
        self.back(pid, "--anyway")
        self.assertEqual(self.do("state['n']"), "0")
        os.kill(child, 9)

    def test_another_file_waits_in_a_message_that_looks_the_same(self):
        """It went back, and the program received the file that was sent later."""
        pid = self.start()
        self.do("state.update(socket=__import__('socket'))")
        self.do("state.update(pair=state['socket'].socketpair(1, 2))")
        send = "[state.update(f=os.memfd_create('f')), state['socket'].send_fds(state['pair'][0], [b'x'], [state['f']]), os.close(state['f'])]"
        self.do(send)
        self.now(pid)
        self.back(pid)
        self.do("os.close(state['socket'].recv_fds(state['pair'][1], 1, 1)[1][0])")
        self.do(send)
        self.do("state.update(n=8)")
        self.refuse(UNSUPPORTED, ["descriptors waiting in it", "--anyway"], "back", pid)
        self.assertEqual(self.do("state['n']"), "8")

    def test_what_is_left_in_a_pipe_whose_writer_has_ended(self):
        """Nobody in the program could write it again."""
        pid = self.start()
        self.do("state.update(pipe=os.pipe())")
        self.do("[os.write(state['pipe'][1], b'what is left'), os.close(state['pipe'][1])]")
        self.now(pid)
        self.do("state.update(n=8)")
        self.back(pid)
        self.assertEqual(self.do("[state['n'], os.read(state['pipe'][0], 4)]"), "[0, b'what']")
        self.refuse(UNSUPPORTED, ["received since", "pipe", "--anyway"], "back", pid)
        self.assertEqual(self.do("os.read(state['pipe'][0], 99)"), "b' is left'")

    def test_what_has_come_since_into_a_connection_of_its_own(self):
        """The program would receive in its past what it sends later."""
        pid = self.start()
        self.do("state.update(l=socket.create_server(('127.0.0.1', 0)))")
        self.do("state.update(a=socket.create_connection(state['l'].getsockname()))")
        self.do("state.update(b=state['l'].accept()[0])")
        self.now(pid)
        self.do("state['a'].sendall(b'later'), select.select([state['b']], [], [])")
        self.refuse(UNSUPPORTED, ["more waits", "socket", "--anyway"], "back", pid)
        self.assertEqual(self.do("state['b'].recv(9)"), "b'later'")
        self.back(pid)

    def test_sockets_closed_since(self):
        pid = self.start()
        self.do("state.update(p=socket.socketpair(), q=socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM))")
        self.do("[state['p'][0].send(b'waits'), state['q'][0].send(b'one'), state['q'][0].send(b'two')]")
        self.now(pid)
        self.do("[s.close() for s in (*state['p'], *state['q'])]")
        self.back(pid)
        self.assertEqual(self.do("[state['p'][1].recv(9), state['q'][1].recv(9), state['q'][1].recv(9)]"), "[b'waits', b'one', b'two']")
        self.assertEqual(self.do("[state['p'][1].send(b'x'), state['p'][0].recv(9)]"), "[1, b'x']")
        self.do("state.update(l=socket.create_server(('127.0.0.1', 0)))")
        self.now(pid)
        self.do("state['l'].close()")
        self.refuse(UNSUPPORTED, ["closed since", "address", "--anyway"], "back", pid)

    def test_expirations_that_were_not_read(self):
        pid = self.start()
        self.do("state.update(t=ctypes.CDLL(None).timerfd_create(1, os.O_NONBLOCK))")
        self.do("ctypes.CDLL(None).timerfd_settime(state['t'], 0, struct.pack('4q', 1000, 0, 0, 1), None)")
        self.do("select.select([state['t']], [], [])")
        self.now(pid)
        self.assertEqual(self.do("os.read(state['t'], 8)[0]"), "1")
        self.back(pid)
        self.assertEqual(self.do("os.read(state['t'], 8)[0]"), "1")

    def test_shared_memory_that_takes_no_holes(self):
        pid = self.start()
        self.do("state.update(f=os.memfd_create('f', os.MFD_ALLOW_SEALING))")
        self.do("os.ftruncate(state['f'], 3 * 4096), state.update(m=mmap.mmap(state['f'], 3 * 4096))")
        seal = 0x10  # F_SEAL_FUTURE_WRITE
        self.do(f"state['m'].__setitem__(slice(0, 4), b'then'), __import__('fcntl').fcntl(state['f'], 1033, {seal})")
        self.now(pid)
        self.do("[state['m'].__setitem__(slice(at, at + 4), b'now!') for at in (0, 4096)]")
        self.back(pid)
        self.assertEqual(self.do("[state['m'][at:at + 4] for at in (0, 4096, 8192)]"),
                         "[b'then', b'\\x00\\x00\\x00\\x00', b'\\x00\\x00\\x00\\x00']")

    def test_shared_memory_that_is_locked(self):
        pid = self.start()
        self.do("state.update(m=mmap.mmap(-1, 3 * 4096))")
        self.do("state['m'].__setitem__(slice(0, 4), b'then')")
        address = "ctypes.addressof(ctypes.c_char.from_buffer(state['m']))"
        on_fault = 1  # MLOCK_ONFAULT: pages that nobody has touched are not there
        self.assertEqual(self.do(f"ctypes.CDLL(None).mlock2(ctypes.c_void_p({address}), 3 * 4096, {on_fault})"), "0")
        self.now(pid)
        self.do("[state['m'].__setitem__(slice(at, at + 4), b'now!') for at in (0, 4096)]")
        self.back(pid)
        self.assertEqual(self.do("[state['m'][at:at + 4] for at in (0, 4096, 8192)]"),
                         "[b'then', b'\\x00\\x00\\x00\\x00', b'\\x00\\x00\\x00\\x00']")

    def test_mapped_memfd_made_shorter_since(self):
        pid = self.start()
        self.do("state.update(f=os.memfd_create('f'))")
        self.do("os.ftruncate(state['f'], 3 * 4096), state.update(m=mmap.mmap(state['f'], 3 * 4096))")
        self.do("state['m'].__setitem__(slice(8192, 8196), b'then')")
        self.now(pid)
        self.do("os.ftruncate(state['f'], 4096), os.dup2(state['f'], 90), os.close(state['f'])")
        self.back(pid)
        self.assertEqual(self.do("os.fstat(state['f']).st_size, state['m'][8192:8196]"), "(12288, b'then')")

    def test_settings_by_prctl(self):
        pid = self.start()
        self.do("state.update(c=ctypes.CDLL(None), v=ctypes.c_int())")
        death, reaper, huge = 1, 36, 41  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_THP_DISABLE
        self.do(f"state['c'].prctl({death}, 12, 0, 0, 0)")
        asks = ["state['c'].prctl(2, ctypes.byref(state['v'])), state['v'].value",
                "state['c'].prctl(37, ctypes.byref(state['v'])), state['v'].value", "state['c'].prctl(42, 0, 0, 0, 0)"]
        before = [self.do(a) for a in asks]
        self.assertEqual(before[0], "(0, 12)")
        self.now(pid)
        self.do(f"[state['c'].prctl(*a, 0, 0, 0) for a in (({death}, 10), ({reaper}, 1), ({huge}, 1))]")
        self.back(pid)
        self.assertEqual([self.do(a) for a in asks], before)

    def test_a_timer_that_a_change_of_the_clock_cancels(self):
        pid = self.start()
        self.do("state.update(t=ctypes.CDLL(None).timerfd_create(0, os.O_NONBLOCK))")  # CLOCK_REALTIME
        absolute, cancelled = 1, 2  # TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET
        at = f"struct.pack('4q', 0, 0, {int(time.time()) + 1000}, 0)"
        self.do(f"ctypes.CDLL(None).timerfd_settime(state['t'], {absolute | cancelled}, {at}, None)")
        flags = "[l for l in open(f\"/proc/self/fdinfo/{state['t']}\") if 'flags: 0' in l and 'settime' in l]"
        before = self.do(flags)
        self.assertIn("03", before)
        self.now(pid)
        self.do(f"ctypes.CDLL(None).timerfd_settime(state['t'], {absolute}, {at}, None)")
        self.back(pid)
        self.assertEqual(self.do(flags), before)

    def test_refusals(self):
        self.refuse(NO_PROCESS, "999999999", "back", 999999999)
        pid = self.start()
        self.refuse(NOT_FOUND, "no checkpoint yet", "back", pid)
        self.refuse(NOT_FOUND, "nowhere.ckpt", "back", pid, self.path("nowhere.ckpt"))
        other_image = self.now(pid)
        kept = self.path("other.ckpt")
        shutil.copy(other_image, kept)
        os.chmod(kept, 0o600)
        self.program.kill()
        self.program.wait()
        pid = self.start()
        self.now(pid)
        self.do("state.update(n=9)")
        self.refuse(USAGE, "another run", "back", pid, kept)
        self.assertEqual(self.do("state['n']"), "9")

    def test_ckpt_back_dies_while_it_cuts(self):
        """Before it says that it cuts files the program goes on as it was; from then on it is killed, not left with cut files."""
        for point, goes_on in (("back.standing", True), ("back.cutting", False), ("back.cut", False)):
            with self.subTest(point=point):
                pid, log = self.start(), self.path(point)
                self.do(f"state['files'].update(a=open({log!r}, 'wb', buffering=0))")
                self.do("state['files']['a'].write(b'then')")
                self.now(pid)
                self.do("state['files']['a'].write(b'later')")
                done = self.ckpt("back", pid, env=clean_environment(CKPT_TEST_POINT=f"{point}=kill"))
                self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
                if goes_on:
                    self.assertEqual(self.do("state['files']['a'].write(b'!')"), "1")
                    with open(log, "rb") as f:
                        self.assertEqual(f.read(), b"thenlater!")
                else:
                    self.assertEqual(self.program.wait(60), -signal.SIGKILL)

    def test_by_itself(self):
        env = clean_environment(LD_PRELOAD=LIBRARY, CKPT_DIR=self.path("images"))
        done = subprocess.run([sys.executable, "-c", BY_ITSELF], env=env, capture_output=True, text=True, timeout=60,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertRegex(lines[0], r"refused 66 .*nowhere\.ckpt")
        self.assertEqual(lines[1:], [f"here {n} 0" for n in range(4)])

    def test_help_names_the_exit_codes(self):
        text = self.ckpt("back", "--help").stdout
        for code in (64, 65, 66, 67, 68, 69, 70, 72, 75, 77, 78):
            self.assertTrue(re.search(rf"\b{code}\b", text), code)


if __name__ == "__main__":
    unittest.main()
