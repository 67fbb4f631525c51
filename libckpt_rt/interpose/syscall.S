// long syscall(long number, ...): numbers in ckpt_routed_syscalls go to ckpt_routed_syscall, with the
// same arguments in the same places; all others go straight to the kernel with no frame of ours. So a child
// of clone(2) on a stack of its own returns as it does from libc's.

        .text
        .p2align 4
        .globl syscall
        .type syscall, @function
syscall:
        .cfi_startproc
        cmpq    $511, %rdi
        ja      1f
        leaq    ckpt_routed_syscalls(%rip), %rax
        cmpb    $0, (%rax,%rdi)
        jne     ckpt_routed_syscall
1:
        movq    %rdi, %rax
        movq    %rsi, %rdi
        movq    %rdx, %rsi
        movq    %rcx, %rdx
        movq    %r8, %r10
        movq    %r9, %r8
        movq    8(%rsp), %r9
        syscall
        cmpq    $-4095, %rax
        jae     2f
        ret
2:
        pushq   %rax
        .cfi_adjust_cfa_offset 8
        call    *__errno_location@GOTPCREL(%rip)
        popq    %rcx
        .cfi_adjust_cfa_offset -8
        negl    %ecx
        movl    %ecx, (%rax)
        movq    $-1, %rax
        ret
        .cfi_endproc
        .size syscall, . - syscall

        .section .note.GNU-stack, "", @progbits
