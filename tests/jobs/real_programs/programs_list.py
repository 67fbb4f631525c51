"""The programs of docs/programs.md: how each is prepared and run. Each prints only what is the same in every run.

A program is a directory with files, and a shell script in it; `quick` ones are part of the tests.
"""
import dataclasses
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import jobs  # its programs are in the table too


@dataclasses.dataclass
class Program:
    name: str
    what: str  # for the table
    version: str  # a shell command, whose first line says it
    script: str  # for bash
    files: dict = dataclasses.field(default_factory=dict)
    prepare: str = ""  # for bash, before the first run
    needs: tuple = ()  # commands, all of which must be there
    quick: bool = False
    stops: bool = False  # before its checkpoint: its files must be those of that instant
    as_user: bool = False  # it refuses to run as root
    why: str = ""  # for the table, where not all came back the same


PYTHON = "python3 --version"

QUEUES = """
import multiprocessing as mp, sys, time, zlib
def work(q, out):
    while True:
        n = q.get()
        if n is None:
            return
        time.sleep(0.004)
        out.put((n, zlib.crc32(b'x' * n)))
if __name__ == '__main__':
    mp.set_start_method(sys.argv[1])
    q, out = mp.Queue(8), mp.Queue()
    workers = [mp.Process(target=work, args=(q, out)) for _ in range(3)]
    for w in workers: w.start()
    for n in range(300): q.put(n)
    for _ in workers: q.put(None)
    print(sum(a * b for a, b in sorted(out.get() for _ in range(300))))
    for w in workers: w.join()
    print([w.exitcode for w in workers], flush=True)
"""

SHARED_MEMORY = """
import multiprocessing as mp, struct, time
from multiprocessing import shared_memory
def work(name, lock, k, n):
    memory = shared_memory.SharedMemory(name)
    for i in range(n):
        with lock:
            total, = struct.unpack_from('<Q', memory.buf, 0)
            struct.pack_into('<Q', memory.buf, 0, total + (k + 1) * i)
            memory.buf[64 + k * 4096 + i] = (i * 7 + k) & 255
        time.sleep(0.001)
    memory.close()
if __name__ == '__main__':
    memory = shared_memory.SharedMemory(create=True, size=1 << 16)
    lock = mp.Lock()
    value, cond = mp.Value('q', 0), mp.Condition()
    workers = [mp.Process(target=work, args=(memory.name, lock, k, 600)) for k in range(4)]
    for w in workers: w.start()
    for w in workers: w.join()
    print(struct.unpack_from('<Q', memory.buf, 0)[0], sum(bytes(memory.buf)[64:]), flush=True)
    memory.close()
    memory.unlink()
"""

FUTURES = """
import concurrent.futures as f, time, zlib
def work(n):
    time.sleep(0.01)
    return zlib.crc32(b'y' * n)
if __name__ == '__main__':
    with f.ProcessPoolExecutor(3) as pool, f.ThreadPoolExecutor(4) as threads:
        a = list(pool.map(work, range(120), chunksize=3))
        b = list(threads.map(work, range(120)))
    print(a == b, zlib.crc32(repr(a).encode()), flush=True)
"""

GUNICORN_APP = """
import zlib
def app(environ, start_response):
    body = zlib.crc32(environ['PATH_INFO'].encode()).to_bytes(4, 'big') * 5000
    start_response('200 OK', [('Content-Type', 'x'), ('Content-Length', str(len(body)))])
    return [body]
"""

# Asks again where nobody listens yet; a connection that breaks later is an error.
HTTP_CLIENT = """
import http.client, socket, sys, time, zlib
def connect(port):
    for _ in range(1000):
        try:
            c = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
            c.connect()
            return c
        except ConnectionRefusedError:
            time.sleep(0.01)
    sys.exit('nobody listens')
total = 0
for k in range(6):
    c = connect(int(sys.argv[1]))
    for i in range(15):
        c.request('GET', f'/{k}/{i}', headers={'Connection': 'keep-alive'})
        r = c.getresponse()
        body = r.read()
        if r.status != 200 or len(body) != 20000: sys.exit(f'{k}/{i}: {r.status} {len(body)}')
        total = zlib.crc32(body, total)
        if r.will_close:
            c.close()
            c = connect(int(sys.argv[1]))
        time.sleep(0.005)
    c.close()
print(total, flush=True)
"""

