// long syscall(long number, ...): numbers in ckpt_routed_syscalls go to ckpt_routed_syscall, with the
// same arguments in the same places; all others go straight to the kernel with no frame of ours. So a child
// of clone(2) on a stack of its own returns as it does from libc's: ckpt_before_clone says which those are.

        .text
        .p2align 4
        .globl syscall
        .type syscall, @function
syscall:
        .cfi_startproc
        cmpq    $511, %rdi
        ja      1f
        leaq    ckpt_routed_syscalls(%rip), %rax
        movzbl  (%rax,%rdi), %eax
        cmpl    $1, %eax
        je      ckpt_routed_syscall
        ja      3f
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
3:
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        pushq   %rcx
        .cfi_adjust_cfa_offset 8
        pushq   %r8
        .cfi_adjust_cfa_offset 8
        pushq   %r9
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        call    ckpt_before_clone
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %r9
        .cfi_adjust_cfa_offset -8
        popq    %r8
        .cfi_adjust_cfa_offset -8
        popq    %rcx
        .cfi_adjust_cfa_offset -8
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testl   %eax, %eax
        jz      1b
        jmp     ckpt_routed_syscall
        .cfi_endproc
        .size syscall, . - syscall

        .section .note.GNU-stack, "", @progbits
