// What any preloaded library costs: build/bench/libempty.so has one function and nothing to do.
int ckpt_bench_empty(void) { return 0; }