NODE_CLUSTER = """
const cluster = require('cluster'), http = require('http'), crypto = require('crypto');
if (cluster.isMaster) {
  const port = +process.argv[2];
  let ready = 0, sums = [];
  for (let i = 0; i < 2; i++) cluster.fork();
  cluster.on('listening', () => { if (++ready == 2) ask(0); });
  function ask(i) {
    if (i == 80) {
      console.log(crypto.createHash('md5').update(sums.join()).digest('hex'));
      for (const id in cluster.workers) cluster.workers[id].kill();
      return;
    }
    http.get({port, path: '/' + i, agent: false}, r => {
      let body = '';
      r.on('data', d => body += d);
      r.on('end', () => { sums.push(body); setTimeout(() => ask(i + 1), 10); });
    }).on('error', e => { console.log('error', i, e.code); process.exit(1); });
  }
} else {
  http.createServer((q, r) => r.end(crypto.createHash('md5').update(q.url).digest('hex').repeat(100)))
    .listen(+process.argv[2]);
}
"""

NODE_THREADS = """
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const crypto = require('crypto');
if (isMainThread) {
  let left = 3, sums = [];
  for (let k = 0; k < 3; k++) {
    const w = new Worker(__filename, { workerData: k });
    w.on('message', m => { sums[k] = m; if (--left == 0) console.log(sums.join(' ')); });
  }
} else {
  let h = String(workerData), i = 0;
  function step() {
    for (let j = 0; j < 500; j++) h = crypto.createHash('md5').update(h + i++).digest('hex');
    if (i < 60000) setImmediate(step); else parentPort.postMessage(h);
  }
  step();
}
"""

# Of redis and memcached: text protocols, one client in another process.
REDIS_CLIENT = """
import socket, sys, time
s = socket.socket(socket.AF_UNIX)
for _ in range(1000):
    try:
        s.connect('redis.sock')
        break
    except (FileNotFoundError, ConnectionRefusedError):
        time.sleep(0.01)
f = s.makefile('rwb')
def ask(*words):
    f.write(b'*%d\\r\\n' % len(words) + b''.join(b'$%d\\r\\n%s\\r\\n' % (len(w), w) for w in words))
    f.flush()
    head = f.readline()
    if not head: sys.exit('the server is gone')
    if head[:1] == b'$':
        n = int(head[1:])
        return None if n < 0 else f.read(n + 2)[:-2]
    return head.strip()
for i in range(600):
    ask(b'SET', b'key%d' % (i % 100), b'v%d' % i * 500)
    ask(b'INCRBY', b'sum', b'%d' % i)
    if i % 60 == 30: ask(b'BGSAVE')
    time.sleep(0.002)
print(ask(b'GET', b'sum'), sum(sum(ask(b'GET', b'key%d' % k)) for k in range(100)), ask(b'DBSIZE'), flush=True)
f.write(b'SHUTDOWN NOSAVE\\r\\n')
f.flush()
"""

MEMCACHED_CLIENT = """
import socket, sys, time, zlib
def client(k):
    s = socket.socket()
    for _ in range(1000):
        try:
            s.connect(('127.0.0.1', int(sys.argv[1])))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    return s.makefile('rwb')
fs = [client(k) for k in range(3)]
crc = 0
for i in range(500):
    f = fs[i % 3]
    body = b'%d;' % i * 300
    f.write(b'set k%d 0 0 %d\\r\\n%s\\r\\n' % (i % 50, len(body), body))
    f.flush()
    if f.readline() != b'STORED\\r\\n': sys.exit('not stored')
    f = fs[(i + 1) % 3]
    f.write(b'get k%d\\r\\n' % (i % 50))
    f.flush()
    head = f.readline().split()
    got = f.read(int(head[3]) + 2)[:-2]
    if got != body or f.readline() != b'END\\r\\n': sys.exit(f'wrong at {i}')
    crc = zlib.crc32(got, crc)
    time.sleep(0.002)
print(crc, flush=True)
"""

