"""Still more programs of docs/programs.md: languages, builds, shells, what computes and draws. None is part of the tests."""
from programs_list import Program

# A coprocess, a trap of each signal and of the end, arithmetic, a pipeline: what each shell has of them.
COPROCESS = {
    "zsh": "coproc while read -r x; do print $((x * x)); done\nask() { print -p $1; read -p y; }\n",
    "ksh": "while read -r x; do print $((x * x)); done |&\nask() { print -p $1; read -p y; }\n",
    "bash": "coproc while read -r x; do echo $((x * x)); done\nask() { echo $1 >&${COPROC[1]}; read -r y <&${COPROC[0]}; }\n",
    "dash": "mkfifo to from 2> /dev/null; (while read -r x; do echo $((x * x)); done) < to > from & exec 8> to 9< from\nask() { echo $1 >&8; read -r y <&9; }\n",
}
TRAPS = """
trap 'n=$((n + 1))' USR1
trap 'echo the end $n $s' EXIT
n=0; s=0; i=0
while [ $i -lt 150 ]; do
  i=$((i + 1)); ask $i; s=$((s + y))
  [ $((i % 10)) -ne 0 ] || { kill -USR1 $$; sleep 0.01; }
  sleep 0.005
done
(echo below; sleep 0.1; exit 3); echo $?
seq 1000 | sort -r | tail -1
"""
FISH = """
set s 0
function on_usr1 --on-signal USR1; set -g n (math $n + 1); end
set -g n 0
for i in (seq 60)
  set s (math $s + (echo $i | awk '{print $1 * $1}'))
  test (math $i % 10) -ne 0; or kill -USR1 $fish_pid
  sleep 0.005
end
sh -c 'sleep 0.1; exit 3' &
wait; echo $s $n; sh -c 'exit 4'; echo $status
"""
EXPECT = r"""
log_user 0
set timeout 30
spawn -noecho sh -c {stty -echo; while read x; do sleep 0.005; echo "got $((x * x))"; done}
set sum 0
for {set i 1} {$i <= 300} {incr i} {
  send "$i\r"
  expect {
    -re {got (\d+)\r\n} { set sum [expr {$sum * 3 % 1000003 + $expect_out(1,string)}] } timeout { puts timeout; exit 1 } eof { puts eof; exit 2 } }
}
send "\004"
expect eof
puts "$sum [lindex [wait] 3]"
"""
TCL = r"""
set p [open "|sh -c {while read x; do echo \$((x * 3)); sleep 0.003; done}" r+]
fconfigure $p -buffering line
set sum 0; set n 0; set ticks 0
proc tick {} { incr ::ticks; after 5 tick }
after 5 tick
proc got {} { global p sum n; gets $p line; set sum [expr {$sum + $line * $n}]; if {[incr n] < 200} { puts $p $n } else { set ::done 1 } }
fileevent $p readable got
puts $p 0
vwait done
puts "$sum [expr {$ticks > 10}]"
"""

