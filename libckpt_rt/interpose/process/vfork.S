// pid_t vfork(void): the child runs on our caller's stack, and returns from this call before the parent does.
// So no frame of ours may be below the caller's when libc's is entered: it gets our return address as its own.

        .text
        .p2align 4
        .globl vfork
        .type vfork, @function
        .globl __vfork
        .type __vfork, @function
vfork:
__vfork:
        .cfi_startproc
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    ckpt_before_vfork
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        jmp     *%rax
        .cfi_endproc
        .size vfork, . - vfork

        .section .note.GNU-stack, "", @progbits
