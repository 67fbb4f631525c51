"""Still more programs of docs/programs.md: servers and what supervises them. None is part of the tests."""
from programs_list import HTTP_CLIENT, PORT, Program

# 20,000 bytes for each path, as HTTP_CLIENT wants them; connections stay open.
BEHIND = """
import http.server, sys, zlib
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        body = zlib.crc32(self.path.encode()).to_bytes(4, 'big') * 5000
        self.send_response(200)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Answer).serve_forever()
"""
BEHIND_PORT = PORT.replace("port=", "behind=").replace("cat port", "cat behind").replace("tee port", "tee behind")
UP = "until (exec 3<> /dev/tcp/127.0.0.1/$behind) 2> /dev/null; do sleep 0.05; done; "
LISTENS = UP.replace("behind", "port")
FILE = "head -c 20000 <(yes what is served) > file"

HAPROXY = """
global
  maxconn 200
  nbthread 2
defaults
  mode http
  timeout connect 60s
  timeout client 60s
  timeout server 60s
frontend front
  bind 127.0.0.1:PORT
  default_backend back
backend back
  server one 127.0.0.1:BEHIND check inter 200ms
"""

APACHE = """
ServerRoot "DIR"
ServerName localhost
Listen 127.0.0.1:PORT
LoadModule mpm_KIND_module /usr/lib/apache2/modules/mod_mpm_KIND.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule alias_module /usr/lib/apache2/modules/mod_alias.so
PidFile pid
DefaultRuntimeDir DIR
ErrorLog error.log
StartServers 2
MaxRequestWorkers 8
DocumentRoot "DIR"
AliasMatch "^/.*$" "DIR/file"
<Directory "/">
  Require all granted
</Directory>
"""

LIGHTTPD = """
server.modules = ("mod_rewrite", "mod_fastcgi")
server.bind = "127.0.0.1"
server.port = PORT
server.document-root = "DIR"
server.errorlog = "DIR/error.log"
server.max-worker = 2
mimetype.assign = ("" => "text/plain")
url.rewrite-once = ("^/.*$" => "/TO")
"""
FASTCGI = 'fastcgi.server = (".php" => (("socket" => "DIR/fpm.sock", "broken-scriptname" => "enable")))\n'

PHP = "<?php header('Content-Type: x'); header('Content-Length: 20000'); echo str_repeat(hash('crc32b', $_SERVER['REQUEST_URI'], true), 5000);\n"
FPM = """
[global]
error_log = DIR/fpm.log
daemonize = no
[www]
listen = DIR/fpm.sock
pm = static
pm.max_children = 2
"""

RUBY_APP = "require 'zlib'\nrun ->(e) { [200, {'content-type' => 'x'}, [[Zlib.crc32(e['PATH_INFO'])].pack('N') * 5000]] }\n"
PERL_APP = "use Compress::Zlib; sub { my $b = pack('N', crc32($_[0]{PATH_INFO})) x 5000; [200, ['Content-Type', 'x', 'Content-Length', 20000], [$b]] }\n"

BEANS = """
import socket, sys, time, zlib
def connect():
    for _ in range(1000):
        try:
            s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
            return s.makefile('rwb')
        except ConnectionRefusedError:
            time.sleep(0.01)
give, take = connect(), connect()
def ask(f, line, body=b''):
    f.write(line + b'\\r\\n' + body)
    f.flush()
    return f.readline().split()
crc = 0
for i in range(400):
    body = b'%d;' % i * 100
    assert ask(give, b'put 0 %d 60 %d' % (i % 3 == 0 and 1 or 0, len(body)), body + b'\\r\\n')[0] == b'INSERTED'
    if i % 4 == 0: continue
    head = ask(take, b'reserve')
    got = take.read(int(head[2]) + 2)[:-2]
    crc ^= zlib.crc32(got)
    assert ask(take, b'delete ' + head[1])[0] == b'DELETED', head
    time.sleep(0.002)
while True:
    head = ask(take, b'reserve-with-timeout 2')
    if head[0] == b'TIMED_OUT': break
    crc ^= zlib.crc32(take.read(int(head[2]) + 2)[:-2])
    assert ask(take, b'delete ' + head[1])[0] == b'DELETED'
print(crc, flush=True)
"""

