"""Still more programs of docs/programs.md: what people compute and serve with, as PyPI and npm have it. scripts/programs.sh --newest installs
these into ~/.cache/ckpt_rt/programs. None is part of the tests."""
import os

from programs_list import Program

HOME = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "ckpt_rt", "programs")
PYTHON = os.path.join(HOME, "venv", "bin", "python3")
NODE = os.path.join(HOME, "node_modules", ".bin")

NUMBA = """
import numba, numpy as np
@numba.njit(parallel=True)
def steps(a, n):
    for k in range(n):
        for i in numba.prange(a.size):
            a[i] = (a[i] * 6364136223846793005 + 1442695040888963407) ^ (a[i] >> np.uint64(17))
a = np.arange(1 << 20, dtype=np.uint64)
for round in range(12):
    steps(a, 20)
    print(round, int(np.bitwise_xor.reduce(a)), flush=True)
"""
POLARS = """
import polars as pl
n = 400_000
frame = pl.DataFrame({'k': range(n)}).with_columns(g=pl.col('k') * 7919 % 1009, v=(pl.col('k') * 104729 % 1000003))
for round in range(25):
    out = (frame.lazy().filter(pl.col('v') % (round + 2) != 0).group_by('g').agg(pl.col('v').sum(), pl.len().alias('n'))
           .join(frame.lazy().group_by('g').agg(pl.col('k').max()), on='g').sort('g').collect())
    print(round, out['v'].sum(), out['n'].sum(), out['k'].sum(), out['v'][500], flush=True)
"""
DUCKDB = """
import duckdb
db = duckdb.connect('data.db', config={'threads': 3})
db.execute('create or replace table t as select i as k, i * 7919 % 1009 as g, i * 104729 % 1000003 as v from range(300000) r(i)')
for round in range(20):
    db.execute('insert into t select k + 1000000, g, v % ? from t where k % 17 = ?', [round + 2, round % 17])
    print(round, db.execute('select count(*), sum(v), max(k), count(distinct g) from t').fetchone(),
          db.execute('select g, sum(v) s from t group by g order by s desc, g limit 2').fetchall(), flush=True)
"""
ARROW = """
import pyarrow as pa, pyarrow.compute as pc, pyarrow.dataset as ds, pyarrow.parquet as pq
import numpy as np
k = np.arange(300_000)
for part in range(8):
    pq.write_table(pa.table({'k': k + part, 'g': k * 7919 % 1009, 'v': k * 104729 % 1000003 / 7}), f'part{part}.parquet', row_group_size=20000)
for round in range(12):
    t = ds.dataset([f'part{p}.parquet' for p in range(8)]).to_table(filter=pc.field('g') > round * 50)
    s = t.group_by('g').aggregate([('v', 'max'), ('k', 'sum')]).sort_by('g')
    print(round, t.num_rows, pc.sum(s['k_sum']).as_py(), pc.max(s['v_max']).as_py(), flush=True)
"""
BOOST = """
import sys, numpy as np
r = np.random.default_rng(1)
x = r.normal(size=(4000, 20)); y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(int)
if sys.argv[1] == 'xgboost':
    import xgboost
    m = xgboost.train({'nthread': 2, 'tree_method': 'hist', 'seed': 1, 'objective': 'binary:logistic'}, xgboost.DMatrix(x, y), 250)
    print(round(float(m.predict(xgboost.DMatrix(x)).sum()), 3), len(m.get_dump()))
else:
    import lightgbm
    m = lightgbm.train({'num_threads': 2, 'seed': 1, 'deterministic': True, 'force_row_wise': True, 'verbose': -1, 'objective': 'binary'}, lightgbm.Dataset(x, y), 350)
    print(round(float(m.predict(x).sum()), 3), m.num_trees())
"""
JAX = """
import jax, jax.numpy as jnp
@jax.jit
def step(w, k):
    x = jax.random.normal(k, (256, 64))
    loss = lambda w: jnp.mean((jnp.tanh(x @ w[0]) @ w[1] - x[:, :8].sum(1, keepdims=True)) ** 2)
    g = jax.grad(loss)(w)
    return [a - 0.01 * b for a, b in zip(w, g)], loss(w)
k = jax.random.PRNGKey(0)
w = [jax.random.normal(k, (64, 32)) / 8, jax.random.normal(k, (32, 1)) / 6]
for n in range(3000):
    k, s = jax.random.split(k)
    w, l = step(w, s)
    if n % 300 == 0: print(n, f'{float(l):.5f}', flush=True)
"""
TENSORFLOW = """
import os
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(2)
tf.keras.utils.set_random_seed(1)
tf.config.experimental.enable_op_determinism()
x = tf.random.stateless_normal((2000, 32), (1, 2)); y = tf.reduce_sum(x[:, :4], axis=1)
m = tf.keras.Sequential([tf.keras.layers.Dense(64, activation='relu'), tf.keras.layers.Dense(1)])
m.compile('adam', 'mse')
h = m.fit(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2000, seed=1).batch(32).prefetch(2), epochs=8, verbose=0)
print([f'{v:.4f}' for v in h.history['loss']])
"""
RAY = """
import logging, os, ray, time
os.environ['RAY_DISABLE_DOCKER_CPU_WARNING'] = '1'
ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False, object_store_memory=100_000_000, _temp_dir=os.environ.get('RAY_DIR', '/tmp/ray'))
@ray.remote
def square(n):
    time.sleep(0.01)
    return n * n
@ray.remote
class Counter:
    def __init__(self): self.n = 0
    def add(self, k):
        self.n += k
        return self.n
c = Counter.remote()
for round in range(8):
    print(round, sum(ray.get([square.remote(i) for i in range(40)])), ray.get([c.add.remote(i) for i in range(20)])[-1], flush=True)
ray.shutdown()
"""
JUPYTER = """
import jupyter_client
manager, client = jupyter_client.manager.start_new_kernel(kernel_name='python3')
def ask(code):
    out = []
    client.execute_interactive(code, output_hook=lambda m: out.append(m['content'].get('text', '')) if m['msg_type'] == 'stream' else None, timeout=120)
    return ''.join(out).strip()
ask('import time; total = 0')
for n in range(60):
    print(n, ask(f'time.sleep(0.01); total += {n}; print(total)'), flush=True)
client.stop_channels(); manager.shutdown_kernel()
"""
UVLOOP = """
import asyncio, uvloop, sys
async def serve(r, w):
    while (line := await r.readline()):
        w.write(b'%d\\n' % (int(line) * 3)); await w.drain()
    w.close()
async def client(port, k):
    r, w = await asyncio.open_connection('127.0.0.1', port)
    total = 0
    for n in range(150):
        w.write(b'%d\\n' % (n * k)); total += int(await r.readline())
        await asyncio.sleep(0.004)
    w.close()
    return total
async def main():
    s = await asyncio.start_server(serve, '127.0.0.1', 0)
    p = await asyncio.create_subprocess_exec('sort', '-n', stdin=-1, stdout=-1)
    totals = await asyncio.gather(*[client(s.sockets[0].getsockname()[1], k) for k in range(1, 5)])
    print(totals, (await p.communicate(b'3\\n1\\n2\\n'))[0])
uvloop.run(main())
"""
GRPC = """
import grpc, time
from concurrent import futures
same = lambda b: b
def stream(request, context):
    for i in range(int(request)):
        time.sleep(0.005); yield b'%d' % (i * i)
server = grpc.server(futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler('s', {
    'one': grpc.unary_unary_rpc_method_handler(lambda r, c: r[::-1], same, same), 'many': grpc.unary_stream_rpc_method_handler(stream, same, same)}),))
port = server.add_insecure_port('127.0.0.1:0'); server.start()
with grpc.insecure_channel(f'127.0.0.1:{port}') as channel:
    one, many = channel.unary_unary('/s/one', same, same), channel.unary_stream('/s/many', same, same)
    for n in range(30):
        print(n, one(b'message %d' % n), sum(map(int, many(b'8'))), flush=True)
server.stop(0)
"""
OPTUNA = """
import optuna, time
optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
def objective(t):
    time.sleep(0.01)
    return (t.suggest_float('x', -9, 9) - 2) ** 2 + t.suggest_int('n', 0, 9)
study.optimize(objective, n_trials=80)
print(len(study.trials), f'{study.best_value:.6f}', study.best_params['n'])
"""
SPARK = """
from pyspark.sql import SparkSession, functions as f
s = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false').config('spark.sql.shuffle.partitions', 4).getOrCreate()
s.sparkContext.setLogLevel('OFF')
for n in range(8):
    r = s.range(200000).withColumn('g', f.col('id') * 7919 % 101).groupBy('g').agg(f.sum('id').alias('v')).orderBy('g').collect()
    print(n, len(r), sum(x['v'] for x in r), s.sparkContext.parallelize(range(1000), 3).map(lambda x: x * n).sum(), flush=True)
s.stop()
"""
SCRIPT = """
import { spawn } from 'node:child_process';
import http from 'node:http';
import { Worker } from 'node:worker_threads';
import fs from 'node:fs';
const source = `const { parentPort } = require('node:worker_threads'); parentPort.on('message', (n) => { let x = n; for (let i = 0; i < 2e5; i++) x = (x * 1103515245 + 12345) % 2147483648; parentPort.postMessage([n, x]); });`;
fs.writeFileSync('worker.cjs', source);
const worker = new Worker(new URL('./worker.cjs', import.meta.url));
const server = http.createServer((q, a) => a.end(q.url.split('').reverse().join('')));
await new Promise((done) => server.listen(0, '127.0.0.1', done));
const cat = spawn('cat'); let echoed = '';
cat.stdout.on('data', (d) => { echoed += d; });
const answers = new Map();
worker.on('message', ([n, x]) => answers.set(n, x));
for (let n = 0; n < 80; n++) {
  worker.postMessage(n);
  cat.stdin.write(`line ${n}\\n`);
  const text = await (await fetch(`http://127.0.0.1:${server.address().port}/number/${n}`)).text();
  await new Promise((r) => setTimeout(r, 10));
  console.log(n, text);
}
while (answers.size < 80) await new Promise((r) => setTimeout(r, 5));
console.log([...answers].sort((a, b) => a[0] - b[0]).map((a) => a[1]).join(' '));
cat.stdin.end();
await new Promise((done) => cat.on('close', done));
console.log(echoed.length, echoed.slice(-10));
worker.terminate(); server.close(); process.exit(0);
"""
ESBUILD = "for i in $(seq 400); do echo \"export function f$i(x: number): number { return x * $i + g; } const g: number = $i;\" > m$i.ts; done; (for i in $(seq 400); do echo \"import { f$i } from './m$i';\"; done; for i in $(seq 400); do echo \"console.log(f$i(2));\"; done) > all.ts"
SNAKEMAKE = """
rule all:
    input: expand('out{n}', n=range(6))
rule one:
    output: 'out{n}'
    shell: 'sleep 0.1; seq {wildcards.n} 100 | sort -n | md5sum > {output}'
"""


