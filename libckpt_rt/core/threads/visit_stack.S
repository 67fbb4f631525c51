// void ckpt_visit_stack(stack_top, fn, arg): calls fn(arg) on another stack, and comes back if it returns.
//                       rdi        rsi rdx
        .text
        .globl  ckpt_visit_stack
        .hidden ckpt_visit_stack
        .type   ckpt_visit_stack, @function
ckpt_visit_stack:
        push    %rbp
        mov     %rsp, %rbp
        mov     %rdi, %rsp
        mov     %rdx, %rdi
        call    *%rsi
        mov     %rbp, %rsp
        pop     %rbp
        ret
        .size   ckpt_visit_stack, .-ckpt_visit_stack

        .section .note.GNU-stack, "", @progbits