LUA = """
local function co(n) return coroutine.wrap(function() for i = 1, n do coroutine.yield(i * i % 97) end end) end
local sum, t = 0, {}
for k = 1, 200 do
  local c = co(2000)
  for v in c do sum = (sum * 31 + v) % 1000003; t[#t % 5000 + 1] = {v, sum} end
  if k % 10 == 0 then local p = io.popen("sleep 0.01; echo " .. k); sum = sum + p:read("n"); p:close() end
end
print(sum, #t)
"""
GUILE = """
(use-modules (ice-9 threads) (ice-9 popen) (ice-9 rdelim))
(define (work k) (let loop ((i 0) (s k)) (if (< i 1500000) (loop (+ i 1) (modulo (+ (* s 31) i) 1000003)) s)))
(define threads (map (lambda (k) (call-with-new-thread (lambda () (work k)))) '(1 2 3)))
(define sum (let loop ((k 0) (s 0)) (if (< k 40) (let* ((p (open-input-pipe (string-append "sleep 0.01; echo " (number->string (* k k)))))
  (n (string->number (read-line p)))) (close-pipe p) (loop (+ k 1) (+ s n (length (make-list 10000 k))))) s)))
(display (list sum (map join-thread threads))) (newline)
"""
SBCL = """
(defun work (k) (let ((s k) (l nil)) (dotimes (i 4000000 (list s (length l))) (setf s (mod (+ (* s 31) i) 1000003)) (when (zerop (mod i 100)) (push (make-array 40 :initial-element i) l)) (when (zerop (mod i 300000)) (setf l nil)))))
(let ((threads (loop for k from 1 to 3 collect (let ((k k)) (sb-thread:make-thread (lambda () (work k)))))))
  (dotimes (k 20) (sb-ext:run-program "/bin/sleep" '("0.02")))
  (print (mapcar #'sb-thread:join-thread threads)) (terpri))
"""
RACKET = """
#lang racket/base
(require racket/system racket/port racket/place racket/list)
(define ch (make-channel))
(define ts (for/list ([k 4]) (thread (lambda () (for ([i 200]) (channel-put ch (* i k)) (sleep 0.001))))))
(define sum (for/fold ([s 0]) ([n 800]) (+ s (channel-get ch))))
(define out (for/list ([k 20]) (string-length (with-output-to-string (lambda () (system (format "sleep 0.02; seq ~a" (* k 10))))))))
(define l (for/fold ([l '()]) ([i 3000000]) (if (zero? (modulo i 100000)) '() (cons i l))))
(displayln (list sum out (length l)))
"""
FORTH = """
: work ( n -- s ) 0 swap 0 do 31 * i + 1000003 mod loop ;
: all 0 60 0 do 1000000 i + work + 5 ms loop . cr ;
all bye
"""
OCAML = """
let child k = let r, w = Unix.pipe () in
  match Unix.fork () with
  | 0 -> Unix.close r; let s = ref k in for i = 1 to 3000000 do s := (!s * 31 + i) mod 1000003 done;
      let o = Unix.out_channel_of_descr w in output_value o (List.init 1000 (fun i -> i * !s)); close_out o; exit (k mod 7)
  | pid -> Unix.close w; let i = Unix.in_channel_of_descr r in let (l : int list) = input_value i in close_in i;
      (match Unix.waitpid [] pid with _, Unix.WEXITED c -> c | _ -> 99) + List.fold_left (+) 0 l
let () =
  let t = Thread.create (fun () -> for _ = 1 to 200 do Thread.delay 0.005 done) () in
  Printf.printf "%d\\n%!" (List.fold_left (fun a k -> a * 3 + child k) 0 (List.init 30 Fun.id)); Thread.join t
"""
HASKELL = """
import Control.Concurrent
import Control.Monad
import qualified Data.Map.Strict as M
import System.Process
work :: Int -> Int
work k = M.foldl' (+) 0 (M.fromList [((i * 7919 + k) `mod` 100003, i) | i <- [1 .. 300000]])
main :: IO ()
main = do
  done <- newEmptyMVar
  forM_ [1 .. 4] $ \\k -> forkIO (do { let { s = work k + work (k + 10) }; s `seq` threadDelay 20000; putMVar done s })
  texts <- forM [1 .. 30 :: Int] $ \\k -> readProcess "sh" ["-c", "sleep 0.02; cat"] (show (k * k))
  sums <- replicateM 4 (takeMVar done)
  print (sum sums, sum (map read texts :: [Int]))
"""
GO = """
package main
import ("fmt"; "net"; "bufio"; "os/exec"; "sync"; "time"; "runtime")
// #include <stdlib.h>
import "C"
func main() {
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	go func() { for { c, _ := l.Accept(); go func() { s := bufio.NewScanner(c); for s.Scan() { fmt.Fprintln(c, len(s.Text())) } }() } }()
	var w sync.WaitGroup
	sums := make([]int, 6)
	for k := range sums { w.Add(1); go func(k int) { defer w.Done()
		c, _ := net.Dial("tcp", l.Addr().String()); r := bufio.NewScanner(c)
		for i := 0; i < 300; i++ { fmt.Fprintf(c, "%0*d\\n", i % 50 + 1, k); if !r.Scan() { fmt.Println("lost"); return }; n := 0; fmt.Sscan(r.Text(), &n); sums[k] += n * i
			x := make([]byte, 50000); x[i] = 1; time.Sleep(3 * time.Millisecond) } }(k) }
	n := 0
	for i := 0; i < 20; i++ { out, err := exec.Command("sh", "-c", "sleep 0.01; echo 12").Output(); if err != nil { fmt.Println(err) }; n += len(out) }
	w.Wait(); runtime.GC()
	fmt.Println(sums, n, C.abs(-3))
}
"""
ELISP = """
(let ((sum 0) (p (make-process :name "p" :command '("cat") :connection-type (if (equal (getenv "KIND") "pty") 'pty 'pipe)
        :filter (lambda (_ text) (setq sum (+ sum (length text)))))))
  (dotimes (i 150) (process-send-string p (format "line %d\\n" i)) (accept-process-output p 0.02)
    (with-temp-buffer (dotimes (k 300) (insert (format "%d " (* k i)))) (sort-numeric-fields 1 (point-min) (point-max)) (setq sum (+ sum (buffer-size)))))
  (dotimes (k 15) (setq sum (+ sum (length (shell-command-to-string (format "sleep 0.02; seq %d" k))))))
  (with-temp-file "result" (insert (format "%d\\n" sum))))
"""
BLAS = """
import numpy as np, scipy.linalg as la, scipy.sparse as sp, scipy.sparse.linalg as sl
r = np.random.default_rng(1)
a = r.standard_normal((500, 500))
s = 0.0
for k in range(25):
    a = a @ a.T
    a /= np.abs(a).max()
    u, d, v = la.svd(a[:200, :200])
    s += d[0] + float(np.fft.fft2(a).real.sum()) + la.lu(a)[2][0, 0]
m = sp.diags([-1, 2.1, -1], [-1, 0, 1], (4000, 4000)).tocsc()
s += sl.spsolve(m, np.ones(4000)).sum()
print(np.round(s, 6), np.show_config is not None)
"""
PANDAS = """
import numpy as np, pandas as pd
r = np.random.default_rng(3)
d = pd.DataFrame({'k': r.integers(0, 500, 300000), 'v': r.integers(0, 1000, 300000)})
t = 0
for n in range(12):
    g = d.groupby('k').v.agg(['sum', 'count', 'max'])
    j = d.merge(g, left_on='k', right_index=True).sort_values(['v', 'k'], kind='stable')
    j.head(20000).to_csv('x.csv', index=False)
    t = (t * 31 + int(pd.read_csv('x.csv')['sum'].sum()) + n) % 1000000007
print(t)
"""
JOBLIB = """
import joblib, numpy as np, time
def f(i, a): time.sleep(0.01); return float((a * i).sum())
if __name__ == '__main__':
    a = np.arange(200000.0)
    for kind in ('loky', 'threading', 'multiprocessing'):
        print(kind, sum(joblib.Parallel(n_jobs=2, backend=kind)(joblib.delayed(f)(i, a) for i in range(60))), flush=True)
"""
DASK = """
import time
def inc(x): time.sleep(0.01); return x + 1
def main():
    from dask.distributed import Client, LocalCluster
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None, host='127.0.0.1') as c, Client(c) as client:
        fs = client.map(inc, range(200))
        print(client.submit(sum, fs).result(), sum(client.gather(client.map(inc, range(1000, 1100)))), flush=True)
if __name__ == '__main__': main()
"""
LEARN = """
import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.cluster import KMeans
from sklearn.datasets import make_classification
x, y = make_classification(3000, 20, random_state=1)
m = RandomForestClassifier(150, n_jobs=2, random_state=1).fit(x, y)
k = KMeans(8, n_init=10, random_state=1).fit(x)
print(m.score(x, y), round(k.inertia_, 6), np.bincount(m.predict(x)))
"""
PARTS = "for i in $(seq 24); do echo \"int part$i(int a){int s=$i;for(int i=0;i<a;i++){s=s*31+i%$i;if(s%7==3)s^=a;}return s;}\" > part$i.c; done\n" \
        "(for i in $(seq 24); do echo \"int part$i(int);\"; done; echo '#include <stdio.h>'; echo 'int main(void){unsigned s=0;'; for i in $(seq 24); do echo \"s=s*7+part$i(1000);\"; done; echo 'printf(\"%u\\n\",s);return 0;}') > main.c\n"
