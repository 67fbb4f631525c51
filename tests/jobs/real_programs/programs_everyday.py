"""More programs of docs/programs.md: compilers, editors, debuggers, interpreters, servers, and what draws. None is part of the tests:
they need what scripts/programs.sh installs, and take long.
"""
from programs_list import HTTP_CLIENT, PORT, Program

JAVA = """
import java.io.*;
import java.util.*;
import java.util.concurrent.*;
public class Children {
  static long child(int n) throws Exception {
    Process p = new ProcessBuilder("sh", "-c", "read x; sleep 0.05; echo $((x * x))").start();
    try (Writer w = new OutputStreamWriter(p.getOutputStream())) { w.write(n + "\\n"); }
    try (BufferedReader r = new BufferedReader(new InputStreamReader(p.getInputStream()))) {
      long got = Long.parseLong(r.readLine());
      if (p.waitFor() != 0) throw new Exception("exit code");
      return got;
    }
  }
  public static void main(String[] args) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(3);
    List<Future<Long>> all = new ArrayList<>();
    for (int i = 0; i < 60; i++) { int n = i; all.add(pool.submit(() -> child(n))); }
    long sum = 0;
    for (Future<Long> f : all) sum = sum * 31 + f.get();
    pool.shutdown();
    System.out.println(sum);
  }
}
"""

TORCH = """
import torch, torch.utils.data as data
class Squares(data.Dataset):
    def __len__(self): return 240
    def __getitem__(self, i):
        x = torch.full((64, 64), float(i))
        for _ in range(60): x = (x * 1.0001).cos() * i
        return x
torch.manual_seed(1)
torch.set_num_threads(1)
if __name__ == '__main__':
    total = torch.zeros(64, 64, dtype=torch.float64)
    for epoch in range(2):
        for batch in data.DataLoader(Squares(), batch_size=8, num_workers=2, shuffle=True):
            total = total * 0.5 + batch.double().sum(0)
    print(total.sum().item().hex(), total[3, 5].item().hex(), flush=True)
"""

R_PARALLEL = """
library(parallel)
f <- function(i) { Sys.sleep(0.02); sum(sin((1:20000) * i)) }
a <- mclapply(1:60, f, mc.cores = 3)
cl <- makeCluster(2)
b <- parLapply(cl, 1:60, f)
stopCluster(cl)
cat(identical(a, b), format(sum(unlist(a)), digits = 17), "\\n")
"""

OCTAVE = """
total = 0;
for k = 1:25
  [status, text] = system(sprintf("sleep 0.02; echo $((%d * %d))", k, k));
  m = magic(60) * k; total = total + str2num(text) + trace(m * m') + status;
end
out = popen("sort -n > sorted", "w");
for k = 40:-1:1 fprintf(out, "%d\\n", mod(k * 7919, 1009)); fflush(out); pause(0.01); end
status = pclose(out);
in = popen("cat sorted", "r");
s = 0; k = 0;
while ischar(line = fgetl(in)) k++; s += k * str2num(line); pause(0.005); end
status += pclose(in);
printf("%.17g %d %d\\n", total, s, status);
"""

ERLANG = r"""
-module(ring).
-export([main/0]).
node_loop(Next) -> receive {N, Sum} -> timer:sleep(1), Next ! {N - 1, (Sum * 31 + N) rem 1000000007}, node_loop(Next); stop -> Next ! stop end.
ring(0, First) -> node_loop(First);
ring(K, First) -> node_loop(spawn(fun() -> ring(K - 1, First) end)).
turns(Next) -> receive {N, Sum} when N > 0 -> Next ! {N - 1, Sum}, turns(Next); {_, Sum} -> Sum end.
ports(0, Sum) -> Sum;
ports(K, Sum) ->
  Text = os:cmd("sleep 0.02; expr " ++ integer_to_list(K) ++ " \\* 7"),
  {N, _} = string:to_integer(Text),
  ports(K - 1, Sum + N).
main() ->
  Self = self(),
  Next = spawn(fun() -> ring(20, Self) end),
  Next ! {600, 1},
  A = turns(Next),
  Next ! stop,
  Cat = open_port({spawn, "cat"}, [stream, binary]),
  B = lists:sum([begin Cat ! {Self, {command, <<K:32>>}}, receive {Cat, {data, <<K:32>>}} -> timer:sleep(5), K end end || K <- lists:seq(1, 100)]),
  io:format("~p ~p ~p~n", [A, B, ports(20, 0)]),
  halt(0).
"""