SQLITE = """
import os, sqlite3, sys, time
def db():
    c = sqlite3.connect('t.db', timeout=60, isolation_level=None)
    c.execute('pragma journal_mode=wal').fetchall()
    return c
c = db()
c.execute('create table t (who integer, n integer)')
c.close()
children = []
for k in range(3):
    pid = os.fork()
    if pid == 0:
        c = db()
        for i in range(150):
            c.execute('begin immediate')
            c.execute('insert into t values (?, ?)', (k, i))
            c.execute('commit')
            time.sleep(0.003)
        c.close()
        os._exit(0)
    children.append(pid)
print([os.waitpid(p, 0)[1] for p in children])
c = db()
print(c.execute('select count(*), sum(n * (who + 1)) from t').fetchall(), c.execute('pragma integrity_check').fetchall(), flush=True)
"""

RING = r"""
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank, size;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  static unsigned big[20000];
  unsigned long sum = 0;
  for (int round = 0; round < 300; ++round) {
    unsigned long token = rank * 1000003ul + round, got;
    MPI_Sendrecv(&token, 1, MPI_UNSIGNED_LONG, (rank + 1) % size, 1, &got, 1, MPI_UNSIGNED_LONG, (rank + size - 1) % size, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    sum = sum * 31 + got;
    if (round % 10 == 0) {
      for (int i = 0; i < 20000; ++i) big[i] = i * round + rank;
      MPI_Sendrecv_replace(big, 20000, MPI_UNSIGNED, (rank + 1) % size, 2, (rank + size - 1) % size, 2, MPI_COMM_WORLD,
                           MPI_STATUS_IGNORE);
      for (int i = 0; i < 20000; ++i) sum += big[i];
    }
    unsigned long all;
    MPI_Allreduce(&sum, &all, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
    sum ^= all;
    usleep(4000);
  }
  unsigned long sums[16];
  MPI_Gather(&sum, 1, MPI_UNSIGNED_LONG, sums, 1, MPI_UNSIGNED_LONG, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    for (int i = 0; i < size; ++i) printf("%lx ", sums[i]);
    printf("\n");
  }
  MPI_Finalize();
}
"""

OPENMPI = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; "

PANE = """
for i in $(seq 1 25); do printf '%s ' $((i * $1)); sleep 0.05; done
echo
sum=0; for i in $(seq 1 2000); do sum=$((sum + i * $1)); done; echo $sum
tmux -S ./sock wait-for -S done$1
sleep 1000
"""

# No job depends on how fast another is. The first two wait for each other through FIFOs; the third ends in the foreground only,
# for `fg` of a job that has ended is another output. What a shell with job control says of its jobs must not change.
# count: lines in a file, so that a checkpoint may come while a job is at work.
JOB_CONTROL = r"""
stty -onlcr; tty > /dev/null && echo on a terminal
in_front() {
  local group foreground
  read -r _ _ _ _ group _ _ foreground _ < /proc/self/stat
  [ "$group" = "$foreground" ]
}
count() { for i in $(seq $1); do echo $i; sleep 0.02; done; }
(read -r _ < first; count 15 > one; echo > second) &
(read -r _ < second; count 5 > two) &
jobs -p | wc -l
(until in_front; do sleep 0.02; done; count 15 > three; exit 5) &
fg %3 > /dev/null; echo job 3 was in the foreground and ended with $?
in_front && echo the shell is in the foreground again
echo > first
wait
cat one two three | cksum
for i in $(seq 30); do printf '%s ' $i; sleep 0.02; done; echo
stty size < /dev/tty
"""

PORT = "port=$(cat port 2>/dev/null || python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 0)); print(s.getsockname()[1])' | tee port); "

WALL_CLOCK = "its calls wait until an instant of the wall clock one second ahead, which passes while the job is not there"

