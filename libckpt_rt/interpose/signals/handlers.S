// Slots through which the handlers of the program are called; see handlers.h.
//
// On entry, as at the entry of any handler: %rdi signal, %rsi siginfo, %rdx ucontext, %rax 0, return
// address the restorer. The slot jumps straight to the program's handler if two comparisons say that the
// interrupted code is no call of ours:
//   - the instruction pointer is not in ckpt_interruptible_syscall from begin to after,
//   - %rcx does not carry the tag that fix_interrupted_call puts into a call it lets start again.
// Else it calls ckpt_program_handler_begins first.
// Before that, of a signal that was the checkpoint's once: ckpt_is_late_request says whether the handler is to run at all.

#define UC_RCX 152          // offsetof(ucontext_t, uc_mcontext.gregs[REG_RCX])
#define UC_RIP 168          // ... gregs[REG_RIP]
#define SLOTS 256           // kHandlerSlots in handlers.cc

        .text
        .p2align 6
        .globl ckpt_handler_slots
        .hidden ckpt_handler_slots
ckpt_handler_slots:
        .cfi_startproc
        .set    slot, 0
        .rept   SLOTS
        .p2align 4
        movl    $slot, %eax
        jmp     ckpt_enter_handler
        .set    slot, slot + 1
        .endr
        .cfi_endproc

        .p2align 6
        .hidden ckpt_enter_handler
        .type ckpt_enter_handler, @function
ckpt_enter_handler:
        .cfi_startproc
        leaq    ckpt_handler_targets(%rip), %r10
        movq    (%r10,%rax,8), %r10
        movq    ckpt_former_signals(%rip), %rcx
        btq     %rdi, %rcx
        jc      2f
3:
        movq    UC_RIP(%rdx), %rcx
        leaq    ckpt_call_begin(%rip), %r8
        cmpq    %r8, %rcx
        jb      0f
        leaq    ckpt_call_after(%rip), %r8
        cmpq    %r8, %rcx
        jbe     1f
0:
        xorq    ckpt_restart_tag(%rip), %rcx
        cmpq    UC_RCX(%rdx), %rcx
        je      1f
        xorl    %eax, %eax
        jmpq    *%r10
1:
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        pushq   %r10
        .cfi_adjust_cfa_offset 8
        subq    $8, %rsp
        .cfi_adjust_cfa_offset 8
        movq    %rdx, %rsi
        movl    %eax, %edx
        call    ckpt_program_handler_begins
        addq    $8, %rsp
        .cfi_adjust_cfa_offset -8
        popq    %r10
        .cfi_adjust_cfa_offset -8
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        xorl    %eax, %eax
        jmpq    *%r10
2:
        pushq   %rdi
        .cfi_adjust_cfa_offset 8
        pushq   %rsi
        .cfi_adjust_cfa_offset 8
        pushq   %rdx
        .cfi_adjust_cfa_offset 8
        pushq   %r10
        .cfi_adjust_cfa_offset 8
        pushq   %rax
        .cfi_adjust_cfa_offset 8
        call    ckpt_is_late_request
        movl    %eax, %ecx
        popq    %rax
        .cfi_adjust_cfa_offset -8
        popq    %r10
        .cfi_adjust_cfa_offset -8
        popq    %rdx
        .cfi_adjust_cfa_offset -8
        popq    %rsi
        .cfi_adjust_cfa_offset -8
        popq    %rdi
        .cfi_adjust_cfa_offset -8
        testl   %ecx, %ecx
        jz      3b
        ret
        .cfi_endproc
        .size ckpt_enter_handler, . - ckpt_enter_handler

        .section .rodata
        .p2align 3
        .globl ckpt_restart_tag
        .hidden ckpt_restart_tag
ckpt_restart_tag:
        .quad   0x9d5bc61f7ae2b3c8      // not canonical for any instruction pointer it is combined with

// The restorer for handlers installed with no restorer of the program's own. Debuggers and unwinders
// know a signal frame by exactly these bytes and this name, so there is no unwind information and a nop
// before them.
        .text
        .p2align 4
        nop
        .globl __restore_rt
        .hidden __restore_rt
        .type __restore_rt, @function
__restore_rt:
        movq    $15, %rax
        syscall
        .size __restore_rt, . - __restore_rt

        .section .note.GNU-stack, "", @progbits
