// io_submit(2), counted.
//
// long ckpt_aio_submit(Count* count, long context, long n, void* list)
//   count: an int64_t with what was submitted, an int32_t with the threads that are inside.
//   The agent, which finds a thread standing here, knows by its instruction pointer what it has submitted that is not
//   counted: nothing before `made`, the positive result in %rax from `made` to `counted`, nothing after. In a handler of the
//   program that has interrupted this the thread is inside, but not here.

        .text
        .p2align 4
        .globl ckpt_aio_submit
        .hidden ckpt_aio_submit
        .type ckpt_aio_submit, @function
ckpt_aio_submit:
        .cfi_startproc
        movq    %rdi, %r8
        movq    %rsi, %rdi
        movq    %rdx, %rsi
        movq    %rcx, %rdx
        lock incl 8(%r8)
        .globl ckpt_aio_inside
        .hidden ckpt_aio_inside
ckpt_aio_inside:
        movl    $209, %eax
        syscall
        .globl ckpt_aio_made
        .hidden ckpt_aio_made
ckpt_aio_made:
        testq   %rax, %rax
        jle     1f
        lock addq %rax, 0(%r8)
        .globl ckpt_aio_counted
        .hidden ckpt_aio_counted
ckpt_aio_counted:
1:      lock decl 8(%r8)
        .globl ckpt_aio_outside
        .hidden ckpt_aio_outside
ckpt_aio_outside:
        ret
        .cfi_endproc
        .size ckpt_aio_submit, . - ckpt_aio_submit

        .section .note.GNU-stack,"",@progbits
