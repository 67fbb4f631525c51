// The way back of a thread that catches system calls itself (own_dispatch.h): 64 times the same five instructions, each with words of
// its own, as a thread has no register to spare.
//   ckpt_dispatch_words: of each saved %rax, address of the selector, where to go on.
// own_dispatch.cc knows at which bytes of a slot %rax is not the thread's: from 14 up to 24.

        .hidden ckpt_dispatch_words
        .text
        .p2align 5
        .globl ckpt_dispatch_returns
        .hidden ckpt_dispatch_returns
        .type ckpt_dispatch_returns, @function
ckpt_dispatch_returns:
        .set slot, 0
        .rept 64
        .p2align 5
        movq    %rax, ckpt_dispatch_words + slot(%rip)
        movq    ckpt_dispatch_words + slot + 8(%rip), %rax
        movb    $1, (%rax)
        movq    ckpt_dispatch_words + slot(%rip), %rax
        jmpq    *(ckpt_dispatch_words + slot + 16)(%rip)
        .set slot, slot + 24
        .endr
        .size ckpt_dispatch_returns, . - ckpt_dispatch_returns

        .section .note.GNU-stack, "", @progbits