# Questions and answers of the domain name system, by datagrams, and each tenth by a connection.
DNS = """
import socket, struct, sys, time, zlib
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.connect(('127.0.0.1', int(sys.argv[1])))
u.settimeout(2)
def ask(n, stream=False):
    q = struct.pack('>6H', n, 0x100, 1, 0, 0, 0) + b'\\x02h%d\\x04test\\x00' % (n % 10) + struct.pack('>2H', 1, 1)
    while True:
        if not stream:
            try:
                u.send(q)
                a = u.recv(2000)
            except (TimeoutError, ConnectionRefusedError):
                if n == 0:
                    time.sleep(0.02)
                    continue
                sys.exit(f'no answer to {n}')
        else:
            with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as s:
                f = s.makefile('rwb')
                f.write(struct.pack('>H', len(q)) + q)
                f.flush()
                a = f.read(*struct.unpack('>H', f.read(2)))
        if struct.unpack('>H', a[:2])[0] != n: sys.exit('of another question')
        if n == 0 and a[3] & 15: continue  # its data are not loaded yet
        return struct.unpack('>H', a[6:8])[0], a[len(q):].count(bytes((10, 0, 0, n % 10)))
total = 0
for n in range(400):
    total = zlib.crc32(repr(ask(n, n % 10 == 9)).encode(), total)
    time.sleep(0.004)
print(ask(1), ask(2, True), total, flush=True)
"""
UNBOUND = """
server:
  interface: 127.0.0.1@PORT
  do-daemonize: no
  chroot: ""
  username: ""
  directory: "."
  pidfile: ""
  use-syslog: no
  logfile: "log"
  num-threads: 2
  do-not-query-localhost: no
  local-zone: "test." static
"""
UNBOUND += "".join(f'  local-data: "h{n}.test. A 10.0.0.{n}"\n' for n in range(10))
BIND = """
options { directory "DIR"; listen-on port PORT { 127.0.0.1; }; listen-on-v6 { none; }; pid-file none; session-keyfile none; recursion no; dnssec-validation no; };
controls { };
zone "test" { type master; file "zone"; };
"""
ZONE = "$TTL 60\n@ IN SOA n.test. r.test. (1 60 60 60 60)\n  IN NS n.test.\nn IN A 10.0.0.100\n" + "".join(f"h{n} IN A 10.0.0.{n}\n" for n in range(10))

NATS = """
import socket, sys, time, zlib
def connect():
    for _ in range(1000):
        try:
            f = socket.create_connection(('127.0.0.1', int(sys.argv[1]))).makefile('rwb')
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    f.readline()
    f.write(b'CONNECT {"verbose":false}\\r\\n')
    return f
a, b = connect(), connect()
b.write(b'SUB x 1\\r\\nPING\\r\\n')
b.flush()
while b.readline().strip() != b'PONG': pass
crc = 0
for i in range(500):
    body = b'%d;' % i * 200
    a.write(b'PUB x %d\\r\\n%s\\r\\n' % (len(body), body))
    a.flush()
    while True:
        head = b.readline().split()
        if head[0] != b'PING': break
        b.write(b'PONG\\r\\n')
        b.flush()
    crc = zlib.crc32(b.read(int(head[-1]) + 2), crc)
    time.sleep(0.002)
print(crc, flush=True)
"""

ETCD = """
import base64, http.client, json, sys, time
for _ in range(600):
    try:
        c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=60)
        c.connect()
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
def ask(what, **more):
    c.request('POST', f'/v3/kv/{what}', json.dumps(more))
    return json.loads(c.getresponse().read())
e = lambda t: base64.b64encode(t.encode()).decode()
for i in range(150):
    ask('put', key=e(f'k{i % 20}'), value=e(str(i)))
    time.sleep(0.004)
print([base64.b64decode(ask('range', key=e(f'k{k}'))['kvs'][0]['value']).decode() for k in range(20)], flush=True)
"""

