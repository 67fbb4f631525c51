// The way back of a thread that catches system calls itself (own_dispatch.h): 64 threads, for each 4 times the same instructions with
// words of their own, as a thread has no register to spare.
//   ckpt_dispatch_words: of each saved %rax, address of the selector, where to go on, whether it is in use.
// own_dispatch.cc knows at which bytes of a slot %rax is not the thread's: from 14 up to 24.

        .hidden ckpt_dispatch_words
        .text
        .p2align 6
        .globl ckpt_dispatch_returns
        .hidden ckpt_dispatch_returns
        .type ckpt_dispatch_returns, @function
ckpt_dispatch_returns:
        .set slot, 0
        .rept 64 * 4
        .p2align 6
        movq    %rax, ckpt_dispatch_words + slot(%rip)
        movq    ckpt_dispatch_words + slot + 8(%rip), %rax
        movb    $1, (%rax)
        movq    ckpt_dispatch_words + slot(%rip), %rax
        movb    $0, ckpt_dispatch_words + slot + 24(%rip)
        jmpq    *(ckpt_dispatch_words + slot + 16)(%rip)
        .set slot, slot + 32
        .endr
        .size ckpt_dispatch_returns, . - ckpt_dispatch_returns

        .section .note.GNU-stack, "", @progbits
