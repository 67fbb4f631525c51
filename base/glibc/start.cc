// The start of our commands on every glibc. Since 2.34 programs leave it to libc to call their constructors,
// and ask for a
// __libc_start_main that does; the older one calls what it is given, and nothing if it is given nothing.
//
// Owner:     base. Callers: crt1.o, before anything of the program has run.
#include <stddef.h>

#include "base/preload_rules.h"

extern "C" {

using Constructor = void (*)(int, char**, char**);
using StartMain = int(int (*)(int, char**, char**), int, char**, Constructor, void (*)(), void (*)(), void*);

StartMain ckpt_old_libc_start_main;
__asm__(".symver ckpt_old_libc_start_main, __libc_start_main@GLIBC_2.2.5");

// By the linker, and crti.o.
extern Constructor __init_array_start[] __attribute__((visibility("hidden")));
extern Constructor __init_array_end[] __attribute__((visibility("hidden")));
void _init();

static void construct(int argc, char** argv, char** environment) {
  _init();
  const ptrdiff_t count = __init_array_end - __init_array_start;
  for (ptrdiff_t i = 0; i < count; ++i) __init_array_start[i](argc, argv, environment);
}

// Its end is the dynamic linker's business, on every glibc.
__attribute__((visibility("hidden"))) int __libc_start_main(int (*main)(int, char**, char**), int argc,
                                                            char** argv, Constructor, void (*)(),
                                                            void (*end)(), void* stack) {
  return ckpt_old_libc_start_main(main, argc, argv, &construct, nullptr, end, stack);
}

}  // extern "C"