def python(name, what, package, text, arguments="", setting="", stops=False):
    return Program(name, what, f"{PYTHON} -c 'import importlib.metadata as m; print(\"{package}\", m.version(\"{package}\"))'",
                   f"{setting}{PYTHON} all.py {arguments} 2> log", {"all.py": text}, needs=(PYTHON,), stops=stops)


DATA = [
    python("numba", "numba: parallel loops, two threads", "numba", NUMBA, setting="NUMBA_NUM_THREADS=2 "),
    python("polars", "polars (Rust): lazy frames, threads", "polars", POLARS),
    python("duckdb", "DuckDB: a database file, three threads", "duckdb", DUCKDB, setting="rm -f data.db*; ", stops=True),
    python("pyarrow", "Apache Arrow: Parquet files, threads", "pyarrow", ARROW),
    *[python(name, f"{name}: boosted trees, two threads", name, BOOST, name) for name in ("xgboost", "lightgbm")],
    python("jax", "JAX: a training loop, compiled by XLA", "jax", JAX),
    python("tensorflow", "TensorFlow: a training loop with a data pipeline", "tensorflow-cpu", TENSORFLOW),
    python("ray", "Ray: tasks, an actor, its servers", "ray", RAY, setting="export RAY_DIR=$PWD/ray; rm -rf ray; "),
    python("jupyter", "Jupyter: a kernel and its client (ZeroMQ)", "ipykernel", JUPYTER),
    python("uvloop", "uvloop: a server, clients, a child", "uvloop", UVLOOP),
    python("grpc", "gRPC: a server with streams, a client", "grpcio", GRPC),
    python("optuna", "optuna: a study", "optuna", OPTUNA),
    python("pyspark", "Spark (local[2]), driven by Python", "pyspark", SPARK, stops=True),
    *[Program(name, f"{name}: worker, server, child", f"{NODE}/{name} --version", f"{NODE}/{command} all.mjs 2> log", {"all.mjs": SCRIPT}, needs=(f"{NODE}/{name}",))
      for name, command in (("deno", "deno run -A"), ("bun", "bun run"))],
    Program("esbuild", "esbuild (Go, static): 20 bundles", f"{NODE}/esbuild --version", f"for i in $(seq 20); do {NODE}/esbuild --bundle --minify all.ts 2> log | md5sum; done", prepare=ESBUILD, needs=(f"{NODE}/esbuild",)),
    Program("tsc", "tsc: 400 modules", f"{NODE}/tsc --version", f"{NODE}/tsc --outDir out --target es2020 --module commonjs --types '' all.ts; cat out/*.js | md5sum", prepare=ESBUILD, needs=(f"{NODE}/tsc",)),
    Program("snakemake", "snakemake: six rules, two at a time", f"{PYTHON} -m snakemake --version", f"rm -rf out? .snakemake; HOME=$PWD {PYTHON} -m snakemake -c2 -q all > log 2>&1; cat out?", {"Snakefile": SNAKEMAKE}, needs=(PYTHON,), stops=True),
]