CMAKE = "cmake_minimum_required(VERSION 3.10)\nproject(x C)\nfile(GLOB S CONFIGURE_DEPENDS *.c)\nadd_executable(x ${S})\n"
LTO = "CFLAGS := -O2 -flto\nx: $(patsubst %.c,%.o,$(wildcard *.c))\n\t+$(CC) -O2 -flto=jobserver -o $@ $^\nall2:\n\t+$(MAKE) -C . x\n"
TEX = "\\documentclass{article}\\begin{document}\\newcount\\n\\n=0\\loop\\ifnum\\n<1500\\advance\\n by 1 Line \\the\\n: $x^{\\the\\n}=\\sum_{i=0}^{\\the\\n} i$.\\par\\repeat\\end{document}\n"
NPM = """
{"name": "top", "version": "1.0.0", "dependencies": {"a": "file:a.tgz", "b": "file:b.tgz"}, "scripts": {"test": "node -e \\"console.log(require('a') + require('b'))\\""}}
"""
PY = "/usr/bin/python3 "

LANGUAGES = [
    *[Program(f"{name}-traps", f"{name}: coprocess, traps, pipeline" if name != "dash" else "dash: FIFOs, traps, pipeline", f"dpkg-query -W -f '{name} ${{Version}}' {package}",
              f"{name} all.sh", {"all.sh": text + TRAPS}, needs=(name,)) for (name, text), package in zip(COPROCESS.items(), ("zsh", "ksh93u+m", "bash", "dash"))],
    Program("fish", "fish: functions on signals, background", "fish --version", "fish all.fish", {"all.fish": FISH}, needs=("fish",)),
    Program("expect", "expect: a program on a terminal", "expect -v", "expect all.exp", {"all.exp": EXPECT}, needs=("expect",)),
    Program("tcl", "Tcl: event loop, a pipe", "echo 'puts \"Tcl [info patchlevel]\"' | tclsh", "tclsh all.tcl", {"all.tcl": TCL}, needs=("tclsh",)),
    Program("lua", "Lua: coroutines, popen", "lua5.4 -v", "lua5.4 all.lua", {"all.lua": LUA}, needs=("lua5.4",)),
    Program("guile", "Guile: threads, pipes", "guile --version", "guile --no-auto-compile all.scm", {"all.scm": GUILE}, needs=("guile",)),
    Program("sbcl", "SBCL: threads, garbage collection", "sbcl --version", "sbcl --script all.lisp", {"all.lisp": SBCL}, needs=("sbcl",)),
    Program("racket", "Racket: threads, system", "racket --version", "racket all.rkt", {"all.rkt": RACKET.lstrip()}, needs=("racket",)),
    Program("gforth", "Gforth", "gforth --version", "gforth all.fs", {"all.fs": FORTH}, needs=("gforth",)),
    Program("ocaml", "OCaml, byte code: fork, threads", "ocamlc -version", "ocamlrun ./all", {"all.ml": OCAML},
            prepare="ocamlfind ocamlc -I +threads unix.cma threads.cma all.ml -o all 2> /dev/null || ocamlc -I +threads unix.cma threads.cma all.ml -o all", needs=("ocamlc",)),
    Program("ocamlopt", "OCaml, native: fork, threads", "ocamlopt -version", "./all", {"all.ml": OCAML}, prepare="ocamlopt -I +threads unix.cmxa threads.cmxa all.ml -o all", needs=("ocamlopt",)),
    Program("haskell", "GHC: threaded run time, two capabilities", "ghc --version", "./all +RTS -N2 && ./all +RTS -N1 -c", {"all.hs": HASKELL}, prepare="ghc -v0 -threaded -rtsopts -O1 -dynamic all.hs || ghc -v0 -threaded -rtsopts -O1 all.hs", needs=("ghc",)),
    Program("go", "Go, with cgo: goroutines, connections, children", "go version", "./all", {"all.go": GO}, prepare="go build -o all all.go", needs=("go",)),
    *[Program(f"emacs-{kind}", f"emacs {how}: a process on a {kind}", "emacs --version", f"rm -f result; export KIND={kind}; " + command + "; cat result", {"all.el": ELISP}, needs=("emacs",))
      for kind, how, command in (("pipe", "-batch", "emacs -Q -batch -l all.el"), ("pty", "on a terminal", "script -qec 'TERM=xterm emacs -Q -nw -l all.el -f kill-emacs' /dev/null < /dev/null > screen"))],
    Program("numpy", "NumPy and SciPy with OpenBLAS, two threads", PY + "-c 'import numpy, scipy; print(\"NumPy\", numpy.__version__, \"SciPy\", scipy.__version__)'", "OPENBLAS_NUM_THREADS=2 " + PY + "all.py", {"all.py": BLAS}, needs=("/usr/share/doc/python3-scipy",)),
    Program("pandas", "pandas", PY + "-c 'import pandas; print(\"pandas\", pandas.__version__)'", PY + "all.py", {"all.py": PANDAS}, needs=("/usr/share/doc/python3-pandas",)),
    Program("joblib", "joblib: loky, threads, multiprocessing", PY + "-c 'import joblib; print(\"joblib\", joblib.__version__)'", PY + "all.py", {"all.py": JOBLIB}, needs=("/usr/share/doc/python3-joblib",)),
    Program("dask", "dask.distributed: two workers", PY + "-c 'import distributed; print(\"distributed\", distributed.__version__)'", PY + "all.py 2> log", {"all.py": DASK}, needs=("/usr/share/doc/python3-distributed",)),
    Program("sklearn", "scikit-learn: forest, k-means", PY + "-c 'import sklearn; print(\"scikit-learn\", sklearn.__version__)'", PY + "all.py", {"all.py": LEARN}, needs=("/usr/share/doc/python3-sklearn",)),
    Program("cmake-ninja", "cmake, ninja", "ninja --version", "rm -rf b; cmake -S . -B b -G Ninja > log && ninja -j3 -C b > log2; b/x", {"CMakeLists.txt": CMAKE}, prepare=PARTS, needs=("cmake", "ninja")),
    Program("make-jobserver", "make -j3 in itself, gcc -flto=jobserver", "make --version", "rm -f *.o x; make -s -j3 all2; ./x", {"Makefile": LTO}, prepare=PARTS, needs=("make", "gcc")),
    Program("ccache", "ccache below make", "ccache --version", "export CCACHE_DIR=$PWD/cc; rm -f *.o x; make -s -j3 CC='ccache gcc' x && ./x; rm -f *.o x; make -s -j3 CC='ccache gcc' x; ./x", {"Makefile": LTO.replace("=jobserver", "=2")}, prepare=PARTS, needs=("ccache",)),
    Program("cargo", "cargo build", "cargo --version", "export HOME=$(getent passwd $(id -u) | cut -d: -f6); rm -rf target; cargo build -q --offline && target/debug/x",
            {"Cargo.toml": "[package]\nname = \"x\"\nversion = \"0.1.0\"\nedition = \"2021\"\n"},
            prepare="mkdir src; (for i in $(seq 60); do echo \"mod m$i;\"; (for j in $(seq 30); do echo \"pub fn f$j(v: &[u64]) -> Vec<String> { v.iter().filter(|x| *x % $j == 0).map(|x| format!(\\\"{}-$i\\\", x)).collect() }\"; done) > src/m$i.rs; done; echo 'fn main() { let v: Vec<u64> = (0..1000).collect(); let mut n = 0;'; for i in $(seq 60); do echo \"n += m$i::f7(&v).join(\\\"\\\").len();\"; done; echo 'println!(\"{}\", n); }') > src/main.rs",
            needs=("cargo",)),
    Program("go-build", "go build", "go version", "rm -rf cache x; GOFLAGS=-mod=mod GOCACHE=$PWD/cache go build -o x . && ./x", {"go.mod": "module x\n", "main.go": "package main\nimport \"fmt\"\nfunc main() { fmt.Println(\"built\") }\n"}, needs=("go",), why="the command go is a static program"),
    Program("npm", "npm ci, npm test", "npm --version", "rm -rf node_modules; npm ci --offline --silent --cache $PWD/cache && npm test --silent", {"package.json": NPM.strip() + "\n"},
            prepare="for p in a b; do mkdir -p $p/package; echo '{\"name\":\"'$p'\",\"version\":\"1.0.0\"}' > $p/package/package.json; (for i in $(seq 300); do echo $i > $p/package/f$i.txt; done; echo \"module.exports = '$p';\" > $p/package/index.js); tar -C $p -czf $p.tgz package; done; npm install --offline --silent --cache $PWD/cache --package-lock-only",
            needs=("npm",)),
    Program("git-clone", "git clone over file://", "git --version", "rm -rf to; git clone -q file://$PWD/from to && cd to && git fsck 2>&1; git rev-list --all --objects | sort | md5sum; cat g* | md5sum",
            prepare="git init -q from && cd from && git config user.email a@b && git config user.name a && export GIT_AUTHOR_DATE='2020-01-01 00:00 +0000' GIT_COMMITTER_DATE='2020-01-01 00:00 +0000' && for i in $(seq 60); do seq $((i * 300)) > f$((i % 7)); seq $i 3000 > g$i; git add -A; git commit -qm $i; done", stops=True),
    Program("sqlite3", "sqlite3, the shell: transactions with a rollback journal", "sqlite3 --version",
            "rm -f t.db; (echo 'create table t (n integer primary key, v text);'; for i in $(seq 200); do echo \"begin; insert into t values ($i, hex(zeroblob($i))); update t set v = v || 'x' where n % 7 = $((i % 7)); commit;\"; sleep 0.004; done; echo 'select count(*), sum(length(v)) from t; pragma integrity_check;') | sqlite3 t.db",
            needs=("sqlite3",), stops=True),
    Program("imagemagick", "ImageMagick", "convert --version", "convert -size 600x400 plasma:fractal -seed 1 -blur 0x6 x.png 2> log; convert -size 500x500 gradient:red-blue -swirl 180 -blur 0x12 -resize 300% -rotate 30 -depth 8 rgb:- | md5sum", needs=("convert",)),
    Program("pdflatex", "pdflatex", "pdflatex --version", "SOURCE_DATE_EPOCH=0 FORCE_SOURCE_DATE=1 pdflatex -interaction=batchmode x.tex > out; md5sum < x.pdf", {"x.tex": TEX}, needs=("pdflatex",)),
    Program("gstreamer", "GStreamer: threads", "gst-launch-1.0 --version", "gst-launch-1.0 -q videotestsrc num-buffers=300 pattern=ball ! video/x-raw,width=640,height=480 ! videoconvert ! queue ! videoscale ! video/x-raw,format=RGB,width=320,height=240 ! queue ! filesink location=out && md5sum < out", needs=("gst-launch-1.0",)),
]
