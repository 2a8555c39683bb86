/* Q8_1: value = code * d, signed bytes; s, the scaled sum of the codes, is for dot products only. */
#ifndef GGUFX_KERNEL_Q8_1_H
#define GGUFX_KERNEL_Q8_1_H

typedef struct {
    uint8_t d[2], s[2];
    int8_t qs[32];
} block_q8_1;

INLINE int finite_q8_1(const block_q8_1 *b) { return half_is_finite(b->d); }

INLINE void decode_q8_1(const block_q8_1 *b, sink y) { scaled_bytes(y, 0, b->qs, every(half_at(y, b->d))); }

#endif
