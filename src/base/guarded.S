// SPDX-License-Identifier: Apache-2.0
// The guarded routines for x86-64 (System V ABI).  See guarded.hpp for what they promise,
// guarded.cpp for how a fault finds its way back.
//
// Placement rests on two facts of this CPU: ordinary stores become visible in program order, and a
// store that is aligned to its size of up to 8 bytes is atomic.  So every store here is naturally
// aligned and addresses ascend.  A 16-byte store may become visible as two halves in either order;
// hence the 16 bytes that hold the last byte are never stored by one.  No string instructions, no
// non-temporal stores: those may become visible out of order.
#if defined(__x86_64__)

        .text

// Copy.  rdi: destination, rsi: source, rdx: bytes left.  Whenever an instruction between
// bulk_start and bulk_end may fault, the three registers describe what is left to do, so that the
// fault can resume in the byte loop, which goes on to exactly the byte that cannot be had.
        .globl  adverb_guarded_copy
        .hidden adverb_guarded_copy
        .type   adverb_guarded_copy, @function
        .p2align 6
adverb_guarded_copy:
        .cfi_startproc
        cmpq    $8, %rdx
        ja      .Lhead
        je      .Leight
        cmpl    $4, %edx
        je      .Lfour
        cmpl    $2, %edx
        je      .Ltwo
        jmp     .Lbytes

// 8, 4 and 2 bytes: always one load; one store if the destination is aligned, otherwise bytes of
// the register.
.Lword_start:
.Leight:
        movq    (%rsi), %rax
        testb   $7, %dil
        jnz     .Lregister_bytes
        movq    %rax, (%rdi)
        movl    $1, %eax
        ret
.Lfour:
        movl    (%rsi), %eax
        testb   $3, %dil
        jnz     .Lregister_bytes
        movl    %eax, (%rdi)
        movl    $1, %eax
        ret
.Ltwo:
        movzwl  (%rsi), %eax
        testb   $1, %dil
        jnz     .Lregister_bytes
        movw    %ax, (%rdi)
        movl    $1, %eax
        ret
.Lregister_bytes:
        movb    %al, (%rdi)
        shrq    $8, %rax
        incq    %rdi
        decl    %edx
        jnz     .Lregister_bytes
        movl    $1, %eax
        ret
.Lword_end:

// 9 bytes and more: align the destination to 16.
.Lbulk_start:
.Lhead:
        testb   $1, %dil
        jz      1f
        movzbl  (%rsi), %eax
        movb    %al, (%rdi)
        incq    %rsi
        incq    %rdi
        decq    %rdx
1:      testb   $2, %dil
        jz      2f
        movzwl  (%rsi), %eax
        movw    %ax, (%rdi)
        addq    $2, %rsi
        addq    $2, %rdi
        subq    $2, %rdx
2:      testb   $4, %dil
        jz      3f
        movl    (%rsi), %eax
        movl    %eax, (%rdi)
        addq    $4, %rsi
        addq    $4, %rdi
        subq    $4, %rdx
3:      testb   $8, %dil
        jz      4f
        cmpq    $8, %rdx
        jb      .Ltail
        movq    (%rsi), %rax
        movq    %rax, (%rdi)
        addq    $8, %rsi
        addq    $8, %rdi
        subq    $8, %rdx
4:      cmpq    $64, %rdx
        jbe     .Lsixteens

        .p2align 4
.Lblocks:
        movups  (%rsi), %xmm0
        movups  16(%rsi), %xmm1
        movups  32(%rsi), %xmm2
        movups  48(%rsi), %xmm3
        movaps  %xmm0, (%rdi)
        movaps  %xmm1, 16(%rdi)
        movaps  %xmm2, 32(%rdi)
        movaps  %xmm3, 48(%rdi)
        addq    $64, %rsi
        addq    $64, %rdi
        subq    $64, %rdx
        cmpq    $64, %rdx
        ja      .Lblocks

.Lsixteens:
        cmpq    $16, %rdx
        jbe     .Ltail
        movups  (%rsi), %xmm0
        movaps  %xmm0, (%rdi)
        addq    $16, %rsi
        addq    $16, %rdi
        subq    $16, %rdx
        jmp     .Lsixteens