MARIADB_CLIENT = """
import subprocess, sys, time
p = subprocess.Popen(['mariadb', '--no-defaults', '-S', 'db.sock', '-u', 'root', '-N', '-B', '-n', 'test'], stdin=subprocess.PIPE,
                     stdout=subprocess.PIPE, text=True, bufsize=1)
def ask(sql):
    p.stdin.write(sql + "; select 'done';\\n")
    lines = []
    while True:
        line = p.stdout.readline()
        if not line: sys.exit('the server is gone')
        if line == 'done\\n': return lines
        lines.append(line.strip())
ask('create table m (k int primary key, n bigint) engine=memory; insert into m values (1, 0), (2, 0)')
ask('create table t (k int primary key, n bigint) engine=innodb; insert into t values (1, 0), (2, 0)')
for i in range(200):
    ask(f'update m set n = n + {i} where k = 1; update m set n = n - {i} where k = 2')
    ask(f'begin; update t set n = n + {i} where k = 1; update t set n = n - {i} where k = 2; commit')
    time.sleep(0.004)
print(ask('select * from m'), ask('select * from t'), ask('check table t'), flush=True)
p.stdin.write('shutdown;\\n')
p.stdin.close()
p.wait()
"""

GDB = """
set pagination off
set confirm off
break step
commands 1
silent
set var total = total + n
if n < 150
continue
end
end
run
print total
delete
continue
"""

LJ = """
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 8 0 8 0 8
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
fix 1 all nve
thermo 20
run 400
"""

EDIT = """
set nomore
for i in range(1, 200)
  call append(line('$'), 'line ' . i . ' ' . i * i)
  execute 'normal! ggddGp'
  if i % 20 == 0 | write! copy | endif
  sleep 5m
endfor
call setline(1, system('tr a-z A-Z', getline(1)))
%s/line/row/
wq!
"""

# pgbench changes three tables and a history by the same amount in each transaction: their sums must stay equal.
SUMS = ("select a = t and t = b and b = d, n from (select sum(abalance) a from pgbench_accounts) a, (select sum(tbalance) t from pgbench_tellers) t,"
        " (select sum(bbalance) b from pgbench_branches) b, (select sum(delta) d, count(*) n from pgbench_history) d")
POSTGRES = "PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -1):$PATH; "

NGINX = """
worker_processes 2; daemon off; pid pid; error_log error.log info;
events { worker_connections 64; }
http {
  access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
  server { listen 127.0.0.1:PORT; root .; location / { try_files /file =404; } }
}
"""

WINDOW = """
for i in $(seq 1 40); do printf '%s ' $((i * 3)); sleep 0.03; done
echo
echo shown > shown
"""

