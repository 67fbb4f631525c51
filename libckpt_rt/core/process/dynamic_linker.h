// The dynamic linker's functions: dlsym(3), dlopen(3), dladdr(3).
//
// glibc has them in libc.so.6 since 2.34, and in libdl.so.2 before. A library that asks for libdl.so.2 makes
// every process load it, also where it is empty: with libpthread.so.0 ten mappings, which each fork copies
// and each exec makes. So libckpt_rt asks for libc.so.6 alone, and loads libdl.so.2 by itself where these
// functions are not there.
//
// Owner:     core. Callers: constructors, and threads of the program. They take the dynamic linker's lock:
//            never a thread of ours, never in a stop or in a signal handler.
#pragma once

#include <dlfcn.h>

#include "base/units.h"

namespace ckpt::dynamic_linker {

// As dlsym(3), also with RTLD_NEXT and RTLD_DEFAULT. Null: there is none of that name.
void* find(void* handle, const char* name);

// A handle of a library that the process has loaded, by its name as in DT_NEEDED; it is never given back.
// Null: it has not.
void* loaded(const char* library);

// As dladdr(3).
bool describe(const void* address, Dl_info& info);

// From the first to the last page of the program or library that this address lies in; empty: of none.
AddrRange range_of_object_with(const void* address);

}  // namespace ckpt::dynamic_linker
