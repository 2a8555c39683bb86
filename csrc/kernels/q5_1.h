/* Q5_1: value = code * d + m. The nibbles as in Q4_1; bit i of the word qh is the fifth bit of value i. */
#ifndef GGUFX_KERNEL_Q5_1_H
#define GGUFX_KERNEL_Q5_1_H

typedef struct {
    uint8_t d[2], m[2], qh[4], qs[16];
} block_q5_1;

INLINE int finite_q5_1(const block_q5_1 *b) { return two_halves_are_finite(b->d); }

INLINE void decode_q5_1(const block_q5_1 *b, sink y) {
    float d, m;
    two_halves_at(y, b->d, &d, &m);
    affine(y, 0, add_where(nibbles(b->qs), u32_at(b->qh), 16), every(d), every(m));
}

#endif
