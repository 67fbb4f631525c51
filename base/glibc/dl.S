/* The same of libdl.so.2. */
.macro old name version
  .globl old_\name
  .type old_\name, @function
old_\name:
  .symver old_\name, \name@@@\version
.endm
  old dlopen GLIBC_2.2.5
  old dlsym GLIBC_2.2.5
  old dlclose GLIBC_2.2.5
  old dladdr GLIBC_2.2.5
  old dlerror GLIBC_2.2.5
.section .note.GNU-stack,"",@progbits
