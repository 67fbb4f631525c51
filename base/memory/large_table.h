// Tables that most processes never touch are kept behind all other variables, in a section of their own.
//
// A fork(2) copies the entry of each page that a process has touched, and makes a page table for each 2 MiB
// in which there is one. So what every process touches should lie in few pages next to each other, and not in
// the gaps between tables: 20 pages in three page tables became 11 in two (docs/findings.md has the times).
// tests/house/small_variables.py finds a table that is not marked.
//
// Owner:     base. Header only. Callers: definitions of such tables, anywhere in the library.
#pragma once

#define CKPT_LARGE_TABLE [[gnu::section(".lbss")]]
