/* Q8_0: value = code * d, signed bytes. */
#ifndef GGUFX_KERNEL_Q8_0_H
#define GGUFX_KERNEL_Q8_0_H

typedef struct {
    uint8_t d[2];
    int8_t qs[32];
} block_q8_0;

INLINE int finite_q8_0(const block_q8_0 *b) { return half_is_finite(b->d); }

INLINE void decode_q8_0(const block_q8_0 *b, sink y) { scaled_bytes(y, 0, b->qs, every(half_at(y, b->d))); }

#endif
