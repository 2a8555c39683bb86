/* Q5_1: value = code * d + m. The nibbles as in Q4_1; bit i of the word qh is the fifth bit of value i. */
#ifndef GGUFX_KERNEL_Q5_1_H
#define GGUFX_KERNEL_Q5_1_H


typedef struct {
    uint8_t d[2], m[2], qh[4], qs[16];
} block_q5_1;

static inline void decode_q5_1(const block_q5_1 *b, float *y) {
    const floats d = every(half_at(b->d)), m = every(-half_at(b->m));
    const bytes q = load_bytes(b->qs);
    affine(y, either(field(q, 0, 15), bits_as(u16_at(b->qh), 16)), d, m);
    affine(y + 16, either(field(q, 4, 15), bits_as(u16_at(b->qh + 2), 16)), d, m);
}

#endif
