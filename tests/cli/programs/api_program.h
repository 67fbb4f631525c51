/* What the files of api_program share. Plain C: ckpt_rt.h is for such programs. */
#ifndef TESTS_CLI_PROGRAMS_API_PROGRAM_H
#define TESTS_CLI_PROGRAMS_API_PROGRAM_H

#define CKPT_RT_OPTIONAL
#include "include/ckpt_rt.h"

/* api_program.c. fail: says why, and ends. take: a checkpoint, which must succeed. start: a thread; returns
 * when it says that it is ready. */
void fail(const char* what);
struct ckpt_rt_result take(void);
void start(void* (*body)(void*));
void be_ready(void);

/* api_memory.c: an argument of the program each. */
void flood_api(void);
void reclaimed_api(void);
void reclaimed_pieces(void);
void increments(void);
void placed(void);
void growth(void);
void shared(void);
void given_back(void);

#endif
