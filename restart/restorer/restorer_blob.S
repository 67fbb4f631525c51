// The linked restorer, as bytes inside ckpt-restart. See restorer_blob.h.
  .section .rodata
  .balign 16
  .globl ckpt_restorer_begin
  .globl ckpt_restorer_end
ckpt_restorer_begin:
  .incbin CKPT_RESTORER_BIN
ckpt_restorer_end:
  .section .note.GNU-stack,"",@progbits