SLAPD = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile pid
database mdb
maxsize 4000000
suffix "dc=x"
rootdn "cn=a,dc=x"
rootpw s
directory db
"""
LDAP = """
until ldapwhoami -x -H $1 > /dev/null 2>&1; do sleep 0.05; done
for i in $(seq 60); do
  printf 'dn: cn=n%d,dc=x\\nobjectClass: device\\ncn: n%d\\ndescription: %d\\n' $i $i $((i * i)) | ldapadd -x -H $1 -D cn=a,dc=x -w s > /dev/null || exit 1
done
ldapsearch -x -H $1 -b dc=x -LLL description | sort | md5sum
"""

CELERY = """
import celery, os, time
app = celery.Celery('tasks', broker='redis+socket://' + os.path.abspath('redis.sock'), backend='redis+socket://' + os.path.abspath('redis.sock'))
app.conf.worker_hijack_root_logger = False
@app.task
def square(n):
    time.sleep(0.01)
    return n * n
"""
CELERY_CLIENT = """
import tasks
asked = [tasks.square.delay(n) for n in range(200)]
print(sum(a.get(timeout=60) * (k + 1) for k, a in enumerate(asked)), flush=True)
"""

# What is supervised: ends after some steps and is begun again, until it has begun three times.
WORKER = """
echo begun >> begun
for i in $(seq 30); do echo step $i >> steps; sleep 0.02; done
if [ $(wc -l < begun) -ge 3 ]; then touch done; exec sleep 1000; fi
exit 1
"""
UNTIL_DONE = "until [ -e done ]; do sleep 0.05; done; "
SUPERVISORD = """
[supervisord]
nodaemon=true
logfile=log
pidfile=pid
[program:worker]
command=/bin/bash worker.sh
autorestart=true
startsecs=0
"""

SSHD = """
Port PORT
ListenAddress 127.0.0.1
HostKey DIR/host
AuthorizedKeysFile DIR/user.pub
PidFile none
StrictModes no
UsePAM no
"""
SSH = "ssh -F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -i user -p $port 127.0.0.1 "

SED = "sed \"s#PORT#$port#;s#BEHIND#$behind#;s#DIR#$PWD#\" "
ASK = "/usr/bin/python3 client.py $port; code=$?; "
END = "kill %1; wait %1; echo $?; exit $code"
KILLED = "kill %1; wait; exit $code"
NOT_ACCEPTED = "the server was stopped before it had accepted its client, which had written already: nobody can read that"


def conf(name):
    return PORT + f"sed \"s#PORT#$port#g;s#DIR#$PWD#g\" {name} > own.{name}; "


SERVERS = [
    Program("haproxy", "haproxy, master and worker, a server behind it, a client", "haproxy -v",
            PORT + BEHIND_PORT + "sed \"s#PORT#$port#;s#BEHIND#$behind#\" conf > own; /usr/bin/python3 behind.py $behind 2> log2 & " + UP + "haproxy -W -f own > log 2>&1 &\n"
            "/usr/bin/python3 client.py $port; code=$?; kill %2 %1; wait; exit $code",
            {"conf": HAPROXY, "behind.py": BEHIND, "client.py": HTTP_CLIENT}, needs=("haproxy",)),
    Program("lighttpd", "lighttpd, two workers, a client", "/usr/sbin/lighttpd -v", conf("conf") + "setsid /usr/sbin/lighttpd -D -f own.conf 2> log & " + ASK + KILLED,
            {"conf": LIGHTTPD.replace("TO", "file"), "client.py": HTTP_CLIENT}, prepare=FILE, needs=("/usr/sbin/lighttpd",)),
    *[Program(f"apache-{kind}", f"Apache httpd, {kind}, a client", "/usr/sbin/apache2 -v",
              conf("conf") + "/usr/sbin/apache2 -f $PWD/own.conf -DFOREGROUND 2> log & " + ASK + END,
              {"conf": APACHE.replace("KIND", kind), "client.py": HTTP_CLIENT}, prepare=FILE, needs=("/usr/sbin/apache2",), as_user=kind == "event")
      for kind in ("prefork", "event")],
    Program("php", "php -S, two workers, a client", "php -v", PORT + "PHP_CLI_SERVER_WORKERS=2 php -S 127.0.0.1:$port all.php 2> log & " + ASK + KILLED,
            {"all.php": PHP, "client.py": HTTP_CLIENT}, needs=("php",)),
    Program("php-fpm", "php-fpm behind lighttpd, a client", "/usr/sbin/php-fpm8.2 -v",
            conf("conf") + "sed \"s#DIR#$PWD#\" fpm > own.fpm; /usr/sbin/php-fpm8.2 -n -y own.fpm & until [ -S fpm.sock ]; do sleep 0.05; done\n"
            "setsid /usr/sbin/lighttpd -D -f own.conf 2> log & " + ASK + "kill %2 %1; wait; exit $code",
            {"conf": LIGHTTPD.replace("TO", "all.php") + FASTCGI, "fpm": FPM, "all.php": PHP, "client.py": HTTP_CLIENT}, as_user=True,
            needs=("/usr/sbin/lighttpd", "/usr/sbin/php-fpm8.2")),
    Program("puma", "Ruby: puma, two workers, a client", "ruby --version", PORT + "puma -q -w 2 -t 2:2 -b tcp://127.0.0.1:$port config.ru > log 2>&1 & " + ASK + KILLED,
            {"config.ru": RUBY_APP, "client.py": HTTP_CLIENT}, needs=("puma",)),
    Program("starman", "Perl: starman, two workers, a client", "starman --version",
            PORT + "starman --workers 2 --listen 127.0.0.1:$port app.psgi > log 2>&1 & " + ASK + KILLED,
            {"app.psgi": PERL_APP, "client.py": HTTP_CLIENT}, needs=("starman",)),
    Program("squid", "squid before a server, a client", "/usr/sbin/squid -v",
            PORT + BEHIND_PORT + "/usr/bin/python3 behind.py $behind 2> log2 & " + UP + "sed \"s#PORT#$port#;s#BEHIND#$behind#;s#DIR#$PWD#\" conf > own; /usr/sbin/squid -N -f own > log 2>&1 &\n" + ASK +
            "kill -9 %2; kill %1; wait; exit $code",
            {"conf": "http_port 127.0.0.1:PORT accel defaultsite=x\ncache_peer 127.0.0.1 parent BEHIND 0 no-query originserver name=a\nhttp_access allow all\npid_filename none\n"
             "cache_log DIR/cache.log\naccess_log none\ncoredump_dir DIR\npinger_enable off\ncache_mem 8 MB\nshutdown_lifetime 1 seconds\n",
             "behind.py": BEHIND, "client.py": HTTP_CLIENT}, needs=("/usr/sbin/squid",), as_user=True),
    Program("varnish", "varnish before a server, a client", "/usr/sbin/varnishd -V",
            PORT + BEHIND_PORT + "/usr/bin/python3 behind.py $behind 2> log2 & " + UP + "/usr/sbin/varnishd -F -j none -n $PWD/v -a 127.0.0.1:$port -b 127.0.0.1:$behind -s malloc,16m > log 2>&1 &\n" + ASK +
            "kill %2 %1; wait; exit $code", {"behind.py": BEHIND, "client.py": HTTP_CLIENT}, needs=("/usr/sbin/varnishd",)),
    Program("mosquitto", "mosquitto, a publisher, a subscriber", "/usr/sbin/mosquitto -h",
            PORT + "printf 'listener %d 127.0.0.1\\nallow_anonymous true\\nuser root\\n' $port > own; /usr/sbin/mosquitto -c own 2> log & " + LISTENS +
            " mosquitto_sub -p $port -q 1 -t x -i sub -c -E; mosquitto_sub -p $port -q 1 -t x -i sub -c -C 300 > got & (for i in $(seq 300); do echo line $i; sleep 0.005; done) | mosquitto_pub -p $port -q 1 -t x -l; wait %2; echo $?\n"
            "md5sum < got; kill %1; wait %1; echo $?", needs=("/usr/sbin/mosquitto", "mosquitto_sub")),
    Program("beanstalkd", "beanstalkd, two clients", "beanstalkd -v", PORT + "beanstalkd -l 127.0.0.1 -p $port 2> log & " + ASK + KILLED, {"client.py": BEANS},
            needs=("beanstalkd",)),
    Program("nats", "nats-server (Go), two clients", "nats-server --version", PORT + "nats-server -a 127.0.0.1 -p $port > log 2>&1 & " + ASK + KILLED, {"client.py": NATS},
            needs=("nats-server",)),
    Program("etcd", "etcd (Go), a client", "etcd --version",
            PORT + BEHIND_PORT + "etcd --data-dir data --listen-client-urls http://127.0.0.1:$port --advertise-client-urls http://127.0.0.1:$port --listen-peer-urls http://127.0.0.1:$behind 2> log &\n"
            + ASK + KILLED, {"client.py": ETCD}, needs=("etcd",), stops=True, why=NOT_ACCEPTED),
    Program("unbound", "unbound, two threads, a client", "/usr/sbin/unbound -V", conf("conf") + "/usr/sbin/unbound -d -c own.conf 2> log & " + ASK + END,
            {"conf": UNBOUND, "client.py": DNS}, needs=("/usr/sbin/unbound",)),
    Program("bind9", "bind9, a client", "/usr/sbin/named -v", conf("conf") + "/usr/sbin/named -f -n 2 -c $PWD/own.conf 2> log & " + ASK + END,
            {"conf": BIND, "zone": ZONE, "client.py": DNS}, needs=("/usr/sbin/named",)),
    Program("dnsmasq", "dnsmasq, a client", "/usr/sbin/dnsmasq --version",
            PORT + "/usr/sbin/dnsmasq -k -C /dev/null -p $port -a 127.0.0.1 -z -h -R --user= --group= -x $PWD/pid " + " ".join(f"--host-record=h{n}.test,10.0.0.{n}" for n in range(10)) + " 2> log & " + ASK + END,
            {"client.py": DNS}, needs=("/usr/sbin/dnsmasq",), as_user=True),
    Program("slapd", "slapd (LMDB), clients", "/usr/sbin/slapd -VV",
            "/usr/sbin/slapd -d 0 -f conf -h ldapi://${PWD//\\//%2F}%2Fs & until [ -S s ]; do sleep 0.05; done; bash client.sh ldapi://${PWD//\\//%2F}%2Fs; code=$?; " + END,
            {"conf": SLAPD, "client.sh": LDAP}, prepare="mkdir db; printf 'dn: dc=x\\nobjectClass: domain\\ndc: x\\n' | slapadd -q -f conf", needs=("/usr/sbin/slapd", "ldapadd"), stops=True, why=NOT_ACCEPTED),
    Program("celery", "celery, two workers, redis, a client", "/usr/bin/python3 -m celery --version",
            "redis-server --port 0 --unixsocket $PWD/redis.sock --save '' --logfile log & until [ -S redis.sock ]; do sleep 0.05; done\n"
            "/usr/bin/python3 -m celery -A tasks worker -c 2 --without-gossip --without-mingle > worker.log 2>&1 & /usr/bin/python3 client.py; code=$?; kill %2; wait %2; kill %1; wait; exit $code",
            {"tasks.py": CELERY, "client.py": CELERY_CLIENT}, needs=("redis-server", "/usr/share/doc/python3-celery")),
    Program("supervisord", "supervisord, a program that ends and is begun again", "supervisord --version",
            "rm -f begun steps done; supervisord -c conf > out & " + UNTIL_DONE + "wc -l < begun; wc -l < steps; kill %1; wait %1; echo $?; grep -c spawned: log",
            {"conf": SUPERVISORD, "worker.sh": WORKER}, needs=("supervisord",), stops=True),
    Program("runit", "runsvdir, a program that ends and is begun again", "dpkg-query -W -f 'runit ${Version}' runit",
            "rm -f begun steps done; mkdir -p d/worker; printf '#!/bin/sh\\ncd %s\\nexec bash worker.sh\\n' $PWD > d/worker/run; chmod +x d/worker/run; runsvdir d 2> log & " + UNTIL_DONE +
            "wc -l < begun; wc -l < steps; kill -HUP %1; wait %1; echo $?", {"worker.sh": WORKER}, needs=("runsvdir",), stops=True),
    Program("s6", "s6-svscan, a program that ends and is begun again", "dpkg-query -W -f 's6 ${Version}' s6",
            "rm -f begun steps done; mkdir -p d/worker; printf '#!/bin/sh\\ncd %s\\nexec bash worker.sh\\n' $PWD > d/worker/run; chmod +x d/worker/run; s6-svscan d 2> log & " + UNTIL_DONE +
            "wc -l < begun; wc -l < steps; s6-svscanctl -t d; wait %1; echo $?", {"worker.sh": WORKER}, needs=("s6-svscan",), stops=True),
    Program("sshd", "sshd and ssh: a pipeline on the other side", "ssh -V",
            PORT + "mkdir -p /run/sshd; sed \"s#PORT#$port#;s#DIR#$PWD#\" conf > own; env | grep -E '^(LD_PRELOAD|CKPT_)' | tr '\\n' ' ' | sed 's/^./SetEnv &/' >> own\n"
            "/usr/sbin/sshd -D -e -f $PWD/own 2> log & " + LISTENS +
            " (for i in $(seq 200); do echo line $i; sleep 0.005; done) | " + SSH + "'tr a-z A-Z | md5sum'; echo $?; kill %1; wait",
            {"conf": SSHD}, prepare="ssh-keygen -q -t ed25519 -N '' -f host; ssh-keygen -q -t ed25519 -N '' -f user", needs=("ssh", "/usr/sbin/sshd")),
    Program("rsyncd", "rsync --daemon and a client", "rsync --version",
            PORT + "rm -rf to; printf 'use chroot = no\\nuid=0\\ngid=0\\n[m]\\npath = %s/from\\n' $PWD > own; rsync --daemon --no-detach --config=own --port=$port --address=127.0.0.1 2> log & " + LISTENS +
            " rsync -a --bwlimit=15000 rsync://127.0.0.1:$port/m/ to/; echo $?; (cd to; find . -type f ! -name '.*' | sort | xargs md5sum | md5sum); kill %1; wait",
            prepare="mkdir from; for i in $(seq 60); do head -c 400000 <(yes $i) > from/$i; done", needs=("rsync",)),
    Program("downloads", "curl, wget and aria2 from lighttpd", "curl --version",
            conf("conf") + "rm -f got*; setsid /usr/sbin/lighttpd -D -f own.conf 2> log & " + LISTENS + "u=http://127.0.0.1:$port/\n"
            "curl -s --limit-rate 4M -o got1 $u; echo $?; wget -q --limit-rate=4m -O got2 $u; echo $?; aria2c -q -x4 -s4 -k1M --max-download-limit=4M -o got3 $u; echo $?; md5sum got*; kill %1; wait",
            {"conf": LIGHTTPD.replace("TO", "file")}, prepare="seq 1200000 > file", needs=("curl", "wget", "aria2c", "/usr/sbin/lighttpd")),
]
