  .section .rodata
  .balign 16
  .globl ckpt_guest_begin
  .globl ckpt_guest_end
ckpt_guest_begin:
  .incbin CKPT_GUEST_BIN
ckpt_guest_end:
  .section .note.GNU-stack,"",@progbits