EVERYDAY = [
    Program("make-c", "make -j4 of a C project", "make --version",
            "make -s -j4 && ./sum && make -s clean && make -s -j4 -f Makefile && ./sum && md5sum libparts.a | cut -c1-32",
            {"Makefile": "OBJECTS := $(patsubst %.c,%.o,$(wildcard part*.c))\nCFLAGS := -O2\nsum: main.o libparts.a\n\t$(CC) -o $@ main.o libparts.a\n"
             "libparts.a: $(OBJECTS)\n\t$(AR) rcD $@ $(OBJECTS)\nclean:\n\trm -f sum *.o *.a\n"},
            prepare="for i in $(seq 30); do echo \"int part$i(int a){int s=$i;for(int i=0;i<a;i++){s=s*31+i%$i;if(s%7==3)s^=a;}return s;}\"; done | awk '{print > \"part\" NR \".c\"}'\n"
                    "(echo '#include <stdio.h>'; for i in $(seq 30); do echo \"int part$i(int);\"; done; echo 'int main(void){unsigned s=0;'; for i in $(seq 30); do echo \"s=s*7+part$i(1000);\"; done; echo 'printf(\"%u\\n\",s);return 0;}') > main.c",
            needs=("make", "gcc")),
    Program("vim", "vim on a terminal of its own", "vim --version",
            "script -qec 'vim -u NONE -i NONE -N -S edit.vim text' /dev/null < /dev/null > screen; md5sum text; ls -A | grep -c swp",
            {"edit.vim": EDIT, "text": "one\ntwo\nthree\n"}, needs=("vim", "script")),
    Program("gdb", "gdb with a program under it", "gdb --version", "gdb -nx -batch -x commands ./count 2>&1 | grep -E '^(\\$|total)'",
            {"commands": GDB, "count.c": "#include <stdio.h>\n#include <unistd.h>\nvolatile long total;\nvoid step(int n) { usleep(5000); }\n"
             "int main(void) { for (int i = 0; i < 300; i++) { step(i); total++; } printf(\"total %ld\\n\", total); return 0; }\n"},
            prepare="gcc -g -O0 -o count count.c", needs=("gdb", "gcc")),
    Program("screen", "screen with a window", "screen --version",
            "export SCREENDIR=$PWD/dir; mkdir -pm 700 dir; rm -f shown; screen -S s -s /bin/sh -D -m bash window.sh & until [ -e shown ]; do sleep 0.05; done\n"
            "screen -S s -X hardcopy $PWD/copy; until [ -s copy ]; do sleep 0.05; done; head -2 copy; touch end; wait $!; echo $?",
            {"window.sh": WINDOW + "until [ -e end ]; do sleep 0.05; done\n"}, needs=("screen",)),
    Program("xterm", "Xvfb with xterm", "xterm -version",
            "rm -f shown number; exec 8> number; Xvfb -displayfd 8 -screen 0 500x300x8 -nolisten tcp 2> log & until [ -s number ]; do sleep 0.05; done\n"
            "DISPLAY=:$(cat number) xterm -geometry 60x10 -e bash window.sh 2>> log; cat shown lines; kill %1; wait",
            {"window.sh": WINDOW + "stty size > lines; tty | cut -c1-9 >> lines\n"}, needs=("Xvfb", "xterm")),
    Program("ffmpeg", "ffmpeg: two encoders, threads, a pipe", "ffmpeg -version",
            "ffmpeg -v error -f lavfi -i testsrc=size=320x240:rate=25 -t 16 -threads 2 -flags +bitexact -fflags +bitexact -c:v mpeg4 -f avi - | "
            "ffmpeg -v error -i - -threads 2 -flags +bitexact -fflags +bitexact -c:v ffv1 -y out.mkv && ffmpeg -v error -i out.mkv -f md5 -",
            needs=("ffmpeg",)),
    Program("R", "R with parallel: forked workers and a cluster", "R --version", "Rscript parallel.R", {"parallel.R": R_PARALLEL}, needs=("Rscript",)),
    Program("octave", "Octave: system, popen2", "octave-cli --version", "octave-cli --norc -q many.m", {"many.m": OCTAVE}, needs=("octave-cli",)),
    Program("java", "Java: threads that start children", "java -version", "java -cp . Children", {"Children.java": JAVA}, prepare="javac Children.java",
            needs=("java", "javac")),
    Program("torch", "PyTorch DataLoader, two workers", "/usr/bin/python3 -c 'import torch; print(\"PyTorch\", torch.__version__)'",
            "/usr/bin/python3 load.py", {"load.py": TORCH}, needs=("/usr/share/doc/python3-torch",)),
    Program("erlang", "Erlang: processes, ports", "erl -noshell -eval 'io:format(\"Erlang/OTP ~s~n\", [erlang:system_info(otp_release)]), halt().'",
            "erl -noshell -s ring main", {"ring.erl": ERLANG}, prepare="erlc ring.erl", needs=("erl", "erlc")),
    Program("mariadb", "MariaDB (no native AIO), a client", "mariadbd --version",
            "mariadbd --no-defaults --user=$(id -un) --datadir=$PWD/data --socket=$PWD/db.sock --skip-networking --skip-innodb-use-native-aio --pid-file=$PWD/pid 2> log &\n"
            "until mariadb --no-defaults -S db.sock -u root -e 'create database test' 2> /dev/null; do sleep 0.1; done; python3 client.py; code=$?; wait; exit $code",
            {"client.py": MARIADB_CLIENT},
            prepare="mariadb-install-db --no-defaults --user=root --auth-root-authentication-method=normal --datadir=$PWD/data --skip-test-db", needs=("mariadbd",), stops=True),
    Program("postgresql", "PostgreSQL under pgbench, four clients", POSTGRES + "postgres --version",
            POSTGRES + "postgres -D data -k $PWD -c listen_addresses= -c shared_buffers=16MB 2> log & until pg_isready -q -h $PWD; do sleep 0.05; done\n"
            "pgbench -h $PWD -n -c 4 -j 2 -t 200 postgres 2>&1 | grep -E 'processed|failed|aborted'\n"
            f'psql -h $PWD -Atc "{SUMS}" postgres 2>&1; kill -INT %1; wait %1; echo $?',
            prepare="chmod 755 ..; mkdir data; chown nobody data; U='setpriv --reuid=nobody --regid=nogroup --clear-groups'\n" + POSTGRES +
                    "$U initdb -D data -N -A trust --no-instructions; cd data; $U pg_ctl -s -w -D . -o \"-k $PWD -c listen_addresses=\" -l log start\n"
                    "$U pgbench -h $PWD -q -i -s 1 postgres; $U pg_ctl -s -w -D . stop",
            needs=("/usr/lib/postgresql",), stops=True, as_user=True),
    Program("nginx", "nginx, two workers, a client", "nginx -v",
            PORT + "sed s/PORT/$port/ nginx.conf > own.conf; nginx -p $PWD -c own.conf 2> log & python3 client.py $port; code=$?; kill -QUIT %1; wait %1; echo $?; exit $code",
            {"nginx.conf": NGINX, "client.py": HTTP_CLIENT}, prepare="head -c 20000 <(yes what is served) > file", needs=("nginx",), as_user=True),
    Program("lammps", "LAMMPS (as Debian builds it, without OpenMP)", "lmp -h | grep Massively", "lmp -in in.lj -log none | grep -E '^ +[0-9]+ +[-0-9.]+ '",
            {"in.lj": LJ}, needs=("lmp",)),
    Program("gromacs", "GROMACS with OpenMP, two threads", "gmx --version | grep -m1 'GROMACS version'",
            "gmx -quiet mdrun -s water.tpr -ntmpi 1 -ntomp 2 -nb cpu -pin off -reprod -nsteps 300 -deffnm run 2> log; gmx -quiet dump -e run.edr 2> /dev/null | grep -E 'Potential|Pressure ' | md5sum; md5sum < run.gro",
            {"topol.top": "#include \"oplsaa.ff/forcefield.itp\"\n#include \"oplsaa.ff/spce.itp\"\n[ system ]\nwater\n[ molecules ]\n",
             "md.mdp": "integrator = md\nnsteps = 300\nnstenergy = 50\nnstcalcenergy = 50\ncutoff-scheme = Verlet\ncoulombtype = PME\n"},
            prepare="gmx -quiet solvate -cs spc216 -box 2.2 2.2 2.2 -p topol.top -o water.gro 2> log && gmx -quiet grompp -f md.mdp -c water.gro -p topol.top -o water.tpr -maxwarn 5 >> log 2>&1",
            needs=("gmx",)),
]
