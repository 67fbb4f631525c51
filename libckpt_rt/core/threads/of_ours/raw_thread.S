// clone(2) and clone3(2) for threads without libc.
        .text

// long ckpt_clone_thread(flags, stack_top, parent_tid, child_tid, tls, fn, arg)
//                        rdi    rsi        rdx         rcx        r8   r9  8(%rsp)
        .globl  ckpt_clone_thread
        .hidden ckpt_clone_thread
        .type   ckpt_clone_thread, @function
ckpt_clone_thread:
        mov     8(%rsp), %rax
        mov     %rax, -8(%rsi)          // the child finds fn and arg on its own stack
        mov     %r9, -16(%rsi)
        sub     $16, %rsi
        mov     %rcx, %r10
        mov     $56, %eax               // __NR_clone
        syscall
        test    %rax, %rax
        jnz     1f
        xor     %ebp, %ebp              // end of the frame chain
        pop     %rax
        pop     %rdi
        call    *%rax
        xor     %edi, %edi
        mov     $60, %eax               // __NR_exit: this thread only
        syscall
        hlt
1:      ret
        .size   ckpt_clone_thread, .-ckpt_clone_thread

// long ckpt_clone3_thread(struct clone_args*, size, fn, arg): the child calls fn(arg), which must
// not return.                rdi               rsi   rdx rcx
        .globl  ckpt_clone3_thread
        .hidden ckpt_clone3_thread
        .type   ckpt_clone3_thread, @function
ckpt_clone3_thread:
        mov     %rcx, %r8               // rcx does not survive a system call
        mov     $435, %eax              // __NR_clone3
        syscall
        test    %rax, %rax
        jnz     1f
        xor     %ebp, %ebp
        mov     %r8, %rdi
        call    *%rdx
        hlt
1:      ret
        .size   ckpt_clone3_thread, .-ckpt_clone3_thread

// void ckpt_call_on_stack(stack_top, fn, arg): leaves the present stack for ever.
//                         rdi        rsi rdx
        .globl  ckpt_call_on_stack
        .hidden ckpt_call_on_stack
        .type   ckpt_call_on_stack, @function
ckpt_call_on_stack:
        mov     %rdi, %rsp
        xor     %ebp, %ebp
        mov     %rdx, %rdi
        call    *%rsi
        hlt
        .size   ckpt_call_on_stack, .-ckpt_call_on_stack

// void ckpt_signal_return(ucontext*): what the end of a signal handler does, from anywhere.
        .globl  ckpt_signal_return
        .hidden ckpt_signal_return
        .type   ckpt_signal_return, @function
ckpt_signal_return:
        mov     %rdi, %rsp              // the kernel looks for the frame at rsp - 8
        mov     $15, %eax               // __NR_rt_sigreturn
        syscall
        hlt
        .size   ckpt_signal_return, .-ckpt_signal_return

// The restorer of our signal handler's frames.
        .globl  ckpt_sigreturn_trampoline
        .hidden ckpt_sigreturn_trampoline
        .type   ckpt_sigreturn_trampoline, @function
        nop                             // unwinders look one byte before the return address
ckpt_sigreturn_trampoline:
        mov     $15, %rax
        syscall
        .size   ckpt_sigreturn_trampoline, .-ckpt_sigreturn_trampoline

        .section .note.GNU-stack, "", @progbits
