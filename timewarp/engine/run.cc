// ckpt_tw_run(): checks what it is asked for, sets the LPs up, runs an engine, gathers the result.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "timewarp/engine/digest.h"
#include "timewarp/engine/progress.h"
#include "timewarp/engine/sequential.h"
#include "timewarp/engine/worker.h"
#include "timewarp/mpi/transport.h"

namespace ckpt::timewarp {

namespace {

constexpr unsigned kMostThreads = 256;
constexpr size_t kLine = 64;
// States up to this are copied behind the record: a larger one is better where only the copy counts.
constexpr size_t kBehindRecord = 1024;

size_t rounded(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

std::string wrong_options(const ckpt_tw_model& m, const ckpt_tw_options& o) {
  if (m.lps == 0) return "no LPs: a model has at least one";
  if (m.init == nullptr || m.event == nullptr) return "the model has no `init` or no `event`: give it both";
  if (m.message_bytes > 65535) return fmt::format("messages of {} bytes: at most 65535", m.message_bytes);
  if (m.state_bytes > (size_t{1} << 31))
    return fmt::format("states of {} bytes: at most 2 GiB", m.state_bytes);
  if (o.engine != CKPT_TW_SEQUENTIAL && (o.threads == 0 || o.threads > kMostThreads)) {
    return fmt::format("{} threads: 1 to {}", o.threads, kMostThreads);
  }
  if (!(o.end > 0)) return fmt::format("the end {} is not after the beginning, 0", o.end);
  if (!(o.threshold >= 0 && o.threshold <= 1)) {
    return fmt::format("a threshold of {}: it is the share of a copy that must be done, 0 to 1", o.threshold);
  }
  if (!(o.window >= 0)) return fmt::format("a window of {}: 0 (adapted) or more", o.window);
  if (o.page_kib != 4 && o.page_kib != 2048 && o.page_kib != 1048576) {
    return fmt::format("pages of {} KiB: 4, 2048 or 1048576", o.page_kib);
  }
  if (o.engine == CKPT_TW_SEQUENTIAL) return {};
  if (o.mpi != nullptr && o.threads != 1) {
    return fmt::format(
        "{} threads and several processes: a process of a distributed run has one thread; start more "
        "processes",
        o.threads);
  }
  if (o.mpi != nullptr && o.memory_bytes != 0) return "a memory limit is for one process: leave it out";
  if (o.saving.way == CKPT_TW_REVERSE && m.reverse == nullptr && m.saving_of == nullptr) {
    return "reverse computation is asked for, but the model has no inverse: give it `reverse`, or choose "
           "another way";
  }
  return {};
}

}  // namespace

Setup::Setup(const ckpt_tw_model& m, const ckpt_tw_options& o) : model(m), options(o) {}
Setup::~Setup() = default;

namespace {

uint64_t first_random(uint64_t seed, uint32_t id) {
  uint64_t z = seed * 0x9e3779b97f4a7c15ull + id + 1;
  z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93ull;
  z = (z ^ (z >> 32)) * 0xd6e8feb86659fd93ull;
  return z ^ (z >> 32);
}

void set_up(Setup& setup) {
  const ckpt_tw_model& model = setup.model;
  const ckpt_tw_options& options = setup.options;
  setup.threads = options.engine == CKPT_TW_SEQUENTIAL ? 1 : options.threads;
  setup.lps_a_process = setup.local_lps = model.lps;
  if (setup.transport != nullptr) {
    const auto size = static_cast<uint32_t>(setup.transport->size()),
               rank = static_cast<uint32_t>(setup.transport->rank());
    setup.lps_a_process = (model.lps + size - 1) / size;
    setup.first_lp = std::min(model.lps, rank * setup.lps_a_process);
    setup.local_lps = std::min(setup.lps_a_process, model.lps - setup.first_lp);
  }
  setup.stride = sizeof(Lp) + rounded(model.state_bytes);
  setup.event_bytes = rounded(sizeof(Event) + model.message_bytes);
  if (options.colocate != 0 && options.engine == CKPT_TW_OPTIMISTIC) {
    setup.colocated_at = setup.event_bytes;
    setup.event_bytes += rounded(model.state_bytes);
  }
  setup.copy_behind_record = options.colocate == 0 && model.saving_of == nullptr &&
                             options.saving.way == CKPT_TW_COPY && options.saving.every == 1 &&
                             model.state_bytes <= kBehindRecord;
  setup.lps_a_thread = std::max(1u, (setup.local_lps + setup.threads - 1) / setup.threads);
  setup.lps_a_thread_inverse = ~uint64_t{0} / setup.lps_a_thread + 1;
  if (model.place_of != nullptr && setup.threads > 1) {
    setup.places.resize(setup.local_lps);
    for (uint32_t i = 0; i < setup.local_lps; ++i) {
      const uint32_t thread = model.place_of(setup.first_lp + i, setup.threads, model.context);
      if (thread >= setup.threads) {
        return setup.fail(CKPT_TW_USAGE,
                          fmt::format("LP {} is placed on thread {}, but the threads are 0 to {}",
                                      setup.first_lp + i, thread, setup.threads - 1));
      }
      setup.places[i] = static_cast<uint16_t>(thread);
    }
  }
  setup.lp_regions.set_page(options.page_kib);
  setup.lps = setup.lp_regions.map(setup.stride * std::max(1u, setup.local_lps));
  for (uint32_t i = 0; i < setup.local_lps; ++i) {
    Lp& lp = setup.lp(setup.first_lp + i);
    lp.id = setup.first_lp + i;
    lp.random = first_random(options.seed, lp.id);
    lp.state_bytes = static_cast<uint32_t>(model.state_bytes);
  }
}

void run_optimistic(Setup& setup, ckpt_tw_result& result) {
  setup.gvt = std::make_unique<Gvt>(setup.threads);
  setup.channels.resize(size_t{setup.threads} * setup.threads);
  for (unsigned from = 0; from < setup.threads; ++from) {
    for (unsigned to = 0; to < setup.threads; ++to) {
      if (from != to) setup.channels[from * setup.threads + to] = std::make_unique<Channel>();
    }
  }
  for (unsigned t = 0; t < setup.threads; ++t) setup.workers.push_back(std::make_unique<Worker>(setup, t));
  std::barrier start(static_cast<ptrdiff_t>(setup.threads) + 1);
  std::vector<std::thread> threads;
  for (const auto& worker : setup.workers)
    threads.emplace_back([&start, w = worker.get()] { w->run(start); });
  start.arrive_and_wait();
  const int64_t began = now_ns();
  start.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  result.seconds = static_cast<double>(now_ns() - began) / 1e9;

  result.window = std::numeric_limits<double>::infinity();
  for (const auto& worker : setup.workers) {
    const WorkerCounters& c = worker->counters();
    const StateCounters& k = worker->state_counters();
    result.committed += c.committed;
    result.executed += c.executed;
    result.rolled_back += c.rolled_back;
    result.rollbacks += c.rollbacks;
    result.stragglers += c.stragglers;
    result.cancelled += c.cancelled;
    result.remote_messages += c.remote;
    result.stalls += c.stalls;
    result.cancelbacks += c.cancelbacks;
    result.events_digest += c.events_digest;
    result.repeated += k.repeated;
    result.saves += k.saves;
    result.save_bytes += k.save_bytes;
    result.restores += k.restores;
    result.copies_committed += k.copies_committed;
    result.copies_aborted += k.copies_aborted;
    result.copies_finished += k.copies_finished;
    result.copies_forced += k.copies_forced;
    result.gvt_rounds = std::max(result.gvt_rounds, worker->gvt_rounds());
    result.peak_bytes += worker->peak_bytes();
    result.window = std::min(result.window, worker->window());
  }
  if (setup.options.trace != nullptr) {
    FILE* file = std::fopen(setup.options.trace, "w");
    if (file == nullptr) {
      return setup.fail(CKPT_TW_SYSTEM, fmt::format("cannot write the trace {}: {}", setup.options.trace,
                                                    std::strerror(errno)));
    }
    std::fputs("{\"traceEvents\":[\n", file);
    for (size_t t = 0; t < setup.workers.size(); ++t) {
      setup.workers[t]->trace().write(file, began, result.process, static_cast<unsigned>(t));
    }
    std::fprintf(
        file, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%u,\"args\":{\"name\":\"simulation\"}}\n]}\n",
        result.process);
    if (std::fclose(file) != 0) {
      setup.fail(CKPT_TW_SYSTEM,
                 fmt::format("cannot write the trace {}: {}", setup.options.trace, std::strerror(errno)));
    }
  }
}

void run(const ckpt_tw_model& model, const ckpt_tw_options& options, ckpt_tw_result& result) {
  Setup setup(model, options);
  result.processes = 1;
  std::unique_ptr<Transport> transport;
  if (options.mpi != nullptr && options.engine == CKPT_TW_OPTIMISTIC) {
    std::string why;
    transport = Transport::open(options.mpi, &why);
    if (transport == nullptr) {
      result.code = CKPT_TW_UNAVAILABLE;
      std::snprintf(result.error, sizeof(result.error), "%s", why.c_str());
      return;
    }
    setup.transport = transport.get();
    result.processes = static_cast<uint32_t>(transport->size());
    result.process = static_cast<uint32_t>(transport->rank());
  }
  try {
    set_up(setup);
    result.bytes_an_lp = setup.stride;
    if (!setup.failed) {
      options.engine == CKPT_TW_SEQUENTIAL ? run_sequential(setup, result) : run_optimistic(setup, result);
    }
  } catch (const std::bad_alloc&) {
    setup.fail(CKPT_TW_MEMORY, kNoMemory);
  }
  if (!setup.failed) {
    for (uint32_t i = 0; i < setup.local_lps; ++i) {
      Lp& lp = setup.lp(setup.first_lp + i);
      lp.now = options.end;
      result.state_digest += digest_of(lp, lp.sent, lp.state(), lp.state_bytes);
      if (model.finish != nullptr) model.finish(&lp, lp.state());
    }
  }
  if (transport != nullptr && !setup.failed) transport->finish(result);
  result.code = setup.failure.code;
  std::snprintf(result.error, sizeof(result.error), "%s", setup.failure.text.c_str());
}

}  // namespace
}  // namespace ckpt::timewarp

using ckpt::timewarp::Lp;

extern "C" {

void ckpt_tw_defaults(ckpt_tw_options* options) {
  *options = {};
  options->engine = CKPT_TW_OPTIMISTIC;
  options->threads = 1;
  options->seed = 1;
  options->end = 1;
  options->saving.every = 1;
  options->page_kib = 2048;
  options->prefetch = 1;
  options->threshold = 0.5;
}

int ckpt_tw_run(const ckpt_tw_model* model, const ckpt_tw_options* options, ckpt_tw_result* result) {
  *result = {};
  if (std::string wrong = ckpt::timewarp::wrong_options(*model, *options); !wrong.empty()) {
    result->code = CKPT_TW_USAGE;
    std::snprintf(result->error, sizeof(result->error), "%s", wrong.c_str());
    return result->code;
  }
  ckpt::timewarp::run(*model, *options, *result);
  return result->code;
}

static Lp& lp_of(ckpt_tw_lp* lp) { return *static_cast<Lp*>(lp); }

void ckpt_tw_send(ckpt_tw_lp* lp, uint32_t to, double delay, const void* message, size_t bytes) {
  lp_of(lp).executor->send(lp_of(lp), to, delay, message, bytes);
}
void* ckpt_tw_context(const ckpt_tw_lp* lp) { return static_cast<const Lp*>(lp)->executor->context(); }
uint64_t* ckpt_tw_bits(ckpt_tw_lp* lp) { return lp_of(lp).executor->bits(lp_of(lp)); }
void ckpt_tw_save(ckpt_tw_lp* lp, const void* at, size_t bytes) {
  lp_of(lp).executor->save(lp_of(lp), at, bytes);
}
void ckpt_tw_resize(ckpt_tw_lp* lp, size_t bytes) { lp_of(lp).executor->resize(lp_of(lp), bytes); }
size_t ckpt_tw_size(const ckpt_tw_lp* lp) { return static_cast<const Lp*>(lp)->state_bytes; }
void ckpt_tw_fail(ckpt_tw_lp* lp, const char* what) { lp_of(lp).executor->fail(lp_of(lp), what); }

}  // extern "C"