PROGRAMS = [
    Program("bash", "bash: pipeline, background job, subshells, traps", "bash --version", jobs.PROGRAMS["pipeline"][2], quick=True),
    *[Program(f"{name}bash-jobs", f"bash on a terminal of its own ({what}): job control, foreground and background jobs", "script --version",
              f"SHELL={shell} script -qec 'bash -m inner.sh' /dev/null < /dev/null",
              {"inner.sh": JOB_CONTROL}, prepare="mkfifo first second", needs=("script",), quick=True)
      for name, what, shell in (("", "script", "/bin/bash"), ("sh-", "script; sh leads the session", "/bin/sh"))],
    Program("parallel", "GNU parallel", "parallel --version", "seq 1 40 | parallel --will-cite -j4 'sleep 0.1; echo {} | md5sum' | sort | md5sum",
            needs=("parallel",)),
    Program("xargs", "xargs -P", "xargs --version", jobs.PROGRAMS["xargs"][2]),
    Program("sort", "sort with temporary files", "sort --version", jobs.PROGRAMS["sort"][2]),
    Program("gcc", "gcc: driver, compiler, assembler", "gcc --version", "gcc -O2 -pipe -c big.c -o big.o && objdump -d big.o | md5sum",
            prepare="for i in $(seq 120); do echo \"int f$i(int a,int b){int s=0;for(int i=0;i<a;i++)for(int j=0;j<b;j++)s+=(i*$i+j)%(i+$i+1);return s;}\"; done > big.c"),
    Program("git-gc", "git gc", "git --version",
            "cd repo && git gc -q --prune=now && git fsck --full 2>&1 | sort; git rev-list --all --objects | sort | md5sum; git count-objects -v | head -1",
            prepare="git init -q repo && cd repo && git config user.email a@b && git config user.name a && export GIT_AUTHOR_DATE='2020-01-01 00:00 +0000' GIT_COMMITTER_DATE='2020-01-01 00:00 +0000' && for i in $(seq 60); do seq $((i * 300)) > f$((i % 7)); seq $i 3000 > g$i; git add -A; git commit -qm $i; done", stops=True),
    Program("rsync", "rsync, locally", "rsync --version", "rsync -a --bwlimit=15000 from/ to/ && (cd to; find . -type f ! -name '.*' | sort | xargs md5sum | md5sum)",
            prepare="mkdir from; for i in $(seq 60); do head -c 400000 <(yes $i) > from/$i; done", needs=("rsync",)),
    Program("tar-zstd", "tar, zstd, split", "zstd --version", jobs.PROGRAMS["tar"][2],
            prepare="mkdir data; for i in $(seq 30); do seq $i $((i * 7)) 200000 > data/$i; touch -d @0 data/$i; done", needs=("zstd",)),
    Program("python-fork", "python multiprocessing: queues, fork", PYTHON, "python3 queues.py fork", {"queues.py": QUEUES}, quick=True),
    Program("python-spawn", "… spawn", PYTHON, "python3 queues.py spawn", {"queues.py": QUEUES}),
    Program("python-forkserver", "… forkserver", PYTHON, "python3 queues.py forkserver", {"queues.py": QUEUES}, quick=True),
    Program("python-shm", "… shared_memory, locks", PYTHON, "python3 shm.py", {"shm.py": SHARED_MEMORY}, quick=True),
    Program("python-futures", "concurrent.futures", PYTHON, "python3 futures.py", {"futures.py": FUTURES}, quick=True),
    Program("gunicorn", "gunicorn, two workers, a client", "gunicorn --version",
            PORT + "gunicorn -w 2 -b 127.0.0.1:$port app:app 2> log & python3 client.py $port; code=$?; kill %1; wait; exit $code",
            {"app.py": GUNICORN_APP, "client.py": HTTP_CLIENT}, needs=("gunicorn",)),
    Program("node-cluster", "node cluster, two workers", "node --version", PORT + "node cluster.js $port", {"cluster.js": NODE_CLUSTER}, needs=("node",)),
    Program("node-threads", "node worker_threads", "node --version", "node threads.js", {"threads.js": NODE_THREADS}, needs=("node",)),
    Program("redis", "redis with background saves, a client", "redis-server --version",
            "redis-server --port 0 --unixsocket $PWD/redis.sock --save '' --logfile log & python3 client.py; code=$?; wait; exit $code",
            {"client.py": REDIS_CLIENT}, needs=("redis-server",)),
    Program("memcached", "memcached, a client", "memcached --version",
            PORT + "memcached -u root -l 127.0.0.1 -p $port & python3 client.py $port; code=$?; kill %1; wait; exit $code", {"client.py": MEMCACHED_CLIENT},
            needs=("memcached",)),
    Program("openssl", "openssl s_server and s_client", "openssl version",
            PORT + "mkfifo never; exec 9<>never; openssl s_server -quiet -accept 127.0.0.1:$port -cert cert.pem -key key.pem -naccept 1 > got 2> log <&9 &\n"
            "until grep -q \"0100007F:$(printf %04X $port) 00000000:0000 0A\" /proc/net/tcp; do sleep 0.05; done\n"
            "(for i in $(seq 200); do echo line $i; sleep 0.005; done) | openssl s_client -quiet -no_ign_eof -connect 127.0.0.1:$port 2>> log; wait; wc -l < got; md5sum < got",
            prepare="openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -subj /CN=x -days 3650 2>/dev/null"),
    Program("sqlite-wal", "SQLite in WAL mode, three writers", "python3 -c 'import sqlite3; print(\"SQLite\", sqlite3.sqlite_version)'", "python3 wal.py",
            {"wal.py": SQLITE}, stops=True),
    Program("tmux", "tmux, two panes", "tmux -V",
            "rm -f sock; tmux -S ./sock -f /dev/null new-session -d -x 80 -y 24 'bash pane.sh 2'\ntmux -S ./sock split-window 'bash pane.sh 3'\n"
            "tmux -S ./sock wait-for done2; tmux -S ./sock wait-for done3\n"
            "for p in 0 1; do tmux -S ./sock capture-pane -p -t $p | head -3; done\nserver=$(tmux -S ./sock display-message -p '#{pid}')\ntmux -S ./sock kill-server\n"
            "while [ -e /proc/$server/exe ]; do sleep 0.01; done",
            {"pane.sh": PANE}, needs=("tmux",), quick=True),
    Program("openmpi", "Open MPI: mpirun, 4 ranks in a ring, shared memory and TCP", "mpirun.openmpi --version",
            OPENMPI + "mpirun.openmpi --oversubscribe --mca btl vader,tcp,self --mca pml ob1 --mca mpi_yield_when_idle 1 -np 4 ./ring",
            {"ring.c": RING}, prepare="mpicc.openmpi -O1 -o ring ring.c", needs=("mpirun.openmpi", "mpicc.openmpi")),
    Program("openmpi-tcp", "Open MPI: … TCP only", "mpirun.openmpi --version",
            OPENMPI + "mpirun.openmpi --oversubscribe --mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include lo --mca mpi_yield_when_idle 1 -np 3 ./ring",
            {"ring.c": RING}, prepare="mpicc.openmpi -O1 -o ring ring.c", needs=("mpirun.openmpi", "mpicc.openmpi")),
    Program("mpich", "MPICH: mpirun (hydra), 2 ranks in a ring", "mpirun.mpich --version", "mpirun.mpich -n 2 ./ring",
            {"ring.c": RING}, prepare="mpicc.mpich -O1 -o ring ring.c", needs=("mpirun.mpich", "mpicc.mpich")),
    *[Program(f"stress-{name}", f"stress-ng --verify --{name}", "stress-ng --version",
              f"stress-ng --verify --{name} 2 -t 3 --log-brief > log 2>&1; echo $?; grep -i 'fail' log; true",
              needs=("stress-ng",), why=WALL_CLOCK if name == "mq" else "", as_user=name == "exec", stops=name in ("inotify", "shm"))  # these make and remove files all the time
      for name in ("pipe", "sock", "udp", "msg", "sem", "sem-sysv", "shm", "fork", "vfork", "clone", "exec", "pty", "inotify", "epoll",
                   "futex", "mq", "sigq", "timer", "zombie", "eventfd", "fifo", "sockpair", "sockfd")],
]