// At most 16 bytes are left and the destination is aligned to 8.
.Ltail:
        cmpq    $8, %rdx
        jb      5f
        movq    (%rsi), %rax
        movq    %rax, (%rdi)
        addq    $8, %rsi
        addq    $8, %rdi
        subq    $8, %rdx
        jmp     .Ltail
5:      testb   $4, %dl
        jz      6f
        movl    (%rsi), %eax
        movl    %eax, (%rdi)
        addq    $4, %rsi
        addq    $4, %rdi
        subq    $4, %rdx
6:      testb   $2, %dl
        jz      7f
        movzwl  (%rsi), %eax
        movw    %ax, (%rdi)
        addq    $2, %rsi
        addq    $2, %rdi
        subq    $2, %rdx
7:      testb   $1, %dl
        jz      8f
        movzbl  (%rsi), %eax
        movb    %al, (%rdi)
8:      movl    $1, %eax
        ret
.Lbulk_end:

.Lbyte_start:
.Lbytes:
        testq   %rdx, %rdx
        jz      9f
        movzbl  (%rsi), %eax
        movb    %al, (%rdi)
        incq    %rsi
        incq    %rdi
        decq    %rdx
        jmp     .Lbytes
9:      movl    $1, %eax
        ret
.Lbyte_end:

.Lcopy_failed:
        xorl    %eax, %eax
        ret
        .cfi_endproc
        .size   adverb_guarded_copy, . - adverb_guarded_copy

// Fetch and add.  rdi: target, rsi: addend, rdx: where the original value goes (our own memory).
        .globl  adverb_guarded_fetch_add
        .hidden adverb_guarded_fetch_add
        .type   adverb_guarded_fetch_add, @function
        .p2align 4
adverb_guarded_fetch_add:
        .cfi_startproc
.Ladd_start:
        lock xaddq %rsi, (%rdi)
.Ladd_end:
        movq    %rsi, (%rdx)
        movl    $1, %eax
        ret
.Ladd_failed:
        xorl    %eax, %eax
        ret
        .cfi_endproc
        .size   adverb_guarded_fetch_add, . - adverb_guarded_fetch_add

// Compare and swap.  rdi: target, rsi: compare, rdx: swap, rcx: where the original value goes.
        .globl  adverb_guarded_compare_swap
        .hidden adverb_guarded_compare_swap
        .type   adverb_guarded_compare_swap, @function
        .p2align 4
adverb_guarded_compare_swap:
        .cfi_startproc
        movq    %rsi, %rax
.Lswap_start:
        lock cmpxchgq %rdx, (%rdi)
.Lswap_end:
        movq    %rax, (%rcx)
        movl    $1, %eax
        ret
.Lswap_failed:
        xorl    %eax, %eax
        ret
        .cfi_endproc
        .size   adverb_guarded_compare_swap, . - adverb_guarded_compare_swap

// Where a fault resumes: {first instruction, end, resume}, each relative to its own word.
        .section .rodata
        .globl  adverb_guarded_exits
        .hidden adverb_guarded_exits
        .type   adverb_guarded_exits, @object
        .p2align 2
adverb_guarded_exits:
        .long   .Lword_start - .
        .long   .Lword_end - .
        .long   .Lcopy_failed - .
        .long   .Lbulk_start - .
        .long   .Lbulk_end - .
        .long   .Lbytes - .
        .long   .Lbyte_start - .
        .long   .Lbyte_end - .
        .long   .Lcopy_failed - .
        .long   .Ladd_start - .
        .long   .Ladd_end - .
        .long   .Ladd_failed - .
        .long   .Lswap_start - .
        .long   .Lswap_end - .
        .long   .Lswap_failed - .
        .size   adverb_guarded_exits, . - adverb_guarded_exits
        .globl  adverb_guarded_exits_end
        .hidden adverb_guarded_exits_end
adverb_guarded_exits_end:

#endif
        .section .note.GNU-stack, "", %progbits
