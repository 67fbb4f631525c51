// The one place where interruptible system calls are made, so that the checkpoint's handler knows from
// the instruction pointer alone where such a call stands.
//
// ckpt_interruptible_syscall: entered by a jump with the InterruptibleCall in %rbx and the address to go on
// at in %r12 (InterruptibleCall::enter); returns by a jump, result in %rax. Not by call and ret: the
// first ret after a system call is mispredicted, and so is every further one.
//   Between `begin` and `enter` nothing is decided but by registers that `begin` loads, so setting the
//   instruction pointer to `begin` starts the call anew with whatever the InterruptibleCall says by then.
//   `after` and `after_program` differ so that an interruption which belongs to a handler of the program
//   is not taken for ours when our signal arrives before the next instruction.

        .text
        .p2align 6
        .globl ckpt_interruptible_syscall
        .hidden ckpt_interruptible_syscall
        .type ckpt_interruptible_syscall, @function
ckpt_interruptible_syscall:
        .cfi_startproc
        .cfi_def_cfa %rsp, 0
        .cfi_register %rip, %r12
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
        jmpq    *%r12
        .cfi_endproc
        .size ckpt_interruptible_syscall, . - ckpt_interruptible_syscall

// ckpt_releasing_syscall: entered by a jump with a system call's number and arguments in their registers,
// in %ebx what ckpt_departures was before the checkpoint was told, in %r12 where to go on.
//   Enters the kernel only if the thread was not stopped since. If it was, either the counter differs here,
//   or the handler finds the instruction pointer between `begin` and `enter` and sets it to `stopped`.
        .p2align 6
        .globl ckpt_releasing_syscall
        .hidden ckpt_releasing_syscall
        .type ckpt_releasing_syscall, @function
ckpt_releasing_syscall:
        .cfi_startproc
        .cfi_def_cfa %rsp, 0
        .cfi_register %rip, %r12
        .globl ckpt_release_begin
        .hidden ckpt_release_begin
ckpt_release_begin:
        cmpl    ckpt_departures(%rip), %ebx
        jne     ckpt_release_stopped
        .globl ckpt_release_enter
        .hidden ckpt_release_enter
ckpt_release_enter:
        syscall
        jmpq    *%r12
        .globl ckpt_release_stopped
        .hidden ckpt_release_stopped
ckpt_release_stopped:
        movq    $-4095, %rax
        jmpq    *%r12
        .cfi_endproc
        .size ckpt_releasing_syscall, . - ckpt_releasing_syscall

        .section .note.GNU-stack, "", @progbits
