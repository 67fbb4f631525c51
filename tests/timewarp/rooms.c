/* The model of docs/timewarp_tutorial.md. */
#include <ckpt_timewarp.h>
#include <stdio.h>

enum { kRooms = 1000 };
struct room {
  unsigned long visitors;
};

/* Time 0: a visitor in each room. Random numbers come from the LP's own stream. */
static void init(ckpt_tw_lp* lp, void* state) {
  (void)state;
  ckpt_tw_send(lp, lp->id, ckpt_tw_exponential(lp, 1.0), "", 0);
}

/* lp->now is the time of the event. What the handler reads and writes is the state. */
static void arrive(ckpt_tw_lp* lp, void* state, const void* message, size_t bytes) {
  (void)message;
  (void)bytes;
  ++((struct room*)state)->visitors;
  ckpt_tw_send(lp, (lp->id + 1) % kRooms, 0.1 + ckpt_tw_exponential(lp, 1.0), "", 0);
}

/* Undoes the counting. The message and the random number are the engine's to undo. */
static void leave(ckpt_tw_lp* lp, void* state, const void* message, size_t bytes) {
  (void)lp;
  (void)message;
  (void)bytes;
  --((struct room*)state)->visitors;
}

int main(void) {
  ckpt_tw_model model = {
      .lps = kRooms, .state_bytes = sizeof(struct room), .init = init, .event = arrive, .reverse = leave};
  ckpt_tw_options options;
  ckpt_tw_result result;
  ckpt_tw_defaults(&options);
  options.threads = 2;
  options.end = 1000;
  options.saving.way = CKPT_TW_REVERSE;
  options.saving.check = 1; /* while the model is young: forward, back, compare */
  if (ckpt_tw_run(&model, &options, &result) != CKPT_TW_OK) {
    fprintf(stderr, "%s\n", result.error);
    return result.code;
  }
  printf("%llu events in %g s, %llu undone\n", (unsigned long long)result.committed, result.seconds,
         (unsigned long long)result.rolled_back);
  return 0;
}
