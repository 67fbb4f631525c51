// The one place where interruptible system calls are made, so that the checkpoint's handler knows from
// the instruction pointer alone where such a call stands.
//
// long ckpt_interruptible_syscall(InterruptibleCall*)
//   %rbx holds the call from `begin` on. Between `begin` and `enter` nothing is decided but by
//   registers that `begin` loads, so setting the instruction pointer to `begin` starts the call anew
//   with whatever the InterruptibleCall says by then.
//   `after` and `after_program` differ so that an interruption which belongs to a handler of the program
//   is not taken for ours when our signal arrives before the next instruction.

        .text
        .p2align 6
        .globl ckpt_interruptible_syscall
        .hidden ckpt_interruptible_syscall
        .type ckpt_interruptible_syscall, @function
ckpt_interruptible_syscall:
        .cfi_startproc
        pushq   %rbx
        .cfi_adjust_cfa_offset 8
        .cfi_rel_offset %rbx, 0
        movq    %rdi, %rbx
        .globl ckpt_call_begin
        .hidden ckpt_call_begin
ckpt_call_begin:
        movq    0(%rbx), %rax
        movq    8(%rbx), %rdi
        movq    16(%rbx), %rsi
        movq    24(%rbx), %rdx
        movq    32(%rbx), %r10
        movq    40(%rbx), %r8
        movq    48(%rbx), %r9
        .globl ckpt_call_enter
        .hidden ckpt_call_enter
ckpt_call_enter:
        syscall
        .globl ckpt_call_after
        .hidden ckpt_call_after
ckpt_call_after:
        nop
        .globl ckpt_call_after_program
        .hidden ckpt_call_after_program
ckpt_call_after_program:
        popq    %rbx
        .cfi_adjust_cfa_offset -8
        .cfi_restore %rbx
        ret
        .cfi_endproc
        .size ckpt_interruptible_syscall, . - ckpt_interruptible_syscall

// long ckpt_releasing_syscall(long nr, long a, long b, long c, long d, long e, long f, uint32_t departures)
//   Enters the kernel only if the thread was not stopped since it read ckpt_departures: either the
//   counter differs, or the handler finds the thread from `begin` to `enter` and sends it to `stopped`.
        .p2align 6
        .globl ckpt_releasing_syscall
        .hidden ckpt_releasing_syscall
        .type ckpt_releasing_syscall, @function
ckpt_releasing_syscall:
        .cfi_startproc
        .globl ckpt_release_begin
        .hidden ckpt_release_begin
ckpt_release_begin:
        movl    16(%rsp), %eax
        cmpl    ckpt_departures(%rip), %eax
        jne     ckpt_release_stopped
        movq    %rdi, %rax
        movq    %rsi, %rdi
        movq    %rdx, %rsi
        movq    %rcx, %rdx
        movq    %r8, %r10
        movq    %r9, %r8
        movq    8(%rsp), %r9
        .globl ckpt_release_enter
        .hidden ckpt_release_enter
ckpt_release_enter:
        syscall
        ret
        .globl ckpt_release_stopped
        .hidden ckpt_release_stopped
ckpt_release_stopped:
        movq    $-4095, %rax
        ret
        .cfi_endproc
        .size ckpt_releasing_syscall, . - ckpt_releasing_syscall

        .section .note.GNU-stack, "", @progbits
