// setcontext and swapcontext: a context whose mask the program wrote itself (sigfillset(&c.uc_sigmask))
// must not block the checkpoint signal. libc's functions find the registers and the return address as
// their caller left them: ours leave by a jump.

        .text
        .p2align 4
        .globl setcontext
        .type setcontext, @function
setcontext:
        .cfi_startproc
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        movl    $0, %esi
        call    ckpt_prepare_context
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        jmpq    *%rax
        .cfi_endproc
        .size setcontext, . - setcontext

        .p2align 4
        .globl swapcontext
        .type swapcontext, @function
swapcontext:
        .cfi_startproc
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        movq    %rsi, %rdi
        movl    $1, %esi
        call    ckpt_prepare_context
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        jmpq    *%rax
        .cfi_endproc
        .size swapcontext, . - swapcontext

        .section .note.GNU-stack, "", @progbits
