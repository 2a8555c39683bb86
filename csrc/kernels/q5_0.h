/* Q5_0: value = (code - 16) * d. The nibbles as in Q4_0; bit i of the word qh is the fifth bit of value i. */
#ifndef GGUFX_KERNEL_Q5_0_H
#define GGUFX_KERNEL_Q5_0_H

typedef struct {
    uint8_t d[2], qh[4], qs[16];
} block_q5_0;

INLINE int finite_q5_0(const block_q5_0 *b) { return half_is_finite(b->d); }

INLINE void decode_q5_0(const block_q5_0 *b, sink y) {
    scaled(y, 0, minus(add_where(nibbles(b->qs), u32_at(b->qh), 16), 16), every(half_at(y, b->d)));
}

#endif
