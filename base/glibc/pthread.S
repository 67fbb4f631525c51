/* What programs had of libpthread.so.0 before glibc 2.34: names and versions only. Add what tests/house/symbol_versions.py asks for. */
.macro old name version
  .globl old_\name
  .type old_\name, @function
old_\name:
  .symver old_\name, \name@@@\version
.endm
  old pthread_create GLIBC_2.2.5
  old pthread_join GLIBC_2.2.5
  old pthread_once GLIBC_2.2.5
  old pthread_key_create GLIBC_2.2.5
  old __pthread_key_create GLIBC_2.2.5
  old pthread_key_delete GLIBC_2.2.5
  old pthread_setspecific GLIBC_2.2.5
  old pthread_getspecific GLIBC_2.2.5
  old pthread_mutex_trylock GLIBC_2.2.5
  old pthread_mutexattr_init GLIBC_2.2.5
  old pthread_mutexattr_destroy GLIBC_2.2.5
  old pthread_mutexattr_settype GLIBC_2.2.5
  old pthread_sigmask GLIBC_2.2.5
  old pthread_rwlock_init GLIBC_2.2.5
  old pthread_rwlock_destroy GLIBC_2.2.5
  old pthread_rwlock_rdlock GLIBC_2.2.5
  old pthread_rwlock_tryrdlock GLIBC_2.2.5
  old pthread_rwlock_wrlock GLIBC_2.2.5
  old pthread_rwlock_unlock GLIBC_2.2.5
  old pthread_testcancel GLIBC_2.2.5
  old pthread_attr_setstacksize GLIBC_2.2.5
  old pthread_detach GLIBC_2.2.5
  old sem_init GLIBC_2.2.5
  old sem_post GLIBC_2.2.5
  old sem_wait GLIBC_2.2.5
  old sem_destroy GLIBC_2.2.5
  old __pthread_register_cancel GLIBC_2.3.3
  old __pthread_unregister_cancel GLIBC_2.3.3
  old __pthread_unwind_next GLIBC_2.3.3
  old pthread_getname_np GLIBC_2.12
  old pthread_setname_np GLIBC_2.12
  old pthread_setattr_default_np GLIBC_2.18
  old pthread_cond_clockwait GLIBC_2.30
.section .note.GNU-stack,"",@progbits
