// What runs, and is looked at, around each fork(2) and exec(2) of the program, and when it begins, kept
// together.
//
// After a fork the processor has forgotten where every page lies, and a child has none of the pages of code:
// each page that parent or child touches costs up to a microsecond. So the functions are neighbours, at the
// beginning of the library, and so are the words that they look at.
//
// Owner:     base. Header only. Callers: definitions of such functions and words, anywhere in the library.
#pragma once

#define CKPT_FORK_PATH [[gnu::hot]]
// What a program runs before its main(), beside the constructors: they lie there by themselves.
#define CKPT_START_PATH [[gnu::hot]]
#define CKPT_FORK_DATA [[gnu::section("ckpt_fork_data")]]
